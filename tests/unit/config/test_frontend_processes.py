"""How many processes serve the ports."""

from __future__ import annotations

import sys

import pytest

from shoal import settings
from shoal.config.options import Options
from shoal.errors import InvalidArgument
from shoal.instance import device


@pytest.mark.parametrize(
    ("cores", "asked", "count"), [(16, 0, 8), (1, 0, 1), (2, 4, 4), (16, 1, 1)]
)
def test_how_many(monkeypatch, cores, asked, count):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(device, "available_cores", lambda: cores)
    assert settings.frontend_processes(Options(frontend_processes=asked)) == count


def test_where_there_can_be_only_one(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert settings.frontend_processes(Options(grpc_transport="grpcio")) == 1
    with pytest.raises(InvalidArgument, match="needs Linux"):
        settings.frontend_processes(Options(frontend_processes=2))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(InvalidArgument, match="--grpc-transport=grpcio cannot share its port"):
        settings.frontend_processes(Options(frontend_processes=2, grpc_transport="grpcio"))

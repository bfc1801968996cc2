"""Servers of object storage for the tests of this folder, each started once, when first needed."""

from __future__ import annotations

import pytest

from tests.support.local_hub import running_hub
from tests.support.storage_servers import running_azurite, running_moto, running_rclone


@pytest.fixture(scope="session")
def moto():
    """A server of S3, whose buckets can be read as those of Google Cloud Storage, too."""
    with running_moto() as server:
        yield server


@pytest.fixture(scope="session")
def azurite():
    """A server of Azure Blob Storage."""
    with running_azurite() as server:
        yield server


@pytest.fixture(scope="session")
def rclone():
    """Another server of S3."""
    with running_rclone() as server:
        yield server


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub of models, which `huggingface_hub` of this process uses."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server

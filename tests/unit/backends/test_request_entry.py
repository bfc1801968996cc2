"""Requests that another process executes have everything that the model can see."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from shoal.backends.request_entry import entry_of, request_of
from shoal.core.tensor import Tensor
from shoal.link.link import Link
from tests.support.fakes import make_request


@pytest.mark.parametrize("one_answer", [False, True])
def test_a_request_arrives_as_it_was(one_answer):
    link, other = (Link(end) for end in socket.socketpair())
    sent, _ = make_request(
        Tensor.from_array("x", np.arange(3)),
        id="seven",
        requested_outputs=("y",),
        parameters={"temperature": 0.5},
        timeout_us=9,
        correlation_id="s",
        flags=1,
    )
    sent.one_answer = one_answer
    got = request_of(entry_of(4, sent, link), "m", other)
    for name in ("id", "requested_outputs", "parameters", "timeout_us", "correlation_id", "flags"):
        assert getattr(got, name) == getattr(sent, name)
    assert got.one_answer is one_answer
    assert got.inputs["x"].array.tolist() == [0, 1, 2]
    link.close()
    other.close()

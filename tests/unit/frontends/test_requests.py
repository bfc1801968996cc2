from __future__ import annotations

import pytest

from shoal.core.request import Request
from shoal.errors import InvalidArgument, quoted
from shoal.frontends.requests import build_request, parse_version
from shoal.wire.grpc_request import InferHead
from tests.support.fakes import Collector


@pytest.mark.parametrize(
    ("text", "version"), [("", -1), ("0", 0), ("3", 3), ("007", 7), (str(2**63 - 1), 2**63 - 1)]
)
def test_versions(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["one", "1.0", " 1", "1x", "²", "+1", "-", "9" * 5_000])
def test_what_is_no_version(text):
    start = f"failed to get model version from specified version string '{quoted(text)}' (details: "
    with pytest.raises(InvalidArgument) as caught:
        parse_version(text)
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith("version should be an integral value > 0")


def test_a_negative_version():
    with pytest.raises(InvalidArgument, match="invalid model version specified '-1' , version sho"):
        parse_version("-1")


@pytest.mark.parametrize(
    ("begins", "ends", "flags"),
    [
        (False, False, 0),
        (True, False, Request.SEQUENCE_START),
        (False, True, Request.SEQUENCE_END),
        (True, True, Request.SEQUENCE_START | Request.SEQUENCE_END),
    ],
)
def test_a_request_says_what_was_asked(begins, ends, flags):
    asked = InferHead("m", "2", sequence_start=begins, sequence_end=ends)
    asked.priority, asked.timeout_us = 2, 500
    reply = Collector()
    request = build_request(
        ("m", 2),
        asked,
        {},
        reply,
        id="7",
        sequence_id="s",
        outputs=("OUT",),
        parameters={"a": 1},
    )
    assert (request.model_name, request.model_version, request.id) == ("m", 2, "7")
    assert (request.correlation_id, request.flags) == ("s", flags)
    assert (request.priority, request.timeout_us) == (2, 500)
    assert (request.requested_outputs, request.parameters) == (("OUT",), {"a": 1})
    assert request.reply is reply

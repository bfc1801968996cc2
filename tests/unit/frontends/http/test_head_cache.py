"""Heads found again by their bytes are the heads that parsing gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontends.http import head as head_module
from shoal.frontends.http.head import HeadCache, parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import Head, HttpFault

LIMITS = HttpLimits(max_head_bytes=3000, max_target_bytes=100, max_headers=20, max_body_bytes=1000)
GOOD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"


def outcome(parse, data):
    """The head's every attribute, or the refusal."""
    try:
        head = parse(data, LIMITS)
    except HttpFault as error:
        return error.status, error.message
    return {name: getattr(head, name) for name in Head.__slots__}


lines = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *("Host: x", "Host: y", "Content-Length: 3", "Content-Length: 03", "X-A: b"),
                *("Content-Length: 1001", "Content-Length: -1", "Transfer-Encoding: chunked"),
                *("Connection: close", "Connection: keep-alive", "Expect: 100-continue"),
                *("Expect: x", "Accept-Encoding: gzip", "Content-Encoding: gzip", "x", ": y"),
                "Inference-Header-Content-Length: 12",
                "Inference-Header-Content-Length: 0000000000000000012",
                "X-Long: " + "y" * 2100,
            ]
        ),
        st.text(st.characters(max_codepoint=255), max_size=8),
    ),
    max_size=8,
)
heads = st.one_of(
    st.just(GOOD),
    st.binary(max_size=60),
    st.builds(
        lambda first, rest: "\r\n".join([first, *rest, "", ""]).encode("latin-1"),
        st.sampled_from(
            [
                *("POST /v2 HTTP/1.1", "POST /v2 HTTP/1.0", "GET / HTTP/2.0", "GET  / HTTP/1.1"),
                *("NONE / HTTP/1.1", "GET /" + "x" * 120 + " HTTP/1.1", "GET http://h/p HTTP/1.1"),
            ]
        ),
        lines,
    ),
    st.builds(
        lambda place, new: GOOD[: place % len(GOOD)] + new + GOOD[place % len(GOOD) + 1 :],
        st.integers(0, 100),
        st.binary(max_size=2),
    ),
)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(heads, min_size=1, max_size=6))
def test_a_cached_head_is_the_parsed_head_whatever_came_before(datas):
    cache = HeadCache()
    for data in [*datas, *datas]:
        assert outcome(cache.parse, data) == outcome(parse_head, data)


def test_equal_bytes_give_one_head():
    cache = HeadCache()
    assert cache.parse(GOOD, LIMITS) is cache.parse(bytes(bytearray(GOOD)), LIMITS)


def test_a_refused_head_is_refused_again_and_not_kept():
    cache = HeadCache()
    for _ in range(3):
        with pytest.raises(HttpFault, match="must have a Host"):
            cache.parse(b"GET / HTTP/1.1\r\n\r\n", LIMITS)
    assert len(cache._heads) == 0


def test_long_heads_are_not_kept():
    cache = HeadCache()
    most = head_module._LONGEST_KEPT_HEAD_BYTES
    fitting = GOOD.replace(b"Host: x", b"Host: x" + b"y" * (most - len(GOOD)))
    assert len(fitting) == most
    cache.parse(fitting, LIMITS)
    cache.parse(fitting.replace(b"Host: x", b"Host: xx"), LIMITS)
    assert list(cache._heads) == [fitting]


def test_the_oldest_heads_make_room():
    cache = HeadCache()
    most = head_module._MOST_KEPT_HEADS
    every = [GOOD.replace(b"Host: x", b"Host: x%d" % number) for number in range(most + 10)]
    for data in every:
        cache.parse(data, LIMITS)
    assert list(cache._heads) == every[10:]

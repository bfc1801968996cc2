import json

import pytest

from shoal.frontends.http.head import parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpRequest, date_line, error_body, response_head


def request(target: str, headers: str = "") -> HttpRequest:
    head = f"GET {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"
    return HttpRequest(parse_head(head.encode("latin-1"), HttpLimits()))


def test_a_request_shows_its_head():
    asked = request("/v2/models/a%20b?x=%31", "X-One: 1\r\nx-two: 2\r\nX-ONE: 3\r\n")
    assert (asked.method, asked.version, asked.keep_alive) == ("GET", "1.1", True)
    assert asked.target == "/v2/models/a%20b?x=%31"
    assert asked.path == "/v2/models/a%20b"
    assert asked.query == "x=%31"
    assert asked.body == b""
    assert asked.header(b"x-two") == b"2"
    assert asked.header(b"x-one") == b"1, 3"
    assert asked.header(b"x-three") is None
    assert asked.headers == (
        (b"host", b"x"),
        (b"x-one", b"1"),
        (b"x-two", b"2"),
        (b"x-one", b"3"),
    )


def test_response_head():
    assert response_head(200, [(b"A", b"1")], b"\r\n") == b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\n"
    assert response_head(299, [], b"\r\n") == b"HTTP/1.1 299 \r\n\r\n"


@pytest.mark.parametrize("value", [b"1\r\nB: 2", b"1\n", b"\r", b"1\r\n"])
def test_a_header_cannot_carry_a_second_one(value):
    with pytest.raises(ValueError, match="line break"):
        response_head(200, [(b"A", value)], b"\r\n")
    with pytest.raises(ValueError, match="line break"):
        response_head(200, [(value, b"A")], b"\r\n")


def test_error_body_is_triton_s():
    assert error_body("no such model") == b'{"error":"no such model"}'
    assert json.loads(error_body('a "b"\n\x00ü')) == {"error": 'a "b"\n\x00ü'}


def test_date_line():
    assert date_line(784111777) == b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"

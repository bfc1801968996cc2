import pytest

from shoal.frontends.http.head import check_partial_head, parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import CHUNKED, HttpFault

LIMITS = HttpLimits(max_head_bytes=4096, max_target_bytes=512, max_headers=16, max_body_bytes=9999)


def parse(head: bytes):
    return parse_head(head, LIMITS)


def get(headers: bytes = b"", line: bytes = b"GET / HTTP/1.1") -> bytes:
    return line + b"\r\nHost: x\r\n" + headers + b"\r\n"


@pytest.mark.parametrize(
    ("status", "head", "says"),
    [
        # the request line
        (400, b"GET /\r\n\r\n", "request line"),
        (400, get(line=b"GET  / HTTP/1.1"), "one space"),
        (400, get(line=b"GET /  HTTP/1.1"), "one space"),
        (400, get(line=b"GET / HTTP/1.1 "), "request line"),
        (400, get(line=b"GET\t/ HTTP/1.1"), "request line"),
        (400, get(line=b"GET / http/1.1"), "request line"),
        (400, get(line=b"GET / HTTP/1.10"), "request line"),
        (400, get(line=b"OPTIONS * RTSP/1.0"), "request line"),
        (400, get(line=b"SOURCE / ICE/1.0"), "request line"),
        (400, get(line=b"GET a/b HTTP/1.1"), "target"),
        (400, get(line=b"GET /\x01 HTTP/1.1"), "target"),
        (400, get(line=b"GET /\xff HTTP/1.1"), "target"),
        (400, get(line=b"GET /?\x00 HTTP/1.1"), "target"),
        (400, b"GET / HTTP/1.1\nHost: x\r\n\r\n", "HTTP/1.1"),
        (501, get(line=b"FETCH / HTTP/1.1"), "'FETCH'"),
        (501, get(line=b"get / HTTP/1.1"), "'get'"),
        (505, get(line=b"GET / HTTP/1.2"), "HTTP/1.2"),
        (505, get(line=b"GET / HTTP/0.9"), "HTTP/0.9"),
        (505, get(line=b"GET / HTTP/3.0"), "HTTP/3.0"),
        (505, b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2.0"),
        (414, get(line=b"GET /" + b"a" * 512 + b" HTTP/1.1"), "512 bytes"),
        # headers
        (400, b"GET / HTTP/1.1\r\n\r\n", "Host"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "'host'"),
        (400, b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", "not valid"),
        (400, get(b"A: 1\r\n 2\r\n"), "not valid"),
        (400, get(b"A:\r\n\t2\r\n"), "not valid"),
        (400, get(b"A : 1\r\n"), "not valid"),
        (400, get(b"A\r\n"), "not valid"),
        (400, get(b": 1\r\n"), "not valid"),
        (400, get(b"A(: 1\r\n"), "not valid"),
        (400, get(b"A\xc3\xbc: 1\r\n"), "not valid"),
        (400, get(b"A: 1\x002\r\n"), "not valid"),
        (400, get(b"A: 1\r2\r\n"), "not valid"),
        (400, get(b"A: 1\nB: 2\r\n"), "not valid"),
        (400, get(b"A: 1\n\nGET /admin HTTP/1.1\r\n"), "not valid"),
        (431, get(b"A: 1\r\n" * 16), "17 headers"),
        (431, get(b"A: " + b"a" * 4096 + b"\r\n"), "4096 bytes"),
        # where the body ends
        (400, get(b"Content-Length: 3\r\nContent-Length: 4\r\n"), "Content-Length"),
        (400, get(b"Content-Length: 3\r\nContent-Length: 3\r\n"), "Content-Length"),
        (400, get(b"Content-Length: 3, 4\r\n"), "Content-Length"),
        (400, get(b"Content-Length: +3\r\n"), "Content-Length"),
        (400, get(b"Content-Length: -3\r\n"), "Content-Length"),
        (400, get(b"Content-Length: 0x3\r\n"), "Content-Length"),
        (400, get(b"Content-Length: 3 4\r\n"), "Content-Length"),
        (400, get(b"Content-Length:\r\n"), "Content-Length"),
        (400, get(b"Content-Length: " + b"9" * 30 + b"\r\n"), "Content-Length"),
        (400, get(b"Content-Length: " + b"0" * 3000 + b"\r\n"), "Content-Length"),
        (413, get(b"Content-Length: 10000\r\n"), "9999 bytes"),
        (501, get(b"Transfer-Encoding: gzip\r\n"), "'gzip'"),
        (501, get(b"Transfer-Encoding: identity\r\n"), "'identity'"),
        (501, get(b"Transfer-Encoding: gzip, chunked\r\n"), "'gzip, chunked'"),
        (501, get(b"Transfer-Encoding: xchunked\r\n"), "'xchunked'"),
        (400, get(b"Transfer-Encoding: chunked, gzip\r\n"), "Transfer-Encoding"),
        (400, get(b"Transfer-Encoding: chunked\r\n", line=b"POST / HTTP/1.0"), "HTTP/1.1"),
        (417, get(b"Expect: a-miracle\r\n"), "'a-miracle'"),
    ],
)
def test_a_bad_head_is_refused(status, head, says):
    with pytest.raises(HttpFault, match=r"\w+") as refused:
        parse(head)
    assert refused.value.status == status
    assert says in refused.value.message


@pytest.mark.parametrize("coding", [b"chunked, chunked", b"chunked\r\nTransfer-Encoding: chunked"])
def test_chunks_within_chunks_are_refused(coding):
    with pytest.raises(HttpFault) as refused:
        parse(get(b"Transfer-Encoding: " + coding + b"\r\n"))
    assert refused.value.status in (400, 501)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/v2/models/a?b=c?d", "/v2/models/a", "b=c?d"),
        ("/a#b?c", "/a", ""),
        ("//a//b", "//a//b", ""),
        ("/http://a/b", "/http://a/b", ""),
        ("http://host:8000/v2/health/live?a", "/v2/health/live", "a"),
        ("http://host", "/", ""),
        ("http://host?a=b/c", "/", "a=b/c"),
    ],
)
def test_every_form_of_target_gives_a_path(target, path, query):
    head = parse(get(line=f"GET {target} HTTP/1.1".encode()))
    assert (head.target, head.path, head.query) == (target, path, query)


@pytest.mark.parametrize(
    ("line", "method", "path"),
    [
        (b"OPTIONS * HTTP/1.1", "OPTIONS", "*"),
        (b"CONNECT host:80 HTTP/1.1", "CONNECT", "host:80"),
    ],
)
def test_methods_with_odd_targets_are_left_to_the_application(line, method, path):
    head = parse(get(line=line))
    assert (head.method, head.path) == (method, path)


@pytest.mark.parametrize(
    ("line", "connection", "keep_alive"),
    [
        (b"GET / HTTP/1.1", None, True),
        (b"GET / HTTP/1.1", b"close", False),
        (b"GET / HTTP/1.1", b"Close", False),
        (b"GET / HTTP/1.1", b"keep-alive, close", False),
        (b"GET / HTTP/1.1", b"close-not", True),
        (b"GET / HTTP/1.0", None, False),
        (b"GET / HTTP/1.0", b"Keep-Alive", True),
        (b"GET / HTTP/1.0", b"keep-alive,close", False),
    ],
)
def test_keep_alive(line, connection, keep_alive):
    headers = b"Connection: " + connection + b"\r\n" if connection else b""
    assert parse(get(headers, line=line)).keep_alive is keep_alive


def test_an_offer_to_upgrade_is_an_ordinary_request():
    head = parse(get(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n"))
    assert (head.keep_alive, head.body_length) == (True, 3)


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        (b"", 0),
        (b"Content-Length: 0\r\n", 0),
        (b"Content-Length: 0042 \t\r\n", 42),
        (b"Transfer-Encoding: Chunked\r\n", CHUNKED),
    ],
)
def test_body_length(headers, length):
    assert parse(get(headers)).body_length == length


def test_expectations_exist_in_1_1_only():
    assert parse(get(b"Expect: 100-Continue\r\n")).expects_continue
    assert not parse(get(b"Expect: 100-continue\r\n", b"POST / HTTP/1.0")).expects_continue
    assert not parse(get(b"Expect: a-miracle\r\n", b"POST / HTTP/1.0")).expects_continue


@pytest.mark.parametrize(("value", "offset"), [(b"12", 12), (b"-1", 0), (b"x", 0), (b"9" * 40, 0)])
def test_the_tensor_offset_is_a_hint_and_never_an_error(value, offset):
    head = parse(get(b"Inference-Header-Content-Length: " + value + b"\r\n"))
    assert head.tensor_offset == offset


def test_values_are_stripped_and_bytes_above_ascii_kept():
    head = parse(get(b"A: \t b\xff  \t \r\nEmpty:\r\n"))
    assert head.fields[b"a"] == b"b\xff"
    assert head.headers[1:] == ((b"a", b"b\xff  \t "), (b"empty", b""))  # as they are forwarded


@pytest.mark.parametrize(
    ("status", "data", "says"),
    [
        (400, b"\x16\x03\x01\x02\x00", "TLS"),
        (400, b"\x00", "method"),
        (400, b"{", "method"),
        (400, b"A" * 33, "method"),
        (400, b"GET / HTTP/1.1\n", "LF"),
        (400, b"GET / HTTP/1.1\r\nHost: x\n\n", "LF"),
        (414, b"GET /" + b"a" * 1000, "512"),
        (431, b"GET / HTTP/1.1\r\nA: " + b"a" * 4096, "4096"),
    ],
)
def test_a_hopeless_beginning_is_refused_at_once(status, data, says):
    with pytest.raises(HttpFault, match=says) as refused:
        check_partial_head(data, 0, LIMITS)
    assert refused.value.status == status


def test_a_hopeful_beginning_is_waited_for():
    head = get(b"Some-Header: some value\r\n")
    for end in range(1, len(head) - 1):
        for checked in range(end):
            check_partial_head(head[:end], checked, LIMITS)


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    ],
)
def test_of_two_framings_the_chunks_count_and_the_connection_is_not_used_again(lines):
    head = parse_head(get(lines), LIMITS)
    assert head.body_length == CHUNKED
    assert not head.keep_alive

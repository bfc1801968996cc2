r"""From a request head's bytes to a `Head`, or to the error.

    b"POST /v2 HTTP/1.1\r\nhost: …\r\n\r\n" --httptools--> names and values --our checks--> Head

httptools checks every character. What it permits is decided here, always on the strict
side: two parties that read one head differently are how requests are smuggled past a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import httptools

from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import CHUNKED, Head, Header, HttpFault

# Where the JSON header of an inference request ends and its tensors begin.
_TENSOR_OFFSET_HEADER = b"inference-header-content-length"
_REQUEST_LINE = re.compile(rb"(\S+) (\S+) HTTP/(\d)\.(\d)")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LONGEST_METHOD_BYTES = 32
_MOST_KEPT_HEADS = 4096
_LONGEST_KEPT_HEAD_BYTES = 2048
_TLS_HANDSHAKE = 0x16
_A, _Z = b"AZ"
_SPACE = b" \t"
CheckHead = Callable[[Head], None]
RewriteHead = Callable[[Head], Head | None]
_MOST_LENGTH_DIGITS = 19  # as many as 64 bits need, with leading zeros


class _Collector:
    """What httptools found."""

    __slots__ = ("complete", "headers", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[Header] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(data: bytes, limits: HttpLimits) -> Head:
    """The head that is `data`, from its first byte to the empty line.

    Raises HttpFault with the status and the text of the response. Depends on nothing but its
    arguments, so results may be kept and found again by `data`.
    """
    if len(data) > limits.max_head_bytes:
        raise _head_too_large(limits)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    # How a body is framed is decided below, also for a head with both kinds of length.
    parser.set_dangerous_leniencies(lenient_chunked_length=True)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # offers of another protocol are declined by answering in this one
    except httptools.HttpParserError as error:
        raise _explained(data, collector, error) from None
    method = parser.get_method()
    url = collector.url
    line = data[: data.find(b"\r\n")]
    # httptools also takes HTTP/0.9, RTSP and spare spaces; nothing of that has this length.
    is_1_1 = line.endswith(b" HTTP/1.1")
    if not (
        collector.complete
        and (is_1_1 or line.endswith(b" HTTP/1.0"))
        and len(line) == len(method) + len(url) + len(b"  HTTP/1.1")
    ):
        raise _explained(data, collector, None)
    if len(url) > limits.max_target_bytes:
        raise _target_too_long(limits)
    headers = tuple(collector.headers)
    fields = _trimmed(headers)
    body_length = 0
    keep_alive = expects_continue = False
    problem: HttpFault | None = None
    try:
        if len(headers) > limits.max_headers:
            text = f"the request has {len(headers)} headers; at most {limits.max_headers} are taken"
            raise HttpFault(431, text)
        if len(fields) != len(headers):
            fields = _joined(headers)
        if is_1_1 and b"host" not in fields:
            raise HttpFault(400, "a request in HTTP/1.1 must have a Host header")
        body_length = _body_length(fields, is_1_1, limits)
        # Transfer-Encoding counts then, and the connection is not shared with readers that
        # disagree.
        two_lengths = body_length == CHUNKED and b"content-length" in fields
        keep_alive = _keeps_alive(fields.get(b"connection"), is_1_1) and not two_lengths
        expects_continue = _expects_continue(fields.get(b"expect"), is_1_1)
    except HttpFault as fault:
        problem = fault
    offset = fields.get(_TENSOR_OFFSET_HEADER, b"")
    target = url.decode("latin-1")
    path, query = _split_target(target)
    head = Head(
        raw=data,
        method=method.decode("ascii"),
        target=target,
        path=path,
        query=query,
        version="1.1" if is_1_1 else "1.0",
        headers=headers,
        fields=fields,
        body_length=body_length,
        tensor_offset=int(offset) if offset.isdigit() and len(offset) < 19 else 0,
        keep_alive=keep_alive,
        expects_continue=expects_continue,
    )
    if problem is not None:
        problem.head = head  # for the access log
        raise problem
    return head


class HeadCache:
    """Heads by their bytes: clients send the same one again and again.

    Only valid heads are kept, up to a number and a length; the oldest are evicted. The bytes are
    compared, so a hit is the same head.
    """

    def __init__(self, rewrite: RewriteHead | None = None) -> None:
        """`rewrite` returns the head that is used in place of another; None if there is none, and
        then it is asked again the next time."""
        self._heads: dict[bytes, Head] = {}
        self._rewrite = rewrite

    def parse(self, data: bytes, limits: HttpLimits) -> Head:
        """As `parse_head`, which it calls for new `data`."""
        head = self._heads.get(data)
        if head is None:
            head = parse_head(data, limits)
            if self._rewrite is not None:
                rewritten = self._rewrite(head)
                if rewritten is None:
                    return head
                head = rewritten
            if len(data) <= _LONGEST_KEPT_HEAD_BYTES:
                if len(self._heads) >= _MOST_KEPT_HEADS:
                    del self._heads[next(iter(self._heads))]
                self._heads[data] = head
        return head


class CheckedHeads(HeadCache):
    """Heads that are checked, each time, before their bodies are read."""

    def __init__(self, check: CheckHead, rewrite: RewriteHead | None = None) -> None:
        """`check` raises HttpFault to refuse a request."""
        super().__init__(rewrite)
        self._check = check

    def parse(self, data: bytes, limits: HttpLimits) -> Head:
        """As `HeadCache.parse`; raises what the check raises, too."""
        head = super().parse(data, limits)
        try:
            self._check(head)
        except HttpFault as fault:
            fault.head = head
            raise
        return head


def check_partial_head(data: bytes, checked: int, limits: HttpLimits) -> None:
    """Raise HttpFault when no continuation can make `data` a head that we take.

    The first `checked` bytes have passed before. Without this, a client with another protocol
    would only get an error after the head time-out.
    """
    if data[0] == _TLS_HANDSHAKE:
        raise HttpFault(400, "this port speaks plain HTTP, not TLS: use http:// instead")
    if not _A <= data[0] <= _Z or (
        len(data) > _LONGEST_METHOD_BYTES and b" " not in data[:_LONGEST_METHOD_BYTES]
    ):
        raise HttpFault(400, "the request does not begin with a method such as GET or POST")
    if _LONE_LINE_FEED.search(data, checked):
        raise HttpFault(400, "a line of the request head ends in LF alone; CR LF is needed")
    longest_line = limits.max_target_bytes + 2 * _LONGEST_METHOD_BYTES
    if len(data) > longest_line and data.find(b"\r\n", 0, longest_line) < 0:
        raise _target_too_long(limits)
    if len(data) > limits.max_head_bytes:
        raise _head_too_large(limits)


def _body_length(fields: dict[bytes, bytes], is_1_1: bool, limits: HttpLimits) -> int:
    """How long the body will be, or CHUNKED."""
    coding = fields.get(b"transfer-encoding")
    length = fields.get(b"content-length")
    if coding is not None:
        if not is_1_1:
            raise HttpFault(400, "Transfer-Encoding needs HTTP/1.1")
        if coding.lower() != b"chunked":
            raise HttpFault(
                501,
                f"the transfer coding {_shown(coding)} is not supported; "
                "send a Content-Length or use 'chunked'",
            )
        return CHUNKED
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _MOST_LENGTH_DIGITS:
        raise HttpFault(400, f"Content-Length {_shown(length)} is not one plain number")
    count = int(length)
    if limits.max_body_bytes is not None and count > limits.max_body_bytes:
        if fields.get(b"content-type", b"").startswith(b"application/json"):
            raise HttpFault(
                413,
                f"request JSON size of {count} bytes exceeds the maximum allowed input size of "
                f"{limits.max_body_bytes} bytes",
            )
        raise body_too_large(limits.max_body_bytes)
    return count


def body_too_large(max_body_bytes: int) -> HttpFault:
    """The refusal of a body beyond the limit."""
    return HttpFault(413, f"the request body is larger than the limit of {max_body_bytes} bytes")


def _trimmed(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """Headers by name. Spaces at the end count for forwarded ones only, as in Triton."""
    return {name: value.rstrip(_SPACE) for name, value in headers}


def _joined(headers: tuple[Header, ...]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for name, sent in headers:
        value = sent.rstrip(_SPACE)
        if name in fields:
            if name in (b"host", b"content-length"):
                raise HttpFault(400, f"the header {_shown(name)} is given more than once")
            fields[name] += b", " + value
        else:
            fields[name] = value
    return fields


def _split_target(target: str) -> tuple[str, str]:
    """The path and the query of any form of target."""
    path, _, query = target.partition("#")[0].partition("?")
    if not path.startswith("/"):
        scheme, found, rest = path.partition("://")
        if found and scheme.isalpha():  # absolute form, as sent to a proxy
            _, slash, tail = rest.partition("/")
            return slash + tail or "/", query
    return path, query


def _keeps_alive(connection: bytes | None, is_1_1: bool) -> bool:
    if connection is None:
        return is_1_1
    options = [option.strip() for option in connection.lower().split(b",")]
    return b"close" not in options and (is_1_1 or b"keep-alive" in options)


def _expects_continue(expect: bytes | None, is_1_1: bool) -> bool:
    if expect is None or not is_1_1:  # HTTP/1.0 knows no expectations: they are to be ignored
        return False
    if expect.lower() != b"100-continue":
        raise HttpFault(
            417, f"the expectation {_shown(expect)} cannot be met; only 100-continue can"
        )
    return True


def _explained(
    data: bytes, collector: _Collector, error: httptools.HttpParserError | None
) -> HttpFault:
    """The most telling error for a head that was not taken."""
    line = _REQUEST_LINE.fullmatch(data.partition(b"\n")[0].rstrip(b"\r"))
    if line is None:
        return HttpFault(
            400, "the request line is not a method, a target and HTTP/1.1, one space between them"
        )
    method, _, major, minor = line.groups()
    if (major, minor) not in ((b"1", b"1"), (b"1", b"0")):
        version = f"HTTP/{major.decode()}.{minor.decode()}"
        return HttpFault(505, f"{version} is not supported on this port; use HTTP/1.1")
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return HttpFault(501, f"the method {_shown(method)} is not known")
    if isinstance(error, httptools.HttpParserInvalidURLError):
        return HttpFault(400, f"the request target is not a valid URL: {error}")
    if collector.complete:  # every header was readable: only the framing can be at fault
        try:
            _body_length(_trimmed(collector.headers), True, HttpLimits(max_body_bytes=None))
        except HttpFault as framing:
            return framing
    return HttpFault(400, f"the request head is not valid HTTP/1.1: {error}")


def _head_too_large(limits: HttpLimits) -> HttpFault:
    return HttpFault(
        431, f"the request head is larger than the limit of {limits.max_head_bytes} bytes"
    )


def _target_too_long(limits: HttpLimits) -> HttpFault:
    return HttpFault(
        414, f"the request target is longer than the limit of {limits.max_target_bytes} bytes"
    )


def _shown(value: bytes) -> str:
    """Client bytes made fit for a sentence."""
    text = value[:80].decode("latin-1")
    return f"'{text}'" if len(value) <= 80 else f"'{text}…'"

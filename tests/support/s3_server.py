"""A small S3 server that misbehaves on command: what moto and real stores never do when asked.

with MisbehavingS3() as s3:
    s3.objects["models/a/config.pbtxt"] = b"..."
    s3.faults.append(Fault(method="GET", key="model.onnx", status=503, times=2))
    ...
    assert s3.count("GET", "model.onnx") == 3
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
NO_TAG = "none"  # as an ETag: the object has none


def _quoted(tag: str) -> str:
    return f'W/"{tag.removeprefix("W/")}"' if tag.startswith("W/") else f'"{tag}"'


@dataclass
class Fault:
    """What happens to the next `times` requests for keys that contain `key`."""

    method: str = "GET"
    key: str = ""  # "list": requests for listings
    status: int = 0  # answered with this
    times: int = 1_000_000
    cut: int = -1  # only so many bytes of the body are sent
    damage: bool = False  # one byte of the body is another
    wait_for: threading.Event | None = None  # the request is answered when this is set
    replace: bytes | None = None  # the object has this content from now on
    headers: dict[str, str] = field(default_factory=dict)
    code: str = "Fault"


class MisbehavingS3:
    """One bucket in memory, on a port of its own."""

    def __init__(self, page: int = 1000) -> None:
        self.page = page
        self.objects: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}  # where they are not MD5 digests
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []  # method, key or "list", range
        self.headers: list[dict[str, str]] = []
        self._digests: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"s3": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = f"s3://127.0.0.1:{self.port}/{BUCKET}"

    def __enter__(self) -> MisbehavingS3:  # noqa: PYI034 - Python 3.10 has no Self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        self.objects.clear()
        self.etags.clear()
        self.faults.clear()
        self.requests.clear()
        self.headers.clear()
        self.page = 1000

    def etag(self, key: str) -> str:
        content = self.objects[key]
        known = self._digests.get(key)
        if known is None or known[0] is not content:
            known = self._digests[key] = content, hashlib.md5(content).hexdigest()
        return self.etags.get(key) or known[1]

    def count(self, method: str, key: str = "") -> int:
        return sum(one == method and key in other for one, other, _ in self.requests)

    def fault(self, method: str, key: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.key in key:
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    s3: MisbehavingS3
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def _split(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        return unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/"), query

    def _note(self, method: str, key: str) -> Fault | None:
        self.s3.requests.append((method, key, self.headers.get("Range", "")))
        self.s3.headers.append(dict(self.headers))
        fault = self.s3.fault(method, key)
        if fault is not None and fault.wait_for is not None:
            fault.wait_for.wait(30)
        if fault is not None and fault.replace is not None:
            self.s3.objects[key] = fault.replace
        return fault

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _fail(self, status: int, code: str, headers: dict[str, str]) -> None:
        body = f"<Error><Code>{code}</Code><Message>on command</Message></Error>".encode()
        self._send(status, body, **{name.replace("-", "_"): v for name, v in headers.items()})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query = self._split()
        if not key:
            self._list(query)
            return
        fault = self._note(self.command, key)
        if fault is not None and fault.status:
            self._fail(fault.status, fault.code, fault.headers)
            return
        if key not in self.s3.objects:
            self._fail(404, "NoSuchKey", {})
            return
        etag, content = self.s3.etag(key), self.s3.objects[key]
        wanted = self.headers.get("If-Match", "").strip('"')
        if wanted and (wanted != etag or etag.startswith("W/")):
            self._fail(412, "PreconditionFailed", {})
            return
        total, status, extra = len(content), 200, {}
        if self.headers.get("Range"):
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or total), total - 1)
            if start >= total:
                self._fail(416, "InvalidRange", {})
                return
            content, status = content[start : end + 1], 206
            extra = {"Content_Range": f"bytes {start}-{end}/{total}"}
        if fault is not None:
            extra |= {name.replace("-", "_"): value for name, value in fault.headers.items()}
        if fault is not None and fault.damage:
            content = bytes([content[0] ^ 1]) + content[1:]
        length = str(len(content))
        if fault is not None and fault.cut >= 0:
            content, self.close_connection = content[: fault.cut], True
        self._send(
            status,
            content,
            **({} if etag == NO_TAG else {"ETag": _quoted(etag)}),
            Content_Length=length,
            Last_Modified="Mon, 02 Jan 2023 03:04:05 GMT",
            **extra,
        )

    def _list(self, query: dict[str, str]) -> None:
        fault = self._note("GET", "list")
        if fault is not None and fault.status:
            self._fail(fault.status, fault.code, fault.headers)
            return
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        after = after or query.get("start-after", "")
        keys = sorted(key for key in self.s3.objects if key.startswith(prefix) and key > after)
        groups: list[str] = []
        if query.get("delimiter"):
            below = {key.removeprefix(prefix).partition("/")[::2] for key in keys}
            groups = sorted({f"{prefix}{first}/" for first, rest in below if rest})
            keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        page = keys[: self.s3.page]
        more = len(keys) > len(page)
        coded = quote if query.get("encoding-type") == "url" else escape
        rows = "".join(
            f"<Contents><Key>{coded(key)}</Key><LastModified>2023-01-02T03:04:05.000Z</LastModified>"
            f"{self._listed_tag(key)}<Size>{len(self.s3.objects[key])}</Size>"
            "</Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult><IsTruncated>'
            f"{str(more).lower()}</IsTruncated>{token}{rows}"
            + "".join(
                f"<CommonPrefixes><Prefix>{coded(one)}</Prefix></CommonPrefixes>" for one in groups
            )
            + "</ListBucketResult>"
        )
        self._send(200, body.encode())

    def _listed_tag(self, key: str) -> str:
        tag = self.s3.etag(key)
        return "" if tag == NO_TAG else f"<ETag>{escape(_quoted(tag))}</ETag>"

    def do_PUT(self) -> None:
        key, _ = self._split()
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self._note("PUT", key)
        if fault is not None and fault.status:
            self._fail(fault.status, fault.code, fault.headers)
            return
        self.s3.objects[key] = content
        self._send(200, ETag=f'"{self.s3.etag(key)}"')

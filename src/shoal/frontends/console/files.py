"""The console's files, cached, and their response headers.

The Content-Security-Policy allows only scripts, styles and connections of this server, no inline
code and no frames. With `no-cache` and an ETag a browser revalidates each file, and gets a short
304 if nothing has changed.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from shoal.errors import NotFound
from shoal.frontends.http.message import Header

PAGE = "index.html"
DOCS = "docs.html"
_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' blob:",  # a chosen photo is shown from memory
    "media-src 'self' blob:",  # and a sound is played from there
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # no text can become markup
    "trusted-types 'none'",
)
SECURITY: tuple[Header, ...] = (
    (b"Content-Security-Policy", "; ".join(_POLICY).encode()),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file, plain and compressed."""

    content_type: bytes
    content: bytes
    packed: bytes
    etag: bytes

    def response(self, accepted: bytes, known: bytes) -> tuple[int, list[Header], list[bytes]]:
        """Status, headers and body for a client's Accept-Encoding and If-None-Match."""
        tag = self.etag
        zipped = b"gzip" in accepted
        if zipped:
            tag = tag[:-1] + b'-gzip"'
        headers: list[Header] = [
            (b"Content-Type", self.content_type),
            (b"ETag", tag),
            (b"Cache-Control", b"no-cache"),
            (b"Vary", b"Accept, Accept-Encoding"),
            *SECURITY,
        ]
        if tag in [each.strip().removeprefix(b"W/") for each in known.split(b",")]:
            return 304, headers, []
        if zipped:
            return 200, [*headers, (b"Content-Encoding", b"gzip")], [self.packed]
        return 200, headers, [self.content]


@cache
def console_file(name: str) -> ConsoleFile:
    """A file of the console; NotFound if there is none of that name."""
    found = _names().get(name)
    if found is None:
        raise NotFound("Not Found")
    content = (files(__package__) / "static" / name).read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:20]
    return ConsoleFile(found, content, gzip.compress(content, mtime=0), f'"{tag}"'.encode())


@cache
def _names() -> dict[str, bytes]:
    """The type of each file by name."""
    found = {}
    for entry in (files(__package__) / "static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            found[entry.name] = kind
    return found

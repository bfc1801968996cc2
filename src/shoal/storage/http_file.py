"""One file of a web server, read in ranges with the standard library.

A request for its first byte reports size and identity. It is not a HEAD request, because signed
addresses of object stores are valid for GET only.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import ipaddress
import netrc
import os
import re
import ssl
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from shoal.errors import InvalidArgument
from shoal.storage.address import redacted
from shoal.storage.errors import (
    ContentRefused,
    ObjectChanged,
    ObjectDamaged,
    ObjectMissing,
    StorageBusy,
    StorageError,
    StorageRefused,
    StorageUnreachable,
)

ALLOW_HTTP = "SHOAL_ALLOW_HTTP"  # environment variable: plain http to other machines
_TIMEOUT_SECS = 30.0
_PIECE_BYTES = 1 << 20


class FileState(NamedTuple):
    """A file as the server describes it."""

    size: int
    identity: str
    ranges: bool  # whether parts of it can be read


class HttpFile:
    """A file at an http or https address."""

    def __init__(self, url: str) -> None:
        """Raises InvalidArgument if the address is not allowed."""
        self._shown = redacted(url)
        reason = why_not_allowed(url)
        if reason:
            raise InvalidArgument(f"'{self._shown}' is refused: {reason}")
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        self._authorization = _authorization(parts.username, parts.password, parts.hostname or "")
        self._opener = urllib.request.build_opener(_Redirects())

    def look(self) -> FileState:
        """Its size and identity now. Raises StorageError."""
        with self._open({"Range": "bytes=0-0"}) as response:
            return self._state(response)

    def read(self, start: int, end: int, identity: str) -> bytes:
        """A range of it. Raises ObjectChanged if it has another identity now."""
        with self._open({"Range": f"bytes={start}-{end - 1}"}) as response:
            state = self._state(response)
            if state.identity != identity:
                raise ObjectChanged(f"'{self._shown}' was replaced while it was read")
            if not state.ranges:
                raise StorageError(f"'{self._shown}' cannot be read in parts any more")
            content = self._body(response, end - start)
        if len(content) < min(end, state.size) - start:
            raise ObjectDamaged(
                f"'{self._shown}' ended after {len(content)} of {end - start} bytes"
            )
        return content

    def download(self, target: Path) -> None:
        """All of it, for servers that cannot send parts."""
        size = 0
        with self._open({}) as response, target.open("wb") as output:
            expected = self._state(response).size
            while piece := self._body(response, min(_PIECE_BYTES, expected - size)):
                size += len(piece)
                output.write(piece)
        if size != expected:
            raise ObjectDamaged(f"'{self._shown}' ended after {size} of {expected} bytes")

    # ---- requests

    def _open(self, headers: dict[str, str]) -> Any:
        sent = {"User-Agent": "shoal", "Accept-Encoding": "identity", **headers}
        if self._authorization:
            sent["Authorization"] = self._authorization
        request = urllib.request.Request(self._url, headers=sent)  # noqa: S310 - checked above
        try:
            return self._opener.open(request, timeout=_TIMEOUT_SECS)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.headers) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise StorageRefused(
                    f"the certificate of '{self._shown}' is not trusted: {reason.verify_message}; "
                    "name the authority's certificates in SSL_CERT_FILE"
                ) from None
            why = redacted(str(reason))[:500] or type(reason).__name__
            raise StorageUnreachable(f"'{self._shown}' cannot be read: {why}") from None

    def _body(self, response: IO[bytes], count: int) -> bytes:
        try:
            return response.read(count)
        except http.client.IncompleteRead as error:
            return error.partial
        except (OSError, http.client.HTTPException) as error:
            raise StorageUnreachable(
                f"the connection to '{self._shown}' broke off: {error or type(error).__name__}"
            ) from None

    def _state(self, response: Any) -> FileState:
        headers = response.headers
        whole = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers["Content-Range"] or "")
        ranges = response.status == http.HTTPStatus.PARTIAL_CONTENT and whole is not None
        length = whole[1] if ranges and whole else headers["Content-Length"] or ""
        if not re.fullmatch(r"\d{1,18}", length):
            raise ContentRefused(f"the server of '{self._shown}' does not report the file's size")
        tag = (headers["ETag"] or "").removeprefix("W/").strip('"')
        # Without a tag it is that of this address, whose query may select the file.
        at = hashlib.sha256(self._url.encode("utf-8", "surrogatepass")).hexdigest()
        identity = tag or f"{headers['Last-Modified'] or 'unknown'} {length} {at}"
        return FileState(int(length), identity, ranges)

    def _refusal(self, status: int, headers: Message) -> StorageError:
        shown = f"'{self._shown}'"
        if status in (401, 403, 407):
            return StorageRefused(
                f"{shown} cannot be read: access is refused ({status}); give credentials in the "
                "address (https://user:password@host/...) or in ~/.netrc, or sign it again if it "
                "is a signed address that has expired"
            )
        if status in (404, 410):
            return ObjectMissing(f"there is no file at {shown} (status {status})")
        if status in (429, 503):
            wait = headers["Retry-After"] or ""
            return StorageBusy(
                f"{shown} cannot be read: the server is busy ({status})",
                int(wait) if re.fullmatch(r"\d{1,4}", wait) else 0,
            )
        if status >= 500 or status == 408:
            return StorageUnreachable(f"{shown} cannot be read: the server answered {status}")
        return StorageError(f"{shown} cannot be read: the server answered {status}")


def why_not_allowed(url: str) -> str:
    """Why no file is read from a URL; empty if it may be. Plain http is for this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return ""
    if parts.scheme != "http":
        return f"'{parts.scheme}' is neither http nor https"
    if _is_loopback(parts.hostname or "") or os.environ.get(ALLOW_HTTP, "").lower() == "true":
        return ""
    return (
        "plain http can be read and changed on its way, and models are code; use https, or set "
        f"{ALLOW_HTTP}=true in the environment if the network is trusted"
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without credentials for other hosts, and not from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        """See urllib."""
        reason = why_not_allowed(newurl)
        if req.type == "https" and not newurl.lower().startswith("https:"):
            reason = "it is not https"
        if reason:
            fp.close()
            raise StorageRefused(
                f"'{redacted(req.full_url)}' redirects to '{redacted(newurl)}', which is refused: "
                f"{reason}"
            )
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and made.host != req.host:
            made.remove_header("Authorization")
        return made


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _authorization(user: str | None, password: str | None, host: str) -> str:
    """The header for credentials of the address, or else those of ~/.netrc (NETRC)."""
    if user is None:
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        try:
            found = netrc.netrc(path).authenticators(host) if path.is_file() else None
        except OSError as error:
            raise InvalidArgument(f"'{path}' cannot be read: {error.strerror}") from None
        except netrc.NetrcParseError as error:  # its text may be a part of a password
            raise InvalidArgument(
                f"'{path}' cannot be used: line {error.lineno} is wrong, or other users may read it"
            ) from None
        if found is None:
            return ""
        user, password = found[0], found[2]
    else:
        user, password = unquote(user), unquote(password or "")
    text = f"{user}:{password or ''}"
    return f"Basic {base64.b64encode(text.encode()).decode()}"

"""Requests that web pages send: which of them the server obeys.

A browser lets any page send POST requests to any server; it only keeps the response from the page.
So a request that changes something must come from the server's own pages, or from an origin that
--cors allows. A page can also make a name of its own resolve to this machine (DNS rebinding), and
is then of the same origin: so the name must be one that the server goes by.

Programs send neither `Origin` nor `Sec-Fetch-Site`; nothing is asked of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence

from shoal.errors import Forbidden

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+?)\.?(:[0-9]*)?", re.ASCII)
_MOST_SHOWN = 100  # characters of a client's header in an error

Field = Callable[[bytes], bytes | None]  # a header's value by its name in lower case


class BrowserRules:
    """From which pages, and under which names, browsers may use the server."""

    def __init__(self, origins: Sequence[str], hosts: Iterable[str]) -> None:
        """`origins` are those of --cors, `hosts` those of --http-allowed-hosts."""
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)
        listed = [host.strip().lower() for text in hosts for host in text.split(",")]
        self._hosts = frozenset(host.rstrip(".") for host in listed if host)

    def check(self, method: str, field: Field) -> None:
        """Raise Forbidden for a request of a page that may not send it."""
        if method in _SAFE:
            return
        origin, site = field(b"origin"), field(b"sec-fetch-site")
        if origin is None and (site is None or site in (b"same-origin", b"none")):
            return
        if not self._any_origin and origin not in self._origins:
            self._check_own(origin, site, field(b"host") or b"")
        self.check_host(field)

    def check_host(self, field: Field) -> None:
        """Raise Forbidden unless the name in `Host` is the server's own; any address is."""
        host = (field(b"host") or b"").decode("latin-1")
        if not self._is_own_name(host.lower()):
            match = _HOST.fullmatch(host.lower())
            advice = match[1][:_MOST_SHOWN] if match else "<name>"
            raise Forbidden(
                f"a web page reached this server as '{host[:_MOST_SHOWN]}', which is not one of "
                f"its names; start the server with --http-allowed-hosts={advice} to allow it"
            )

    def _check_own(self, origin: bytes | None, site: bytes | None, host: bytes) -> None:
        if site == b"same-origin":  # the browser says so; a proxy may have changed Host
            return
        if origin and site in (None, b"none") and origin.partition(b"://")[2] == host:
            return
        page = (origin or b"").decode("latin-1")[:_MOST_SHOWN]
        raise Forbidden(
            f"a web page of '{page or 'another origin'}' sent this request, and only the server's "
            f"own pages may do that; start the server with --cors={page or '<origin>'} to allow it"
        )

    def _is_own_name(self, host: str) -> bool:
        if "*" in self._hosts:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name, port = match[1], match[2] or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        if name in self._hosts or name + port in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

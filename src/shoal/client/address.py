"""Server addresses, parsed.

"localhost:8000", "https://host/prefix", "grpc://host:8001", "grpcs://host", "[::1]:8000",
"unix:///run/shoal.sock", "shoal+ray://host:8000", "shoal+ray+grpc://host:8000"
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.client.errors import InvalidInput

HTTP = "http"
GRPC = "grpc"
_SCHEMES = {
    "http": (HTTP, False),
    "https": (HTTP, True),
    "grpc": (GRPC, False),
    "grpcs": (GRPC, True),
}
_REPLICAS = {  # the address is that of an ingress over HTTP, whatever replicas are called with
    "shoal+ray": HTTP,
    "shoal+ray+grpc": GRPC,
}
_DEFAULT_PORTS = {
    (HTTP, False): 8000,
    (HTTP, True): 443,
    (GRPC, False): 8001,
    (GRPC, True): 443,
}
_UNIX = re.compile(r"(?i:unix):(?://(?=/))?(?P<path>[^\s?#]+)")
_FORM = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?"
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/?#\[\]@]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<prefix>/[^\s?#]*)?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """One server's address."""

    protocol: str  # HTTP or GRPC
    host: str
    port: int
    encrypted: bool
    prefix: str = ""  # of every path, for servers behind a proxy
    socket: str = ""  # the file of a Unix socket, instead of host and port
    balanced: bool = False  # calls go to the replicas that the server here knows
    name: str = ""  # in messages, of a replica

    @property
    def shown(self) -> str:
        """The address in messages: `host:port`, or the Unix socket."""
        if self.socket:
            return f"unix:{self.socket}"
        return f"{self.authority} ({self.name})" if self.name else self.authority

    @property
    def url(self) -> str:
        """The address with its scheme."""
        if self.socket:
            return self.shown
        if self.balanced:
            scheme = next(name for name, protocol in _REPLICAS.items() if protocol == self.protocol)
            return f"{scheme}://{self.authority}"
        return f"{self.protocol}://{self.authority}"

    @property
    def authority(self) -> str:
        """`host:port`, as in requests."""
        if self.socket:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(
    url: str, protocol: str | None = None, encrypted: bool = False, *, replicas: bool = False
) -> Address:
    """Parse `url`; with `replicas` it may be one of an ingress. Raises InvalidInput."""
    if protocol not in (None, HTTP, GRPC):
        raise InvalidInput(f"protocol is 'http' or 'grpc', found {protocol!r}")
    unix = _UNIX.fullmatch(url.strip())
    if unix is not None and encrypted:
        raise InvalidInput(f"{url!r} is a Unix socket, which is not encrypted; leave TLS out")
    if unix is not None:
        return Address(protocol or HTTP, "localhost", 0, encrypted=False, socket=unix["path"])
    match = _FORM.fullmatch(url.strip())
    if match is None:
        raise InvalidInput(
            f"{url!r} is not a server address; write it as 'localhost:8000', "
            f"'https://host:8000' or 'grpc://localhost:8001'"
        )
    named, secure, balanced = protocol, False, False
    if match["scheme"]:
        scheme = match["scheme"].lower()
        if replicas and scheme in _REPLICAS:
            named, balanced = _REPLICAS[scheme], True
        elif scheme in _SCHEMES:
            named, secure = _SCHEMES[scheme]
        else:
            known = (*_SCHEMES, "unix", *(_REPLICAS if replicas else ()))
            raise InvalidInput(
                f"{url!r} has the scheme '{match['scheme']}://', which is not supported; "
                f"use one of {', '.join(f'{scheme}://' for scheme in known)}"
            )
        if protocol == GRPC and named == HTTP:  # http://host:8001 with protocol="grpc"
            named = GRPC
        elif protocol not in (None, named):
            raise InvalidInput(f"{url!r} and protocol={protocol!r} contradict each other")
    chosen = named or HTTP
    secure = secure or encrypted
    if balanced and secure:
        raise InvalidInput(
            f"{url!r} leads to replicas, which are called without TLS; use https:// or grpcs:// "
            f"with the ingress's address, which has it"
        )
    default = _DEFAULT_PORTS[HTTP if balanced else chosen, secure]
    port = int(match["port"]) if match["port"] else default
    if not 0 < port < 65536:
        raise InvalidInput(f"{url!r} names port {port}; ports are 1 to 65535")
    prefix = (match["prefix"] or "").rstrip("/")
    if prefix and (chosen == GRPC or balanced):
        raise InvalidInput(
            f"{url!r} has a path after the port; {'an ingress' if balanced else 'gRPC'} has none"
        )
    return Address(chosen, match["host"].strip("[]"), port, secure, prefix, balanced=balanced)

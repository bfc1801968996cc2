"""What both clients are made of: an address, a codec, TLS and limits, from the same arguments."""

from __future__ import annotations

import ssl as tls
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.client import connecting
from shoal.client.address import GRPC, Address, parse
from shoal.client.codec import Codec
from shoal.client.connecting import Limits
from shoal.client.errors import InvalidInput
from shoal.client.steps import Session


@dataclass(frozen=True, slots=True)
class Setup:
    """A client's parts, before any connection."""

    address: Address
    encryption: tls.SSLContext | None
    limits: Limits
    session: Session


def setup(
    url: str,
    *,
    protocol: str | None,
    headers: Mapping[str, str] | None,
    timeout: float | None,
    connect_timeout: float | None,
    retries: int,
    connections: int,
    ssl: tls.SSLContext | bool | None,
    ca: str | Path | None,
    cert: str | Path | None,
    key: str | Path | None,
    verify: bool,
) -> Setup:
    """Check the arguments of a client and make its parts. InvalidInput says which is wrong."""
    address = parse(url, protocol, encrypted=bool(ssl))
    for name, value in (("timeout", timeout), ("connect_timeout", connect_timeout)):
        if value is not None and not value > 0:
            raise InvalidInput(f"{name} is a number of seconds above 0, or None; found {value}")
    if retries < 0:
        raise InvalidInput(f"retries is 0 or more, found {retries}")
    if connections < 1:
        raise InvalidInput(f"connections is 1 or more, found {connections}")
    encryption = connecting.context(address, ssl, ca, cert, key, verify)
    session = Session(_codec(address, headers or {}), timeout, retries)
    return Setup(address, encryption, Limits(connect_timeout, connections), session)


def _codec(address: Address, headers: Mapping[str, str]) -> Codec:
    if address.protocol == GRPC:
        from shoal.client.grpc_codec import GrpcCodec

        return GrpcCodec(address, headers)
    from shoal.client.http_codec import HttpCodec

    return HttpCodec(address, headers)

"""What both clients share: their arguments, and the parts that are made from them."""

from __future__ import annotations

import ssl as tls
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from shoal.client import connecting
from shoal.client.address import GRPC, Address, parse
from shoal.client.codec import Codec, Headers, bearer
from shoal.client.connecting import Limits
from shoal.client.errors import InvalidInput
from shoal.client.result import Result
from shoal.client.steps import ClientSession


class BaseClient(ABC):
    """A client without its transport."""

    def __init__(
        self,
        url: str = "localhost:8000",
        *,
        protocol: str | None = None,
        headers: Headers | None = None,
        api_key: str = "",
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        retries: int = 3,
        connections: int = 100,
        ssl: tls.SSLContext | bool | None = None,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        verify: bool = True,
    ) -> None:
        """`headers` are sent with every request, and so is `api_key`, for servers that require one
        (`Authorization: Bearer`). `timeout` is the time-out of each call in
        seconds; None waits without a limit.

        `retries` is how often an inference is retried, with backoff, when the server is overloaded
        (503, UNAVAILABLE); other errors are not retried. At most `connections` to a server are open
        at once. `ca` is a file with the certificates to trust; `cert` and `key` are the client's.
        Raises InvalidInput. No connection is opened yet.
        """
        address = parse(url, protocol, encrypted=bool(ssl), replicas=True)
        for name, value in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if value is not None and not value > 0:
                raise InvalidInput(f"{name} is a number of seconds above 0, or None; found {value}")
        if retries < 0:
            raise InvalidInput(f"retries is 0 or more, found {retries}")
        if connections < 1:
            raise InvalidInput(f"connections is 1 or more, found {connections}")
        encryption = connecting.context(address, ssl, ca, cert, key, verify)
        self._address = address
        self._session = ClientSession(
            _codec(address, {**bearer(api_key), **(headers or {})}), timeout, retries
        )
        self._session.labeller = weakref.WeakMethod(self._known_labels)
        self._connect(address, encryption, Limits(connect_timeout, connections))

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self._address.url}')"

    @abstractmethod
    def _connect(self, address: Address, encryption: tls.SSLContext | None, limits: Limits) -> None:
        """Make the transport."""

    @abstractmethod
    def _known_labels(self, result: Result, output: str) -> Sequence[str]:
        """The names of classes for `Result.top_k`."""


def _codec(address: Address, headers: Headers) -> Codec:
    if address.balanced:
        from shoal.client import replica_codec

        return replica_codec.make(address, headers)
    if address.protocol == GRPC:
        from shoal.client.grpc_codec import GrpcCodec

        return GrpcCodec(address, headers)
    from shoal.client.http_codec import HttpCodec

    return HttpCodec(address, headers)

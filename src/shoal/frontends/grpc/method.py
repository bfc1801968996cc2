"""The seam between transport and service, seen from the service: which methods it has."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.core.tensor import Buffer

if TYPE_CHECKING:
    from shoal.frontends.grpc.call import Call
    from shoal.frontends.grpc.dispatch import Dispatcher
    from shoal.frontends.grpc.fast_path import GrpcFastPath


class Kind(enum.Enum):
    """How many messages the client sends."""

    UNARY = "unary"  # exactly one, answered by one
    STREAM = "stream"  # as many as it likes, both ways


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service. `start` is called with each new call and sets its callbacks."""

    kind: Kind
    start: Callable[[Call], None]
    max_receive_bytes: int | None = None  # None: the listener's limit
    max_send_bytes: int | None = None
    # Called, on a thread, for large requests that were decompressed; raises MessageFault.
    check_inflated: Callable[[Buffer], None] | None = None
    compress: bool = True  # responses, if the listener compresses and the client accepts it
    # Makes the fast path, given the slow one and how large a response may be; only used where
    # responses are not compressed.
    fast_path: Callable[[Dispatcher, int], GrpcFastPath] | None = None
    call_type: type[Call] | None = None  # None: `Call` itself


class Service(Protocol):
    """What a transport carries."""

    def method(self, path: str) -> Method | None:
        """The method behind '/package.Service/Method'; None answers UNIMPLEMENTED."""

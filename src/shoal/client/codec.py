"""The types that the operations and the two protocols share.

    InferenceCall --Codec.infer--> PreparedCall(request, read)
                                      --transport--> RawResponse --PreparedCall.read--> Result

A request is a list of buffers, so that large tensors are not copied on their way to the socket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from shoal.client.errors import InvalidInput
from shoal.client.inputs import InputTensor
from shoal.client.region import Place
from shoal.core.tensor import Buffer

if TYPE_CHECKING:
    from shoal.client.grpc_codec import GrpcCodec
    from shoal.client.http_codec import HttpCodec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Parameter: TypeAlias = bool | int | float | str
Headers: TypeAlias = Mapping[str, str]
SMALL_BYTES = 65_536  # up to this size, joining the parts is cheaper than sending them separately


@dataclass(slots=True)
class InferenceCall:
    """One inference, independent of the protocol."""

    model: str
    version: str
    tensors: list[InputTensor]
    outputs: Sequence[str] = ()
    places: Mapping[str, Place] = field(default_factory=dict)  # outputs in shared memory
    classes: Mapping[str, int] = field(default_factory=dict)
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    binary: bool = True


class Target(NamedTuple):
    """Which replicas may get a request: those that serve the model.

    Requests of a sequence go to the replica of its first one.
    """

    model: str
    sequence: Parameter | None = None
    start: bool = False
    end: bool = False


class RawRequest(NamedTuple):
    """Bytes to send. `block` has the headers of gRPC; over HTTP they are in the first part."""

    parts: list[Buffer]
    size: int
    block: bytes = b""
    target: Target | None = None  # of clients that choose a replica; None: the ingress


class RawResponse(NamedTuple):
    """A response: an HTTP status, or a gRPC code with its message."""

    status: int
    headers: Mapping[str, str]
    body: Buffer
    message: str = ""

    @property
    def retry_after(self) -> str:
        """When to try again, as the server sent it; empty if it did not."""
        return self.headers.get("retry-after", "")


class PreparedCall(Generic[T_co]):
    """What to send, how to read the response, and whether it may be sent twice."""

    __slots__ = ("read", "repeatable", "request")

    def __init__(
        self, request: RawRequest, read: Callable[[RawResponse], T_co], repeatable: bool = True
    ) -> None:
        self.request = request
        self.read = read
        self.repeatable = repeatable


def bearer(api_key: str) -> dict[str, str]:
    """The header with a key; none without one. Raises InvalidInput for what cannot be sent."""
    if not api_key:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise InvalidInput("the key has characters that a key cannot have, such as a line end")
    return {"Authorization": f"Bearer {api_key}"}


class CallOptions(NamedTuple):
    """The headers of a call, and its time-out (None: no limit)."""

    headers: Headers | None = None
    timeout_secs: float | None = None


# Readers of responses raise ServerError for error responses and ProtocolError for invalid ones.
Codec: TypeAlias = "GrpcCodec | HttpCodec"

"""The types that the operations and the two protocols share.

    InferenceCall --Codec.infer--> PreparedCall(request, read)
                                      --transport--> RawResponse --PreparedCall.read--> Result

A request is a list of buffers, so that large tensors are not copied on their way to the socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from shoal.client.inputs import InputTensor
from shoal.client.region import Place
from shoal.client.result import Result
from shoal.core.tensor import Buffer

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


class RawRequest(NamedTuple):
    """Bytes to send. `block` has the headers of gRPC; over HTTP they are in the first part."""

    parts: list[Buffer]
    size: int
    block: bytes = b""


class RawResponse(NamedTuple):
    """A response: an HTTP status, or a gRPC code with its message."""

    status: int
    headers: Mapping[str, str]
    body: Buffer
    message: str = ""


class PreparedCall(Generic[T_co]):
    """What to send, how to read the response, and whether it may be sent twice."""

    __slots__ = ("read", "repeatable", "request")

    def __init__(
        self, request: RawRequest, read: Callable[[RawResponse], T_co], repeatable: bool = True
    ) -> None:
        self.request = request
        self.read = read
        self.repeatable = repeatable


class CallOptions(NamedTuple):
    """The headers of a call, and its time-out (None: no limit)."""

    headers: Headers | None = None
    timeout_secs: float | None = None


class Codec(Protocol):
    """A protocol: every method returns the request and the function that reads its response.

    Readers raise ServerError for error responses and ProtocolError for invalid ones.
    """

    def infer(self, infer_call: InferenceCall, options: CallOptions) -> PreparedCall[Result]:
        """One inference with one response."""

    def live(self, options: CallOptions) -> PreparedCall[bool]:
        """Is the server live?"""

    def ready(self, options: CallOptions) -> PreparedCall[bool]:
        """Is it ready?"""

    def model_ready(self, model: str, version: str, options: CallOptions) -> PreparedCall[bool]:
        """Is a model ready?"""

    def server_metadata(self, options: CallOptions) -> PreparedCall[dict[str, Any]]:
        """Name, version, extensions."""

    def metadata(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """Inputs and outputs of a model."""

    def config(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """Its configuration."""

    def statistics(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[list[dict[str, Any]]]:
        """Its statistics, or those of all models."""

    def index(self, ready: bool, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """The repository."""

    def load(
        self, model: str, config: str, files: Mapping[str, bytes], options: CallOptions
    ) -> PreparedCall[None]:
        """Load a model; the names of `files` begin with "file:"."""

    def unload(self, model: str, dependents: bool, options: CallOptions) -> PreparedCall[None]:
        """Unload one."""

    def trace_settings(
        self, model: str, change: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """Read or change how requests are traced."""

    def log_settings(
        self, change: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """Read or change the log."""

    def register(
        self, name: str, key: str, byte_size: int, options: CallOptions
    ) -> PreparedCall[None]:
        """Register a region of shared memory."""

    def unregister(self, name: str, options: CallOptions) -> PreparedCall[None]:
        """Unregister it."""

    def regions(self, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """The registered regions."""

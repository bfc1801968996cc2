"""What can go wrong between a program and a server, in words for the person who runs both.

ClientError
├── InvalidInput        what was to be sent cannot be: nothing was sent
├── ConnectionFailed    no server answers there, or it went away
├── Timeout             there was no response in time
├── ProtocolError       something answers, but it does not speak the protocol
└── ServerError         the server refused: `status` (the same word over HTTP and gRPC) and `code`
    └── Unavailable     not now: overloaded, or the model is not ready; these are tried again
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shoal.errors import ShoalError

# HTTP has fewer words than gRPC; these are what Triton and Shoal mean by theirs.
HTTP_STATUS: Mapping[int, str] = MappingProxyType(
    {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        405: "UNIMPLEMENTED",
        409: "ALREADY_EXISTS",
        413: "RESOURCE_EXHAUSTED",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        501: "UNIMPLEMENTED",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }
)
GRPC_STATUS = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
UNAVAILABLE = "UNAVAILABLE"


class ClientError(ShoalError):
    """Base of everything a client raises."""


class InvalidInput(ClientError, ValueError):
    """What was asked for cannot be sent; nothing was."""


class ConnectionFailed(ClientError, ConnectionError):
    """There is no connection to the server, or there is no longer one."""


class Timeout(ClientError, TimeoutError):
    """The response did not come in time. Whether the server did the work is not known."""


class ProtocolError(ClientError):
    """The response is none this protocol knows: perhaps another kind of server is at that port."""


class ServerError(ClientError):
    """The server refused or failed.

    `status` is gRPC's word for it over both protocols, such as "NOT_FOUND"; `server_code` is the
    number that was received: 404 over HTTP, 5 over gRPC.
    """

    def __init__(
        self, message: str, status: str = "UNKNOWN", server_code: int = 0, request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.server_code = server_code
        self.request_id = request_id
        self.retry_after_secs: float | None = None  # when the server said so

    def __reduce__(self) -> tuple[type, tuple[str, str, int, str]]:
        return type(self), (self.message, self.status, self.server_code, self.request_id)


class Unavailable(ServerError):
    """The server could not take the request now."""


def server_error(message: str, status: str, code: int, request_id: str = "") -> ServerError:
    """The error for what a server said."""
    kind = Unavailable if status == UNAVAILABLE else ServerError
    return kind(message, status, code, request_id)

"""The errors of the client.

ClientError
├── InvalidInput        the arguments are invalid: nothing was sent
├── ConnectionFailed    there is no server, or the connection was lost
├── Timeout             there was no response in time
├── ProtocolError       the response is not of this protocol
└── ServerError         the server refused: `status` (the same over HTTP and gRPC) and `code`
    └── Unavailable     overloaded, or the model is not ready; these are retried
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shoal.errors import ShoalError

# HTTP has fewer statuses than gRPC; these are the meanings in Triton and Shoal.
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
    """Base of all errors of a client."""

    not_connected = False  # there was no connection, so nothing was sent


class InvalidInput(ClientError, ValueError):
    """The arguments are invalid; nothing was sent."""


class ConnectionFailed(ClientError, ConnectionError):
    """There is no connection to the server, or it was lost."""


class Timeout(ClientError, TimeoutError):
    """There was no response in time. It is unknown whether the server did the work."""


class ProtocolError(ClientError):
    """The response is not of this protocol: perhaps another kind of server uses that port."""


class ServerError(ClientError):
    """The server refused or failed.

    `status` is gRPC's name over both protocols, such as "NOT_FOUND"; `server_code` is the received
    number: 404 over HTTP, 5 over gRPC.
    """

    def __init__(
        self, message: str, status: str = "UNKNOWN", server_code: int = 0, request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.server_code = server_code
        self.request_id = request_id
        self.retry_after_secs: float | None = None  # if the server sent Retry-After

    def __reduce__(self) -> tuple[type, tuple[str, str, int, str]]:
        return type(self), (self.message, self.status, self.server_code, self.request_id)


class Unavailable(ServerError):
    """The server cannot accept the request now."""


def server_error(
    message: str, status: str, code: int, request_id: str = "", *, retry_after: str = ""
) -> ServerError:
    """The exception for a server's error."""
    kind = Unavailable if status == UNAVAILABLE else ServerError
    error = kind(message, status, code, request_id)
    if retry_after.isdigit():
        error.retry_after_secs = float(retry_after)
    return error

"""From a request's head to a running call: the step between a connection and the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core import buffers
from shoal.core.buffers import BufferPool
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits, ConnectionLimits
from shoal.frontends.grpc import status
from shoal.frontends.grpc.call import Call, CallResources, Route, Service
from shoal.frontends.grpc.control import ControlFrames, SharedByConnections
from shoal.frontends.grpc.deadlines import Deadlines
from shoal.frontends.grpc.flow import ServerStream
from shoal.frontends.grpc.headers import RequestHead
from shoal.frontends.grpc.settings import GrpcSettings
from shoal.frontends.grpc.status import StatusCode
from shoal.frontends.grpc.turns import Turns
from shoal.frontends.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from shoal.frontends.grpc.fast_path import GrpcFastPath


class Dispatcher:
    """Starts the calls of one listener. `deadline_earlier` gets each earlier deadline."""

    def __init__(
        self,
        service: Service,
        settings: GrpcSettings,
        deadline_earlier: Callable[[int], None],
        clock: Callable[[], int] = time.monotonic_ns,
        pool: BufferPool = buffers.pool,
        clients: ClientLimits | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """`clients` may be shared with other listeners; else there is `pool` for their requests."""
        self.settings = settings
        self.clock = clock
        self.deadlines = Deadlines(deadline_earlier)
        self.clients = clients or ClientLimits(
            MemoryBudget(settings.limits.max_buffered_bytes, pool), ConnectionLimits()
        )
        self.memory = self.clients.memory
        self.shared = SharedByConnections(self.memory, Turns())
        self._fast_paths: list[GrpcFastPath] = []
        self._method = service.method
        self._routes: dict[str, Route] = {}  # of methods that there are
        self.access_log = access_log
        self._resources = CallResources(settings, self.memory, self.deadlines, clock, access_log)

    def accept(
        self,
        connection: ControlFrames,
        stream: ServerStream,
        head: RequestHead,
        message: bytes | None,
    ) -> None:
        """Start a call on `stream`, or respond that there is no such method.

        `message` is all that the client sends, where that is known already.
        """
        for fast_path in self._fast_paths:
            fast_path.submit()  # keeps the order of arrival
        route = self._routes.get(head.path)
        if route is None:
            route = self._find(head.path)
        if route is None:
            connection.sender.end(
                stream,
                status.trailers_only(
                    StatusCode.UNIMPLEMENTED, f"this server has no method {head.path!r}"
                ),
            )
            return
        call = route.call_type(self._resources, connection, stream, head, route)
        call.start()
        if message is not None:
            call.whole(message)

    def call(self, connection: ControlFrames, stream: ServerStream, head: RequestHead) -> Call:
        """A call on `stream`, like others that were accepted before; it is not started."""
        route = self._routes[head.path]
        return route.call_type(self._resources, connection, stream, head, route)

    def fast_path(self, head: RequestHead, message_bytes: int) -> GrpcFastPath | None:
        """The fast path for calls with such a head and messages so large, if there is one."""
        route = self._routes.get(head.path)
        if route is None or head.timeout_ns is not None:
            return None
        return route.fast_path if message_bytes <= route.max_receive_bytes else None

    def _find(self, path: str) -> Route | None:
        method = self._method(path)
        if method is None:
            return None
        route = self._routes[path] = Route(method, self.settings)
        if method.fast_path is not None and route.unary and not route.compresses:
            route.fast_path = method.fast_path(self, route.max_send_bytes)
            self._fast_paths.append(route.fast_path)
        return route

"""The same services on grpcio, an option: `--grpc-transport=grpcio`.

    grpc.aio --handler--> GrpcioCall --callbacks--> service
             <--write---- queue      <--send-------'

It needs more than ten times the CPU of our own transport and needs the package `grpcio`, which is
imported when a listener is made. Each call is served by two tasks: one reads, one writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.errors import Unavailable
from shoal.frontends.closing import EXIT_TIMEOUT, LAST_RESPONSES_SECS
from shoal.frontends.grpc.call import Call, Kind, Method, Service
from shoal.frontends.grpc.grpcio_sockets import close_gently
from shoal.frontends.grpc.settings import CompressionLevel, GrpcLimits, GrpcSettings
from shoal.frontends.grpc.status import Metadata, MetadataValue, StatusCode
from shoal.frontends.sockets import SocketFile, clear_unix
from shoal.frontends.tls import PemTexts, ServerTls

logger = logging.getLogger(__name__)

_COMPRESSION = {
    CompressionLevel.NONE: 0,
    CompressionLevel.LOW: 1,
    CompressionLevel.MEDIUM: 2,
    CompressionLevel.HIGH: 3,
}


class GrpcioListener:
    """One listening port. As `GrpcListener`, but its connections are grpcio's."""

    def __init__(self, service: Service, settings: GrpcSettings | None = None) -> None:
        """Raises Unavailable where grpcio is not installed."""
        self._service = service
        self._settings = settings or GrpcSettings()
        self._grpc = _import_grpc()
        self._servers: list[Any] = []
        self._files: list[SocketFile] = []
        self._ports: set[int] = set()
        self._accepting = True
        self._calls: set[GrpcioCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping: asyncio.Future[list[None]] | None = None

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        tls: ServerTls | None = None,
        reuse_port: bool = False,
    ) -> int:
        """Listen, and return the port: with 0 the system chooses one.

        Raises OSError when the address cannot be had.
        """
        return await self._listen(_address(host, port), tls, reuse_port=reuse_port)

    async def start_unix(self, path: str, mode: int) -> None:
        """Listen on a Unix socket, whose file has these permissions and is removed at the end.

        Raises OSError, with EADDRINUSE if another server listens there.
        """
        clear_unix(path)
        before = os.umask(0o777 & ~mode)  # clients can connect as soon as the file is there
        try:
            await self._listen(f"unix:{path}", None, reuse_port=False)
        finally:
            os.umask(before)
        self._files.append(SocketFile(path))

    async def _listen(self, place: str, tls: ServerTls | None, *, reuse_port: bool) -> int:
        """Start a server of grpcio's; one that runs takes no second address."""
        server = self._grpc.aio.server(
            options=[*_channel_options(self._settings), ("grpc.so_reuseport", int(reuse_port))]
        )
        server.add_generic_rpc_handlers((_Handler(self._find),))
        try:
            if tls is None:
                bound = server.add_insecure_port(place)
            else:
                bound = server.add_secure_port(place, _credentials(self._grpc, tls))
        except RuntimeError as error:  # grpcio drops the system's error
            raise OSError(f"cannot listen on {place}: {error}") from None
        await server.start()
        self._servers.append(server)
        if not place.startswith("unix:"):
            self._ports.add(int(bound))
        return int(bound)

    @property
    def streams(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    async def stop_accepting(self) -> None:
        """Have grpcio accept the clients that have connected, and no more; see `close_gently`."""
        if self._accepting:
            self._accepting = False
            await close_gently(self._ports, lambda: {call.peer for call in self._calls})

    async def drain(self, timeout_secs: float) -> bool:
        """Take no more connections and calls, and wait until those that are open have ended.

        Returns False when that took longer than `timeout_secs`; the rest got an error then.
        """
        if not self._servers:
            return True
        await self.stop_accepting()
        stopping = self._stop(timeout_secs + LAST_RESPONSES_SECS)
        in_time = await self._is_idle(timeout_secs)
        if not in_time:
            for call in list(self._calls):
                call.give_up(EXIT_TIMEOUT)
            await self._is_idle(LAST_RESPONSES_SECS)
        await stopping
        return in_time

    async def _is_idle(self, timeout_secs: float) -> bool:
        """Wait until no call is open; false if that takes longer."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_secs)
        return self._idle.is_set()

    def abort_all(self) -> None:
        """Close the port and every connection at once, unless it drains; that ends in time."""
        if self._servers:
            self._stop(None)

    def _stop(self, grace_secs: float | None) -> asyncio.Future[list[None]]:
        """Have grpcio stop, once: two stops at a time make it crash."""
        if self._stopping is None:
            stops = [server.stop(grace_secs) for server in self._servers]
            self._stopping = asyncio.gather(*stops)
            for file in self._files:
                file.remove()
        return self._stopping

    def _find(self, path: str) -> Any:
        """What grpcio shall do for a path; None is UNIMPLEMENTED."""
        method = self._service.method(path)
        if method is None:
            return None

        async def serve(_: Any, context: Any) -> None:
            await self._serve(method, path, context)

        # Any method can be served as a stream of bytes both ways.
        return self._grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(self, method: Method, path: str, context: Any) -> None:
        call = GrpcioCall(path, context, method, self._settings.limits)
        self._calls.add(call)
        self._idle.clear()
        end_of_stream = self._grpc.aio.EOF
        reading = asyncio.ensure_future(call.read(end_of_stream))
        try:
            code, text, metadata = await call.write()
            context.set_code(_status(self._grpc, code))
            context.set_details(text)
            context.set_trailing_metadata(tuple(metadata))
        except BaseException:
            call.cancel()  # the client has disconnected, or its deadline has passed
            raise
        finally:
            reading.cancel()
            call.forget()
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()


class _Handler:
    """Where grpcio looks up the method of a path."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        return self._find(details.method)


class GrpcioCall:
    """One RPC, with what `call.Call` offers to a service."""

    def __init__(self, path: str, context: Any, method: Method, limits: GrpcLimits) -> None:
        self.path = path
        self.metadata = _metadata(context.invocation_metadata())
        self.peer: str = context.peer()
        self.cancelled = False
        self.caller: Caller | None = None  # whose key it has, where keys are required
        self.holds_request = False
        left_secs = context.time_remaining()
        self.deadline_ns = None if left_secs is None else time.monotonic_ns() + int(left_secs * 1e9)
        self.on_message: Callable[[Buffer], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self._context = context
        self._method = method
        self._limits = limits
        self._open = True
        self._outgoing: deque[bytes] = deque()
        self._queued_bytes = 0
        self._waits_for_drain = False
        self._end: tuple[int, str, Metadata] | None = None
        self._wake = asyncio.Event()  # there is something to write
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._tell(method.start, cast("Call", self))

    # The response.

    def reply(self, parts: Sequence[Buffer], trailing_metadata: Metadata = ()) -> None:
        """Answer with one message and OK."""
        self.send(parts)
        self.finish(trailing_metadata=trailing_metadata)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one message. It is queued while the client reads slowly."""
        if not self._open:
            return
        message = b"".join(parts)
        if self.caller is not None:
            self.caller.sent(len(message))
        if self._method.max_send_bytes is not None and len(message) > self._method.max_send_bytes:
            self.finish(
                StatusCode.RESOURCE_EXHAUSTED,
                f"Sent message larger than max ({len(message)} vs. {self._method.max_send_bytes})",
            )
            return
        self._outgoing.append(message)
        self._queued_bytes += len(message)
        if self._queued_bytes > self._limits.send_high_bytes:
            self._waits_for_drain = True
        self._wake.set()

    @property
    def writable(self) -> bool:
        """Whether the client keeps up. When it does again, `on_drain` is called."""
        return self._open and not self._waits_for_drain

    def finish(
        self, code: int = StatusCode.OK, message: str = "", trailing_metadata: Metadata = ()
    ) -> None:
        """End the call with a status, after what was sent before."""
        if self._open:
            self._open = False
            self._end = (code, message, trailing_metadata)
            self._wake.set()

    def pause_receiving(self) -> None:
        """Read no more messages until `resume_receiving`."""
        self._may_read.clear()

    def resume_receiving(self) -> None:
        """Read again."""
        self._may_read.set()

    # What the listener does.

    async def read(self, end_of_stream: object) -> None:
        """Hand the client's messages to the service until there are no more."""
        unary = self._method.kind is Kind.UNARY
        only: bytes | None = None
        most = self._method.max_receive_bytes
        while True:
            await self._may_read.wait()
            message = await self._context.read()
            if message is end_of_stream:
                break
            if most is not None and len(message) > most:
                text = f"Received message larger than max ({len(message)} vs. {most})"
                self._break_off(StatusCode.RESOURCE_EXHAUSTED, text)
                return
            if not unary:
                self._tell(self.on_message, message)
            elif only is None:
                only = message
            else:
                text = "a unary call with a second message; send exactly one"
                self._break_off(StatusCode.INTERNAL, text)
                return
        if unary:
            if only is None:
                self._break_off(
                    StatusCode.INTERNAL, "a unary call without a message; send exactly one"
                )
                return
            self._tell(self.on_message, only)
        self._tell(self.on_half_close)

    async def write(self) -> tuple[int, str, Metadata]:
        """Write what the service sends; returns how it ended the call."""
        while True:
            while self._outgoing:
                message = self._outgoing.popleft()
                await self._context.write(message)
                self._queued_bytes -= len(message)
                if self._waits_for_drain and self._queued_bytes < self._limits.send_low_bytes:
                    self._waits_for_drain = False
                    self._tell(self.on_drain)
            if self._end is not None:
                return self._end
            self._wake.clear()
            await self._wake.wait()

    def cancel(self) -> None:
        """The call is over before the service ended it."""
        if self._open:
            self._open = False
            self.cancelled = True
            self._tell(self.on_cancel)

    def forget(self) -> None:
        """Let go of the service, which mostly holds this call."""
        self._open = False
        if self.holds_request and self.caller is not None:
            self.holds_request = False
            self.caller.end()
        self.on_message = self.on_half_close = self.on_cancel = self.on_drain = None

    def give_up(self, message: str) -> None:
        """Respond with UNAVAILABLE instead of the service, and notify it."""
        self._break_off(StatusCode.UNAVAILABLE, message)

    def _break_off(self, code: StatusCode, text: str) -> None:
        """End the call without the service, and notify it."""
        if self._open:
            self._end = (code, text, ())
            self.cancel()
            self._wake.set()

    def _tell(self, callback: Callable[..., None] | None, *arguments: Any) -> None:
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:  # a failure of the service ends this call and no other
            logger.exception("the gRPC service failed in %s", self.path)
            self.finish(StatusCode.INTERNAL, "the server failed to handle this call")


def _credentials(grpc: Any, tls: ServerTls) -> Any:
    """What encrypts the connections of a port, with the certificate of that moment."""
    used = tls.texts

    def configured(texts: PemTexts) -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(texts.key, texts.certificate)], root_certificates=texts.authorities
        )

    def changed() -> Any:
        """For each handshake, on a thread of grpcio's: None if nothing has changed."""
        nonlocal used
        if tls.texts is used:
            return None
        used = tls.texts
        return configured(used)

    return grpc.dynamic_ssl_server_credentials(
        configured(used), changed, require_client_authentication=tls.files.clients_certified
    )


def _import_grpc() -> Any:
    try:
        import grpc  # type: ignore[import-untyped]
        import grpc.aio  # type: ignore[import-untyped]
    except ImportError as error:
        raise Unavailable(
            f"--grpc-transport=grpcio needs the package grpcio ({error}); install it with "
            f"'pip install grpcio', or leave the option out"
        ) from None
    return grpc


def _channel_options(settings: GrpcSettings) -> list[tuple[str, int]]:
    limits, keepalive = settings.limits, settings.keepalive
    options = [
        ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
        ("grpc.max_metadata_size", limits.max_header_list_bytes),
        ("grpc.max_receive_message_length", limits.max_receive_message_bytes),
        ("grpc.max_send_message_length", min(limits.max_send_message_bytes, 2**31 - 1)),
        ("grpc.default_compression_level", _COMPRESSION[settings.compression]),
        ("grpc.keepalive_time_ms", keepalive.time_ms),
        ("grpc.keepalive_timeout_ms", keepalive.timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(keepalive.permit_without_calls)),
        ("grpc.http2.max_pings_without_data", keepalive.max_pings_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", keepalive.min_recv_ping_interval_ms),
        ("grpc.http2.max_ping_strikes", keepalive.max_ping_strikes),
    ]
    if keepalive.max_connection_age_ms:
        options.append(("grpc.max_connection_age_ms", keepalive.max_connection_age_ms))
    if keepalive.max_connection_age_grace_ms:
        grace = ("grpc.max_connection_age_grace_ms", keepalive.max_connection_age_grace_ms)
        options.append(grace)
    return options


def _address(host: str | None, port: int) -> str:
    host = host or "0.0.0.0"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _metadata(received: Any) -> list[tuple[str, MetadataValue]]:
    return [(key, value) for key, value in received or ()]


def _status(grpc: Any, code: int) -> Any:
    return next(status for status in grpc.StatusCode if status.value[0] == code)

"""The gRPC port of a server: its services and their transport, from the options.

start --> serving --stop_accepting--> open calls end --> closed
"""

from __future__ import annotations

import asyncio

from shoal.access.access import Access
from shoal.config.options import Options
from shoal.core.inbox import LoopInbox
from shoal.engine import Engine
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import LINGER_SECS
from shoal.frontends.grpc.grpcio_transport import GrpcioListener
from shoal.frontends.grpc.listener import GrpcListener
from shoal.frontends.grpc.service import GrpcOptions, GrpcService
from shoal.frontends.grpc.settings import CompressionLevel, GrpcLimits, GrpcSettings, KeepAlive
from shoal.frontends.shared_memory import SharedMemory
from shoal.frontends.tls import ServerTls


class GrpcPort:
    """One port. Its methods belong to the loop on which it was made."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: Options,
        memory: SharedMemory,
        clients: ClientLimits | None = None,
        access: Access | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """Nothing is opened yet. Raises a ShoalError for settings that cannot be."""
        self._service = GrpcService(engine, inbox, _service_options(options), memory, access)
        settings = _settings(options)
        self._listener: GrpcListener | GrpcioListener
        if options.grpc_transport == "grpcio":
            self._listener = GrpcioListener(self._service, settings)
        else:
            self._listener = GrpcListener(
                self._service,
                settings,
                clients=clients,
                access_log=access_log,
                after_batches=inbox.after_batches,
            )
        self._draining: asyncio.Future[bool] | None = None
        self._end_of_streams: asyncio.TimerHandle | None = None

    async def start(
        self, host: str, port: int, *, tls: ServerTls | None = None, reuse_port: bool = False
    ) -> int:
        """Listen, and return the port: with 0 the system chooses one.

        Raises OSError when the address is not available.
        """
        return await self._listener.start(host, port, tls=tls, reuse_port=reuse_port)

    async def start_unix(self, path: str, mode: int) -> None:
        """Listen on a Unix socket as well. Raises OSError as `start` does."""
        await self._listener.start_unix(path, mode)

    @property
    def open_connections(self) -> int:
        """How many clients are still connected; calls, where only those are known."""
        listener = self._listener
        return listener.streams if isinstance(listener, GrpcioListener) else listener.connections

    async def stop_accepting(self, timeout_secs: float) -> None:
        """Accept the clients that have connected, and no more; what is open has `timeout_secs` to
        end.

        Calls that are sent before their client knows are served. Streams get no more requests
        after a moment.
        """
        if self._draining is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_secs
            linger_secs = min(LINGER_SECS, timeout_secs)
            self._end_of_streams = loop.call_later(linger_secs, self._service.drain)
            await self._listener.stop_accepting()
            left_secs = max(0.0, deadline - loop.time())
            self._draining = asyncio.ensure_future(self._listener.drain(left_secs))

    async def give_up(self) -> None:
        """The time of `stop_accepting` is over: wait until open calls have their errors."""
        if self._draining is not None:
            await self._draining

    async def close(self) -> None:
        """Cut off what is still open and give everything back."""
        self._listener.abort_all()
        if self._end_of_streams is not None:
            self._end_of_streams.cancel()
        self._service.drain()
        if self._draining is not None:
            await self._draining
        self._service.close()


def _service_options(options: Options) -> GrpcOptions:
    return GrpcOptions(
        header_forward_pattern=options.grpc_header_forward_pattern,
        restricted_protocols=options.grpc_restrictions(),
        plans=options.plans,
        model_upload=options.allow_model_upload,
        max_request_bytes=options.grpc_max_request_bytes,
    )


def _settings(options: Options) -> GrpcSettings:
    return GrpcSettings(
        limits=GrpcLimits(
            max_inflated_bytes=options.grpc_max_request_bytes,
            max_buffered_bytes=options.max_buffered_bytes,
            write_stall_secs=options.grpc_write_timeout_secs,
        ),
        keepalive=KeepAlive(
            time_ms=options.grpc_keepalive_time,
            timeout_ms=options.grpc_keepalive_timeout,
            permit_without_calls=options.grpc_keepalive_permit_without_calls,
            max_pings_without_data=options.grpc_http2_max_pings_without_data,
            min_recv_ping_interval_ms=options.grpc_http2_min_recv_ping_interval_without_data,
            max_ping_strikes=options.grpc_http2_max_ping_strikes,
            max_connection_age_ms=options.grpc_max_connection_age,
            max_connection_age_grace_ms=options.grpc_max_connection_age_grace,
        ),
        compression=CompressionLevel(options.grpc_infer_response_compression_level),
    )

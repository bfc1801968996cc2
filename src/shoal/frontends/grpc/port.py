"""The gRPC port of a server: its services and their transport, from the options.

start --> serving --stop_accepting--> open calls end --> closed
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from shoal.config.options import Options
from shoal.core.inbox import LoopInbox
from shoal.engine import Engine
from shoal.errors import InvalidArgument
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.grpc.grpcio_transport import GrpcioListener, ssl_credentials
from shoal.frontends.grpc.listener import GrpcListener
from shoal.frontends.grpc.service import GrpcOptions, GrpcService
from shoal.frontends.grpc.settings import CompressionLevel, GrpcLimits, GrpcSettings, KeepAlive
from shoal.frontends.shared_memory import SharedMemory


class GrpcPort:
    """One port. Its methods belong to the loop on which it was made."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: Options,
        memory: SharedMemory,
        clients: ClientLimits | None = None,
    ) -> None:
        """Nothing is opened yet. Raises a ShoalError for settings that cannot be."""
        self._options = options
        self._service = GrpcService(engine, inbox, _service_options(options), memory)
        settings = _settings(options)
        self._listener: GrpcListener | GrpcioListener
        if options.grpc_transport == "grpcio":
            self._listener = GrpcioListener(self._service, settings)
        else:
            self._listener = GrpcListener(self._service, settings, clients=clients)
        self._draining: asyncio.Future[bool] | None = None

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen, and return the port: with 0 the system chooses one.

        Raises OSError when the address is not available and InvalidArgument when the files for
        TLS cannot be used.
        """
        options, listener = self._options, self._listener
        encrypted = options.grpc_use_ssl or options.grpc_use_ssl_mutual
        if isinstance(listener, GrpcioListener):
            credentials = _credentials(options) if encrypted else None
            return await listener.start(host, port, credentials=credentials, reuse_port=reuse_port)
        context = _ssl_context(options) if encrypted else None
        return await listener.start(host, port, ssl=context, reuse_port=reuse_port)

    @property
    def open_connections(self) -> int:
        """How many clients are still connected; calls, where only those are known."""
        listener = self._listener
        return listener.streams if isinstance(listener, GrpcioListener) else listener.connections

    def stop_accepting(self, timeout_secs: float) -> None:
        """Take no new connections and inferences; what is open has `timeout_secs` to end."""
        if self._draining is None:
            self._service.drain()
            self._draining = asyncio.ensure_future(self._listener.drain(timeout_secs))

    async def close(self) -> None:
        """Cut off what is still open and give everything back."""
        self._listener.abort_all()
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


def _ssl_context(options: Options) -> ssl.SSLContext:
    """TLS as our own transport takes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for flag, path in _pem_files(options).items():
        _read(flag, path)  # so that the error names the flag of a missing file
    try:
        context.load_cert_chain(options.grpc_server_cert, options.grpc_server_key)
        if options.grpc_root_cert:
            context.load_verify_locations(options.grpc_root_cert)
    except ssl.SSLError as error:
        files = ", ".join(_pem_files(options))
        raise InvalidArgument(f"the files of {files} do not go together: {error}") from None
    if options.grpc_use_ssl_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _credentials(options: Options) -> object:
    """TLS as grpcio takes it."""
    texts = {flag: _read(flag, path) for flag, path in _pem_files(options).items()}
    return ssl_credentials(
        texts["--grpc-server-key"],
        texts["--grpc-server-cert"],
        texts.get("--grpc-root-cert"),
        mutual=options.grpc_use_ssl_mutual,
    )


def _pem_files(options: Options) -> dict[str, str]:
    """The files TLS needs, by flag. Clients' certificates need a root to be checked against."""
    files = {
        "--grpc-server-cert": options.grpc_server_cert,
        "--grpc-server-key": options.grpc_server_key,
        "--grpc-root-cert": options.grpc_root_cert,
    }
    if not options.grpc_use_ssl_mutual and not options.grpc_root_cert:
        del files["--grpc-root-cert"]
    return files


def _read(flag: str, path: str) -> bytes:
    if not path:
        raise InvalidArgument(f"TLS for gRPC needs {flag}: name a PEM file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{flag}={path} cannot be read: {error.strerror}") from None

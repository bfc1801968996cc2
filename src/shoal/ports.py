"""The ports of a server: listeners of every protocol, and how they close without losing a request.

listen ─▶ serve ─▶ announce_stop: still serving ─▶ finish_requests: no new connections,
                   what was received is answered ─▶ close
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal import settings
from shoal.config.options import Options
from shoal.core import buffers
from shoal.core.buffers import BufferPool
from shoal.core.inbox import LoopInbox
from shoal.core.readiness import Readiness
from shoal.engine import Engine
from shoal.errors import Unavailable
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import LAST_RESPONSES_SECS, LINGER_SECS
from shoal.frontends.clouds import sagemaker
from shoal.frontends.clouds.rewriting import RewritingApplication
from shoal.frontends.clouds.sagemaker import SageMakerApplication
from shoal.frontends.clouds.sagemaker_models import SageMakerModels
from shoal.frontends.clouds.vertex_ai import VertexAiApplication
from shoal.frontends.console.state import Console
from shoal.frontends.grpc.port import GrpcPort
from shoal.frontends.http import health_port
from shoal.frontends.http.application import Application
from shoal.frontends.http.health_port import HealthApplication
from shoal.frontends.http.listener import HttpListener
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.metrics import MetricsApplication
from shoal.frontends.opening import open_port, open_unix
from shoal.frontends.shared_limits import READ_AHEAD_BYTES
from shoal.frontends.shared_memory import SharedMemory
from shoal.frontends.shared_names import SharedNames
from shoal.frontends.tcp import TcpListener
from shoal.frontends.tls import ServerTls
from shoal.link.counters import SharedCounters
from shoal.logs import Log
from shoal.reloads import Reloads
from shoal.serving import in_thread
from shoal.statistics.server import ServerReading

logger = logging.getLogger(__name__)

_LAST_SCRAPE_SECS = (
    1.0  # for connections to the metrics and health ports, after all other parts have stopped
)
_POLL_SECS = 0.05


class Ports:
    """The listeners of one process. Its methods belong to the thread of one event loop."""

    def __init__(
        self,
        options: Options,
        engine: Engine,
        *,
        reloads: Reloads,
        log: Log | None,
        render_metrics: Callable[[], bytes] | None,
        console: Console | None,
        pool: BufferPool = buffers.pool,
        names: SharedNames | None = None,
        counters: SharedCounters | None = None,
    ) -> None:
        """Opens and reads nothing yet. Raises InvalidArgument for invalid settings. Large requests
        are received into memory of `pool`. `names` and `counters` are those that all front ends
        share, where there are several."""
        self.options = options
        self.engine = engine
        self.reloads = reloads
        self._log = log
        self._render_metrics = render_metrics
        self._console = console
        self.access_log: AccessLog | None = None
        self._keys = settings.key_files(options, counters)
        self.access = self._keys.access if self._keys is not None else None
        self._clients = settings.client_limits(options, pool, counters)
        self._http_options = settings.http_options(options)
        self.memory = SharedMemory(
            allowed=options.client_shared_memory,
            most_input_bytes=options.http_max_body_size,
            most_ahead_bytes=options.max_buffered_bytes,
            names=names,
            read_ahead=None if counters is None else counters.of_server(READ_AHEAD_BYTES),
        )
        self._names = names
        self.application: Application | None = None  # of the HTTP port
        self._applications: list[Application] = []
        self.http: HttpListener | None = None
        self._clouds: dict[str, HttpListener] = {}  # the ports for platforms, by protocol
        self._vertex_ai: VertexAiApplication | None = None
        self.grpc: GrpcPort | None = None
        self.tcp: TcpListener | None = None
        self._metrics: HttpListener | None = None
        self._health: HttpListener | None = None
        self.http_port = 0  # the actual ports, once it listens
        self.grpc_port = 0
        self.sagemaker_port = 0
        self.vertex_ai_port = 0
        self.tcp_port = 0
        self.metrics_port = 0
        self.health_port = 0

    async def listen(self, inbox: LoopInbox) -> None:
        """Open the ports. From here on the server is live.

        Raises Unavailable for a port or socket that cannot be had, InvalidArgument for files of
        TLS that cannot be used.
        """
        options = self.options
        if self._keys is not None:
            self._keys.watch(self.reloads.add, partial(_post, asyncio.get_running_loop()))
        clients = self._clients
        self.access_log = settings.access_log(options)
        self.reloads.add("the log files", self._reopen_logs)
        https = settings.https(options)
        self._reload_tls("the certificate of --https-cert", https)
        if options.allow_http:
            await self._listen_for_http(inbox, https, clients)
        if options.allow_grpc:
            await self._listen_for_grpc(inbox, clients)
        if options.allow_sagemaker:
            await self._listen_for_sagemaker(inbox, clients)
        if options.allow_vertex_ai:
            await self._listen_for_vertex_ai(inbox, clients)
        if options.tcp_port >= 0:
            self.tcp = TcpListener(
                self.engine,
                settings.tcp_limits(options),
                clients,
                self.access,
                self.access_log,
            )
            address = (options.tcp_address, options.tcp_port)
            self.tcp_port = await open_port("tcp", address, self.tcp.start)
        if self._render_metrics is not None:
            metrics = MetricsApplication(self._render_metrics, self.access)
            self._metrics = HttpListener(metrics.handle, settings.http_limits(options))
            address = (options.metrics_listen_address, options.metrics_port)
            self.metrics_port = await open_port("metrics", address, self._metrics.start, tls=https)
        if options.health_port >= 0:
            self._health = HttpListener(HealthApplication(self.engine).handle, health_port.LIMITS)
            address = (options.health_listen_address, options.health_port)
            self.health_port = await open_port("health", address, self._health.start)

    async def _listen_for_http(
        self, inbox: LoopInbox, tls: ServerTls | None, clients: ClientLimits
    ) -> None:
        options = self.options
        application = self.application = self._new_application(
            inbox, self._http_options, self._console
        )
        listener = self.http = HttpListener(
            application.handle,
            settings.http_limits(options),
            application.fast_path,
            clients,
            application.check_head,
            self.access_log,
        )
        if options.opens_http_port:
            self.http_port = await open_port(
                "http",
                (options.http_address, options.http_port),
                listener.start,
                tls=tls,
                reuse_port=options.reuse_http_port,
            )
        if options.http_unix_socket:
            mode = int(options.unix_socket_mode, 8)
            await open_unix("http", options.http_unix_socket, mode, listener.start_unix)

    def new_application(self, inbox: LoopInbox) -> Application:
        """An application for requests that another server has received."""
        return self._new_application(inbox, self._http_options, self._console)

    def _new_application(
        self, inbox: LoopInbox, options: HttpOptions, console: Console | None = None
    ) -> Application:
        """An application for one port of HTTP."""
        application = Application(
            self.engine,
            inbox,
            options,
            self._render_metrics,
            self.memory,
            console,
            self.access,
        )
        self._applications.append(application)
        return application

    async def _listen_for_sagemaker(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        form = replace(self._http_options, length_type=sagemaker.BINARY_TYPE.encode())
        application = SageMakerApplication(
            self._new_application(inbox, form),
            SageMakerModels(self.engine, self._names),
            settings.sagemaker(options),
        )
        address = (options.sagemaker_address, options.sagemaker_port)
        self.sagemaker_port = await self._open_cloud("sagemaker", address, application, clients)

    async def _listen_for_vertex_ai(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        application = self._vertex_ai = VertexAiApplication(
            self._new_application(inbox, self._http_options), settings.vertex_ai(options)
        )
        address = (options.vertex_ai_address, options.vertex_ai_port)
        self.vertex_ai_port = await self._open_cloud("vertex-ai", address, application, clients)

    async def _open_cloud(
        self,
        name: str,
        address: tuple[str, int],
        application: RewritingApplication,
        clients: ClientLimits,
    ) -> int:
        """Listen for a platform, which speaks plain HTTP; returns the port."""
        own = application.application
        listener = self._clouds[name] = HttpListener(
            application.handle,
            settings.http_limits(self.options),
            own.fast_path,
            clients,
            own.check_head,
            self.access_log,
            application.rewrite,
        )
        return await open_port(name, address, listener.start)

    async def _listen_for_grpc(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        tls = settings.grpc_tls(options)
        self._reload_tls("the certificate of --grpc-server-cert", tls)
        port = self.grpc = GrpcPort(
            self.engine, inbox, options, self.memory, clients, self.access, self.access_log
        )
        if options.opens_grpc_port:
            self.grpc_port = await open_port(
                "grpc",
                (options.grpc_address, options.grpc_port),
                port.start,
                tls=tls,
                reuse_port=options.reuse_grpc_port,
            )
        if options.grpc_unix_socket:
            mode = int(options.unix_socket_mode, 8)
            await open_unix("grpc", options.grpc_unix_socket, mode, port.start_unix)

    def _reopen_logs(self) -> None:
        """Continue in new log files, if the old ones were renamed."""
        if self._log is not None:
            try:
                self._log.reopen()
            except OSError as error:
                raise Unavailable(f"its file cannot be opened: {error}") from None
        if self.access_log is not None:
            self.access_log.reopen()

    def _reload_tls(self, name: str, tls: ServerTls | None) -> None:
        if tls is not None:
            self.reloads.add(name, tls.reload, tls.files.paths)

    def models_loaded(self, index: Sequence[Mapping[str, str]]) -> None:
        """The start-up models have been loaded; `index` are all models. InvalidArgument if one is
        missing that a platform needs."""
        if self._vertex_ai is not None:
            self._vertex_ai.use_model(settings.vertex_ai_model(self.options, index))

    def log_services(self) -> None:
        """Log where requests are served, in the words that scripts for Triton wait for."""
        options = self.options
        for service, address, port in (
            ("GRPCInferenceService", options.grpc_address, self.grpc_port),
            ("HTTPService", options.http_address, self.http_port),
            ("Sagemaker HTTPService", options.sagemaker_address, self.sagemaker_port),
            ("Vertex AI HTTPService", options.vertex_ai_address, self.vertex_ai_port),
            ("Metrics Service", options.metrics_listen_address, self.metrics_port),
        ):
            if port:
                logger.info("Started %s at %s:%d", service, address, port)

    # ---- stop

    async def announce_stop(self, drain_secs: float) -> None:
        """Serve for `drain_secs` until load balancers have noticed that the server is not ready."""
        for listener in self._http_listeners:
            listener.announce_close()
        if drain_secs:
            logger.info("no longer ready; serving for %g more seconds", drain_secs)
            await asyncio.sleep(drain_secs)

    async def finish_requests(self, deadline: float, in_flight: Callable[[], int]) -> bool:
        """Accept no new connections and wait for requests in flight, logging how many."""
        loop = asyncio.get_running_loop()
        linger_secs = min(LINGER_SECS, deadline - loop.time())
        stops: list[Coroutine[Any, Any, None]] = []
        if self.grpc is not None:
            stops.append(self.grpc.stop_accepting(max(0.0, deadline - loop.time())))
        stops += [listener.stop_accepting(linger_secs) for listener in self._http_listeners]
        if self.tcp is not None:
            stops.append(self.tcp.stop_accepting(linger_secs))
        await asyncio.gather(*stops)
        next_log = loop.time()
        while True:
            left_secs = max(0.0, deadline - loop.time())
            listeners = self._http_listeners
            poll_secs = min(_POLL_SECS, left_secs)
            await asyncio.gather(*(listener.drain(poll_secs) for listener in listeners))
            connections = sum(listener.open_connections for listener in listeners)
            if self.grpc is not None:
                connections += self.grpc.open_connections
            if self.tcp is not None:
                connections += self.tcp.open_connections
            requests = in_flight()
            if not connections and not requests:
                return True
            if not left_secs:
                return False
            if loop.time() >= next_log:
                next_log += 1.0
                logger.info(
                    "waiting at most %.0f s for %d inferences in flight and %d open connections",
                    left_secs,
                    requests,
                    connections,
                )
            if not any(listener.open_connections for listener in listeners):
                await asyncio.sleep(_POLL_SECS)

    async def give_up(self) -> None:
        """The exit timeout has passed: answer what is left with an error."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_RESPONSES_SECS
        listeners: list[HttpListener | TcpListener] = [*self._http_listeners]
        listeners += [] if self.tcp is None else [self.tcp]
        for listener in listeners:
            listener.give_up()
        if self.grpc is not None:
            await self.grpc.give_up()
        while loop.time() < deadline:
            if not any(each.open_connections for each in listeners):
                return
            await asyncio.sleep(_POLL_SECS)

    async def close(self) -> None:
        """Close all connections, those of the metrics and health ports last."""
        for http in self._http_listeners:
            http.abort_all()
        if self.grpc is not None:
            await self.grpc.close()
        if self.tcp is not None:
            self.tcp.abort_all()
        last = [each for each in (self._metrics, self._health) if each is not None]
        await asyncio.gather(*(_close_last(listener) for listener in last))
        for application in self._applications:
            application.close()
        if self.access_log is not None:
            await in_thread(self.access_log.close)

    @property
    def _http_listeners(self) -> list[HttpListener]:
        """Those that serve inference."""
        own = [] if self.http is None else [self.http]
        return [*own, *self._clouds.values()]

    def read(self) -> ServerReading:
        """What the metrics show of the server itself; any thread may call it."""
        return self.reading(self.engine.readiness())

    def reading(self, readiness: Readiness) -> ServerReading:
        """As `read`, without asking the engine."""
        listeners = {
            "http": self.http,
            "grpc": self.grpc,
            "tcp": self.tcp,
            **self._clouds,
        }
        connections, memory = self._clients.connections, self._clients.memory
        return ServerReading(
            ready=readiness.ready,
            warnings=sum(not problem.blocks for problem in readiness.problems),
            connections={
                protocol: listener.open_connections
                for protocol, listener in listeners.items()
                if listener is not None
            },
            connections_refused=connections.refused,
            max_connections=connections.max_connections,
            buffered_bytes=memory.used_bytes(),
            max_buffered_bytes=memory.max_bytes,
        )


# ---- helpers


async def _close_last(listener: HttpListener) -> None:
    await listener.stop_accepting()
    await listener.drain(_LAST_SCRAPE_SECS)
    listener.abort_all()


def _post(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run `work` on the loop soon, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(work)

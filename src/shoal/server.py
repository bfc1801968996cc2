"""The composition root: builds every part from the options, starts and stops them in order.

    listen ─▶ load ─▶ ready ─▶ stop: not ready, still serving ─▶ no new connections
                                     ─▶ what was received is answered ─▶ unload

The ports are open before models load: a health probe gets "live, not ready" until they are loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from shoal import settings
from shoal.backends.registry import BackendRegistry
from shoal.config.options import Options
from shoal.core.inbox import LoopInbox
from shoal.engine.local import LocalEngine
from shoal.errors import Internal, Unavailable
from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import LAST_RESPONSES_SECS, LINGER_SECS
from shoal.frontends.clouds import sagemaker
from shoal.frontends.clouds.rewriting import RewritingApplication
from shoal.frontends.clouds.sagemaker import SageMakerApplication
from shoal.frontends.clouds.sagemaker_models import SageMakerModels
from shoal.frontends.clouds.vertex_ai import VertexAiApplication
from shoal.frontends.console.state import ConsoleState
from shoal.frontends.grpc.port import GrpcPort
from shoal.frontends.http import health_port
from shoal.frontends.http.application import Application
from shoal.frontends.http.health_port import HealthApplication
from shoal.frontends.http.listener import HttpListener
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.metrics import MetricsApplication
from shoal.frontends.opening import open_port, open_unix
from shoal.frontends.shared_memory import SharedMemory
from shoal.frontends.tcp import TcpListener
from shoal.frontends.tls import ServerTls
from shoal.instance import device
from shoal.instance.health import abandoned_instances
from shoal.instance.inline import LoopHandle
from shoal.logs import Log
from shoal.reloads import Reloads
from shoal.repository import memory
from shoal.repository.repository import ModelRepository
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.prometheus import MetricsRenderer
from shoal.statistics.server import ServerReading
from shoal.statistics.tracer import Tracer
from shoal.tasks.workers import Workers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LAST_SCRAPE_SECS = (
    1.0  # for connections to the metrics and health ports, after all other parts have stopped
)
_POLL_SECS = 0.05


class ModelsFailed(Internal):
    """Start-up models that could not be loaded, and the reasons."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("failed to load all models")
        self.reasons = reasons

    def __str__(self) -> str:
        return f"{self.message}: {'; '.join(self.reasons)}"


class Server:
    """One server in this process. Its methods belong to the thread of one event loop."""

    def __init__(
        self,
        options: Options,
        *,
        functions: Sequence[Any] = (),
        backends: BackendRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        """Opens and reads nothing yet. Raises InvalidArgument for invalid settings.

        `functions` with `@shoal.model` are served in addition to the models of the options.
        `backends` defaults to those that are installed; tests pass others. Clients may change the
        settings of `log`; without one, such requests have no effect.
        """
        self.options = options
        self.reloads = Reloads()
        self._log = log
        self._access_log: AccessLog | None = None
        self._loop = LoopHandle(polls_for_lone_client=device.available_cores() > 1)
        custom = CustomMetrics()
        self._cache = settings.cache_store(options)
        self._making_workers = threading.Lock()  # guards _workers; models load on threads
        self._workers: Workers | None = None
        self.repository = ModelRepository(
            settings.repository_settings(
                options,
                functions,
                backends or BackendRegistry(directory=options.backend_directory),
                self._loop,
                custom,
                self._cache,
                self._task_workers,
            )
        )
        self._tracer = Tracer(options.trace_options())
        self.engine = LocalEngine(
            self.repository,
            server_id=options.id,
            strict_readiness=options.strict_readiness,
            tracer=self._tracer,
            log=log,
        )
        self._keys = settings.key_files(options)
        self._access = self._keys.access if self._keys is not None else None
        self._clients = settings.client_limits(options)
        self._http_options = settings.http_options(options)
        self._custom_metrics = custom
        self._render_metrics = self.metrics.render if options.allow_metrics else None
        self._memory = SharedMemory(
            allowed=options.client_shared_memory,
            most_input_bytes=options.http_max_body_size,
            most_ahead_bytes=options.max_buffered_bytes,
        )
        self._application: Application | None = None  # of the HTTP port
        self._applications: list[Application] = []
        self._http: HttpListener | None = None
        self._clouds: dict[str, HttpListener] = {}  # the ports for platforms, by protocol
        self._vertex_ai: VertexAiApplication | None = None
        self._grpc: GrpcPort | None = None
        self._tcp: TcpListener | None = None
        self._metrics: HttpListener | None = None
        self._health: HttpListener | None = None
        self._loading: asyncio.Future[dict[str, str]] | None = None
        self._started = False  # whether clients may have seen the server ready
        self.http_port = 0  # the actual ports, once it listens
        self.grpc_port = 0
        self.sagemaker_port = 0
        self.vertex_ai_port = 0
        self.tcp_port = 0
        self.metrics_port = 0
        self.health_port = 0
        self.left_behind = False  # whether threads are still busy after `stop`

    @cached_property
    def metrics(self) -> MetricsRenderer:
        """The text for Prometheus; any thread may render it, whether or not there is a port."""
        return MetricsRenderer(
            self.engine.model_statistics,
            settings.metrics_settings(self.options),
            custom=self._custom_metrics,
            cache=self._cache.read if self._cache is not None else None,
            keys=self._access.read if self._access is not None else None,
            server=self._read,
            repositories=self.repository.unreadable,
        )

    # ---- start

    async def start(self) -> None:
        """Listen, then load; returns when the start-up models have been loaded or tried.

        Raises a ShoalError for a missing repository, a port that cannot be opened and, if the
        option --exit-on-error is set, for models that fail. Call `stop` in any case.
        """
        settings.check_repositories(self.options.model_repository)
        await self.listen()
        await self.load()

    async def listen(self) -> None:
        """Open the ports. From here on the server is live.

        Raises Unavailable for a port or socket that cannot be had, InvalidArgument for files of
        TLS that cannot be used.
        """
        options = self.options
        loop = asyncio.get_running_loop()
        self._loop.bind(loop)
        inbox = LoopInbox(loop, self._loop.after_reading, self._loop.after_batches)
        if self._keys is not None:
            self._keys.watch(self.reloads.add, partial(_post, loop))
        clients = self._clients
        self._access_log = settings.access_log(options)
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
            self._tcp = TcpListener(
                self.engine,
                settings.tcp_limits(options),
                clients,
                self._access,
                self._access_log,
            )
            address = (options.tcp_address, options.tcp_port)
            self.tcp_port = await open_port("tcp", address, self._tcp.start)
        if self._render_metrics is not None:
            metrics = MetricsApplication(self._render_metrics, self._access)
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
        console = settings.console(self.engine, options)
        application = self._application = self._serving(inbox, self._http_options, console)
        listener = self._http = HttpListener(
            application.handle,
            settings.http_limits(options),
            application.fast_path,
            clients,
            application.check_head,
            self._access_log,
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

    def _serving(
        self, inbox: LoopInbox, options: HttpOptions, console: ConsoleState | None = None
    ) -> Application:
        """An application for one port of HTTP."""
        application = Application(
            self.engine,
            inbox,
            options,
            self._render_metrics,
            self._memory,
            console,
            self._access,
        )
        self._applications.append(application)
        return application

    async def _listen_for_sagemaker(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        form = replace(self._http_options, length_type=sagemaker.BINARY_TYPE.encode())
        application = SageMakerApplication(
            self._serving(inbox, form), SageMakerModels(self.engine), settings.sagemaker(options)
        )
        address = (options.sagemaker_address, options.sagemaker_port)
        self.sagemaker_port = await self._open_cloud("sagemaker", address, application, clients)

    async def _listen_for_vertex_ai(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        application = self._vertex_ai = VertexAiApplication(
            self._serving(inbox, self._http_options), settings.vertex_ai(options)
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
            self._access_log,
            application.rewrite,
        )
        return await open_port(name, address, listener.start)

    async def _listen_for_grpc(self, inbox: LoopInbox, clients: ClientLimits) -> None:
        options = self.options
        tls = settings.grpc_tls(options)
        self._reload_tls("the certificate of --grpc-server-cert", tls)
        port = self._grpc = GrpcPort(
            self.engine, inbox, options, self._memory, clients, self._access, self._access_log
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
        if self._access_log is not None:
            self._access_log.reopen()

    def _reload_tls(self, name: str, tls: ServerTls | None) -> None:
        if tls is not None:
            self.reloads.add(name, tls.reload, tls.files.paths)

    async def load(self) -> None:
        """Load the start-up models; after that the server is ready if the models are."""
        if self._cache is not None:
            await _in_thread(self._cache.check)
        self._loading = asyncio.ensure_future(_in_thread(self.repository.start))
        # Cancelling this only stops the waiting: loads cannot be interrupted.
        failures = await asyncio.shield(self._loading)
        index = await _in_thread(self.engine.index)
        _log_models(index)
        reasons = [_one_line(failures[name]) for name in sorted(failures)]
        if reasons and self.options.exit_on_error:
            raise ModelsFailed(reasons)
        for reason in reasons:
            logger.error("%s", reason)
        if self._vertex_ai is not None:
            lazy = self.options.model_control_mode == "lazy"
            served = {row["name"] for row in index if lazy or row.get("state") == "READY"}
            self._vertex_ai.models_loaded(served)
        memory.exclude_started()
        self.engine.started()
        self._started = True
        self._log_services()
        logger.info("the server is %s", "ready" if self.engine.ready() else "up, but not ready")

    def _log_services(self) -> None:
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

    async def stop(self) -> bool:
        """Shut down in order, however far `start` got; a second call does nothing.

        False if requests or unloading took longer than the exit timeout; the requests that were
        still running then got an error.
        """
        await self._announce_stop()
        deadline = asyncio.get_running_loop().time() + self.options.exit_timeout_secs
        clean = await self._finish_requests(deadline)
        if clean and self._loading is not None and not self._loading.done():
            logger.info("models are still loading; exiting without waiting for them")
            self.left_behind = True
        elif clean:
            clean = await self._unload(deadline)
        else:
            await self._give_up()
        await self._close_listeners()
        if not clean:
            logger.error("the exit timeout of %d s has passed", self.options.exit_timeout_secs)
            self.left_behind = True
        hanging = abandoned_instances()
        if hanging:
            names = ", ".join(hanging)
            logger.warning("exiting without waiting for executions that hang: %s", names)
            self.left_behind = True
        return clean

    async def _announce_stop(self) -> None:
        """Report "not ready", and serve for `--drain-secs` until load balancers have noticed."""
        self.engine.begin_exit()
        for listener in self._http_listeners:
            listener.announce_close()
        if self._started and self.options.drain_secs:
            logger.info("no longer ready; serving for %g more seconds", self.options.drain_secs)
            await asyncio.sleep(self.options.drain_secs)

    async def _finish_requests(self, deadline: float) -> bool:
        """Accept no new connections and wait for requests in flight, logging how many."""
        loop = asyncio.get_running_loop()
        linger_secs = min(LINGER_SECS, deadline - loop.time())
        stops: list[Coroutine[Any, Any, None]] = []
        if self._grpc is not None:
            stops.append(self._grpc.stop_accepting(max(0.0, deadline - loop.time())))
        stops += [listener.stop_accepting(linger_secs) for listener in self._http_listeners]
        if self._tcp is not None:
            stops.append(self._tcp.stop_accepting(linger_secs))
        await asyncio.gather(*stops)
        next_log = loop.time()
        while True:
            left_secs = max(0.0, deadline - loop.time())
            listeners = self._http_listeners
            poll_secs = min(_POLL_SECS, left_secs)
            await asyncio.gather(*(listener.drain(poll_secs) for listener in listeners))
            connections = sum(listener.open_connections for listener in listeners)
            if self._grpc is not None:
                connections += self._grpc.open_connections
            if self._tcp is not None:
                connections += self._tcp.open_connections
            requests = self.engine.in_flight()
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

    async def _give_up(self) -> None:
        """The exit timeout has passed: answer what is left with an error."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_RESPONSES_SECS
        listeners: list[HttpListener | TcpListener] = [*self._http_listeners]
        listeners += [] if self._tcp is None else [self._tcp]
        for listener in listeners:
            listener.give_up()
        if self._grpc is not None:
            await self._grpc.give_up()
        while loop.time() < deadline:
            if not any(each.open_connections for each in listeners):
                return
            await asyncio.sleep(_POLL_SECS)

    async def _unload(self, deadline: float) -> bool:
        left_secs = max(0.0, deadline - asyncio.get_running_loop().time())
        unloading = asyncio.ensure_future(_in_thread(self.repository.stop))
        done, _ = await asyncio.wait({unloading}, timeout=left_secs)
        if done:
            unloading.result()
        return bool(done)

    async def _close_listeners(self) -> None:
        """Close all connections, those of the metrics and health ports last."""
        self.reloads.close()
        self._loop.release()
        for http in self._http_listeners:
            http.abort_all()
        if self._grpc is not None:
            await self._grpc.close()
        if self._tcp is not None:
            self._tcp.abort_all()
        last = [each for each in (self._metrics, self._health) if each is not None]
        await asyncio.gather(*(_close_last(listener) for listener in last))
        for application in self._applications:
            application.close()
        if self._workers is not None:
            self._workers.close()
        if self._access_log is not None:
            await _in_thread(self._access_log.close)
        await _in_thread(self._tracer.close)
        if self._cache is not None:
            await _in_thread(self._cache.close)

    @property
    def _http_listeners(self) -> list[HttpListener]:
        """Those that serve inference."""
        own = [] if self._http is None else [self._http]
        return [*own, *self._clouds.values()]

    def _read(self) -> ServerReading:
        """What the metrics show of the server itself; any thread may call it."""
        readiness = self.engine.readiness()
        listeners = {
            "http": self._http,
            "grpc": self._grpc,
            "tcp": self._tcp,
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

    def _task_workers(self) -> Workers:
        """The worker threads of tasks, created for the first model with a task; thread-safe."""
        with self._making_workers:
            if self._workers is None:
                self._workers = Workers(device.available_cores())
            return self._workers


# ---- helpers


async def _close_last(listener: HttpListener) -> None:
    await listener.stop_accepting()
    await listener.drain(_LAST_SCRAPE_SECS)
    listener.abort_all()


async def _in_thread(function: Callable[[], Result]) -> Result:
    """Run a blocking function in a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not outcome.done():  # else the waiting task was cancelled
            set_outcome()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised in the awaiting task
            failure = error
            set_outcome: Callable[[], None] = lambda: outcome.set_exception(failure)  # noqa: E731
        else:
            set_outcome = lambda: outcome.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=work, name=f"shoal-{function.__name__}", daemon=True).start()
    return await outcome


def _post(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run `work` on the loop soon, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


def _log_models(index: Sequence[dict[str, str]]) -> None:
    """Log the start-up table: each model that was loaded or failed, with its status."""
    rows = [("model", "version", "status")]
    for row in index:
        if "state" in row:  # others are in the repository, but were not requested
            reason = f": {_one_line(row['reason'])}" if row.get("reason") else ""
            rows.append((row["name"], row.get("version", "-"), row["state"] + reason))
    if len(rows) == 1:
        logger.info("no model is loaded")
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    table = [f"  {name:<{widths[0]}}  {v:<{widths[1]}}  {status}" for name, v, status in rows]
    logger.info("models after start-up", extra={"table": "\n".join(table)})


def _one_line(text: str) -> str:
    return " ".join(text.split())

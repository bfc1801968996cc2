"""A server inside a program, a notebook or a test.

    with shoal.Server([double], http_port=8000) as server:
        server.infer("double", {"x": [[1, 2, 3]]})

    caller's thread --start, infer, stop--> Server --> a thread with its own event loop

It does not run on the caller's thread, so a notebook, which has its own event loop, can start one,
and several may run in one process. By default it listens on free ports of the loopback interface.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from shoal import settings as server_settings
from shoal.config.options import Options
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument, Unavailable
from shoal.frontends.access_log import AccessLog
from shoal.frontends.http.application import Application
from shoal.inprocess import control, inference, keywords, notebook
from shoal.inprocess.addresses import Addresses
from shoal.inprocess.loop import LoopThread
from shoal.inprocess.methods import blocking, blocking_infer, blocking_stream
from shoal.logs import Log
from shoal.ports import Ports
from shoal.server import Render
from shoal.server import Server as LoopServer

logger = logging.getLogger(__name__)

_LOG_OPTIONS = {
    "log_verbose",
    "log_info",
    "log_warning",
    "log_error",
    "log_format",
    "log_file",
}


class Server(Addresses):
    """One server of this process. Any thread may call any method."""

    def __init__(self, *models: Any, options: Options | None = None, **settings: Any) -> None:
        """`models` are folders, Python files and functions with `@shoal.model`, or lists of these.

        `settings` are the options of `shoal serve` with underscores (`http_port=8000`); or give
        them as `options`. Nothing is opened or read yet. Raises InvalidArgument.
        """
        self._requested, self._functions = keywords.read(models, options, settings)
        self._changing = threading.RLock()  # serialises start and stop; guards the three below
        self._loop: LoopThread | None = None
        self._server: LoopServer | None = None
        self._log: Log | None = None
        self._stopped = threading.Event()  # set while it does not run
        self._stopped.set()

    # ---- start and stop

    def start(self) -> Server:
        """Listen and load; returns itself when the models are ready.

        Raises a ShoalError for a port in use, a missing folder or a model that fails to load;
        nothing runs then.
        """
        with self._changing:
            if self._server is not None:
                raise InvalidArgument("this server is already running")
            self._log = self._opened_log()
            for line in self._requested.warnings():
                logger.warning("%s", line)
            try:
                server = LoopServer(self._requested, functions=self._functions, log=self._log)
                self._server, self._loop = server, LoopThread("shoal-server")
                self._stopped.clear()
                with notebook.loading_progress(server.engine.index):
                    self._loop.run(server.start())
            except BaseException:
                self.stop()
                raise
        return self

    def _opened_log(self) -> Log | None:
        """The log of the server's modules, if an option of the log was given."""
        if not self._requested.given & _LOG_OPTIONS:
            return None
        log = server_settings.open_log(self._requested)
        log.install(logging.getLogger("shoal"))
        return log

    def stop(self) -> bool:
        """Finish the requests in flight, unload and close. Does nothing if it does not run.

        False if that took longer than the exit time-out and requests were aborted.
        """
        with self._changing:
            server, loop = self._server, self._loop
            clean = True
            if server is not None and loop is not None:
                clean = loop.run(server.stop()) and not server.left_behind
                if clean:  # otherwise threads still run; they end with the process
                    loop.close()
            self._server = self._loop = None
            if self._log is not None:
                self._log.close()
                self._log = None
            self._stopped.set()
            return clean

    def wait(self) -> None:
        """Serve until Ctrl-C, or until another thread stops it. It has stopped on return."""
        with contextlib.suppress(KeyboardInterrupt):
            self._stopped.wait()
        self.stop()

    def __enter__(self) -> Server:  # noqa: PYI034 - Python 3.10 has no Self
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        """Whether it runs, and where."""
        if self._server is None:
            return "<shoal.Server, not running>"
        where = self.url if self._requested.allow_http else "no HTTP port"
        return f"<shoal.Server, {'ready' if self.ready else 'not ready'}, {where}>"

    def _repr_html_(self) -> str:
        """Its models as a table, for notebooks."""
        server = self._server
        if server is None:
            return notebook.table("Shoal, not running", (), ())
        rows = notebook.model_rows(server.engine.index(), server.engine.statistics())
        links = (self.url,) if self._requested.allow_http else ()
        return notebook.table(f"Shoal, {'ready' if self.ready else 'not ready'}", links, rows)

    # ---- inference

    infer = blocking_infer(inference.prepare)
    stream = blocking_stream(inference.prepare)

    # ---- status

    @property
    def live(self) -> bool:
        """Whether it runs."""
        return self._server is not None

    @property
    def ready(self) -> bool:
        """Whether it runs and all its models are ready; `problems` has the reasons."""
        server = self._server
        return server is not None and server.engine.ready()

    problems = blocking(control.problems)
    model_ready = blocking(control.model_ready)
    server_metadata = blocking(control.server_metadata)
    metadata = blocking(control.metadata)
    config = blocking(control.config)
    statistics = blocking(control.statistics)
    explain = blocking(control.explain)

    def metrics(self) -> str:
        """The metrics of the server and its models, as Prometheus scrapes them."""
        return self._running().metrics.render().decode()

    # ---- the repositories

    index = blocking(control.index)
    load = blocking(control.load)
    unload = blocking(control.unload)
    register_repository = blocking(control.register_repository)
    unregister_repository = blocking(control.unregister_repository)
    poll_repositories = blocking(control.poll_repositories)

    # ---- settings

    trace_settings = blocking(control.trace_settings)
    log_settings = blocking(control.log_settings)

    # ---- ports that are opened later

    def _open_ports(self, settings: Mapping[str, Any], render: Render | None) -> Ports:
        """Open more ports, with these options instead of the server's. Raises as `start`."""
        server = self._running()
        options = dataclasses.replace(server.options, **settings)
        assert self._loop is not None  # it runs
        return self._loop.run(server.open(options, render))

    def _close_ports(self, ports: Ports) -> None:
        """Close them; nothing if the server has stopped."""
        with self._changing:
            if self._server is not None and self._loop is not None:
                self._loop.run(self._server.close(ports))

    # ---- requests of another server

    @property
    def _access_log(self) -> AccessLog | None:
        """The access log, if there is one; for the loop's thread."""
        server = self._server
        return None if server is None else server.ports.access_log

    def _new_application(self) -> Application:
        """The routes of HTTP, for requests that another server has received; see `_call_soon`."""
        server = self._running()
        assert self._loop is not None  # it runs

        async def make() -> Application:
            return server.new_application()

        return self._loop.run(make())

    def _call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the server's loop; nothing if the server has stopped."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is being closed
                loop.loop.call_soon_threadsafe(callback, *arguments)

    @property
    def engine(self) -> LocalEngine:
        """The engine of the running server, for programs that work with `shoal.core`'s types."""
        return self._running().engine

    def _running(self) -> LoopServer:
        server = self._server
        if server is None:
            raise Unavailable("this server is not running; call start() or use it in a with block")
        return server

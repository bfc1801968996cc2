"""A server in this process: its models, its ports, and how they start and stop in order.

    listen ─▶ load ─▶ ready ─▶ stop: not ready, still serving ─▶ no new connections
                                     ─▶ what was received is answered ─▶ unload

The ports are open before models load: a health probe gets "live, not ready" until they are loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from shoal import settings
from shoal.backends.registry import BackendRegistry
from shoal.config.options import Options
from shoal.core.inbox import LoopInbox
from shoal.frontends.http.application import Application
from shoal.logs import Log
from shoal.ports import Ports
from shoal.reloads import Reloads
from shoal.serving import ModelsFailed, Serving

__all__ = ["ModelsFailed", "Server"]

logger = logging.getLogger(__name__)

Render = Callable[[], bytes]  # the text of the metrics


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
        self._serving = Serving(options, functions=functions, backends=backends, log=log)
        self.engine = self._serving.engine
        self.repository = self._serving.repository
        self.ports = Ports(
            options,
            self.engine,
            reloads=self.reloads,
            log=log,
            render_metrics=self._render_metrics if options.allow_metrics else None,
            console=settings.console(self.engine, options),
        )
        self._more_ports: list[Ports] = []  # that were opened later
        self._inbox: LoopInbox | None = None  # once it listens
        access = self.ports.access
        self.metrics = self._serving.metrics(
            self.ports.read, access.read if access is not None else None
        )

    def _render_metrics(self) -> bytes:
        return self.metrics.render()

    @property
    def http_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.http_port

    @property
    def grpc_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.grpc_port

    @property
    def sagemaker_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.sagemaker_port

    @property
    def vertex_ai_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.vertex_ai_port

    @property
    def tcp_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.tcp_port

    @property
    def metrics_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.metrics_port

    @property
    def health_port(self) -> int:
        """The actual port, once it listens."""
        return self.ports.health_port

    @property
    def left_behind(self) -> bool:
        """Whether threads are still busy after `stop`."""
        return self._serving.left_behind

    def reload(self) -> None:
        """Read files again that may have changed; does not wait for it."""
        self.reloads.request()

    # ---- start

    async def start(self) -> None:
        """Listen, then load; returns when the start-up models have been loaded or tried.

        Raises a ShoalError for a missing repository, a port that cannot be opened and, if the
        option --exit-on-error is set, for models that fail. Call `stop` in any case.
        """
        settings.check_repositories(self.options)
        await self.listen()
        await self.load()

    async def listen(self) -> None:
        """Open the ports. From here on the server is live. Raises as `Ports.listen`."""
        self._inbox = self._new_inbox()
        await self.ports.listen(self._inbox)

    def _new_inbox(self) -> LoopInbox:
        loop, handle = asyncio.get_running_loop(), self._serving.loop
        handle.bind(loop)
        return LoopInbox(loop, handle.after_reading, handle.after_batches)

    def new_application(self) -> Application:
        """The routes of HTTP, for requests that another server has received."""
        assert self._inbox is not None  # it listens
        return self.ports.new_application(self._inbox)

    async def load(self) -> None:
        """Load the start-up models; after that the server is ready if the models are."""
        index = await self._serving.load()
        self.ports.models_loaded(index)
        self.ports.log_services()
        logger.info("the server is %s", "ready" if self.engine.ready() else "up, but not ready")

    async def open(self, options: Options, render_metrics: Render | None = None) -> Ports:
        """Open the ports of `options` for the same models. Raises as `Ports.listen`.

        They are closed by `close`, or when the server stops.
        """
        loop, handle = asyncio.get_running_loop(), self._serving.loop
        ports = Ports(
            options,
            self.engine,
            reloads=Reloads(),
            log=None,
            render_metrics=render_metrics,
            console=None,
        )
        self._more_ports.append(ports)
        try:
            await ports.listen(LoopInbox(loop, handle.after_reading, handle.after_batches))
        except BaseException:
            await self.close(ports)
            raise
        return ports

    async def close(self, ports: Ports) -> None:
        """Close ports that `open` opened, after what they received is answered; once."""
        if ports not in self._more_ports:
            return
        self._more_ports.remove(ports)
        await ports.announce_stop(0.0)
        deadline = asyncio.get_running_loop().time() + self.options.exit_timeout_secs
        if not await ports.finish_requests(deadline, lambda: 0):
            await ports.give_up()
        ports.reloads.close()
        await ports.close()

    # ---- stop

    async def stop(self) -> bool:
        """Shut down in order, however far `start` got; a second call does nothing.

        False if requests or unloading took longer than the exit timeout; the requests that were
        still running then got an error.
        """
        options, serving, ports = self.options, self._serving, self.ports
        self.engine.begin_exit()
        for more in list(self._more_ports):
            await self.close(more)
        await ports.announce_stop(options.drain_secs if serving.loaded else 0.0)
        deadline = asyncio.get_running_loop().time() + options.exit_timeout_secs
        clean = await ports.finish_requests(deadline, self.engine.in_flight)
        if clean:
            clean = await serving.unload(deadline)
        else:
            await ports.give_up()
        self.reloads.close()
        serving.loop.release()
        await ports.close()
        await serving.close(clean=clean)
        return clean

"""The models of a server: repository, engine and what they need, without any port.

load ─▶ ready ─▶ ... ─▶ close: unload
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shoal import settings
from shoal.backends.registry import BackendRegistry
from shoal.config.options import Options
from shoal.engine.local import LocalEngine
from shoal.errors import Internal
from shoal.instance import device
from shoal.instance.health import abandoned_instances
from shoal.instance.inline import LoopHandle
from shoal.logs import Log
from shoal.repository import memory
from shoal.repository.repository import ModelRepository
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.keys import KeyCounts
from shoal.statistics.process import ServerProcesses
from shoal.statistics.prometheus import MetricsRenderer
from shoal.statistics.server import ServerReading
from shoal.statistics.tracer import Tracer
from shoal.tasks.workers import Workers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ModelsFailed(Internal):
    """Start-up models that could not be loaded, and the reasons."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("failed to load all models")
        self.reasons = reasons

    def __str__(self) -> str:
        return f"{self.message}: {'; '.join(self.reasons)}"


class Serving:
    """Repository and engine. Its methods belong to the thread of one event loop."""

    def __init__(
        self,
        options: Options,
        *,
        functions: Sequence[Any] = (),
        backends: BackendRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        """Opens and reads nothing yet. Raises InvalidArgument for invalid settings. The arguments
        are those of `Server`."""
        self.options = options
        self.loop = LoopHandle(polls_for_lone_client=device.available_cores() > 1)
        self._custom_metrics = CustomMetrics()
        self.cache = settings.cache_store(options)
        self._making_workers = threading.Lock()  # guards _workers; models load on threads
        self._workers: Workers | None = None
        self.repository = ModelRepository(
            settings.repository_settings(
                options,
                functions,
                backends or BackendRegistry(directory=options.backend_directory),
                self.loop,
                self._custom_metrics,
                self.cache,
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
        self._loading: asyncio.Future[dict[str, str]] | None = None
        self.loaded = False  # whether clients may have seen the server ready
        self.left_behind = False  # whether threads are still busy after `unload`

    def metrics(
        self,
        server: Callable[[], ServerReading],
        keys: Callable[[], list[KeyCounts]] | None,
        processes: ServerProcesses | None = None,
    ) -> MetricsRenderer:
        """The text for Prometheus; any thread may render it."""
        return MetricsRenderer(
            self.engine.model_statistics,
            settings.metrics_settings(self.options),
            custom=self._custom_metrics,
            cache=self.cache.read if self.cache is not None else None,
            keys=keys,
            server=server,
            processes=processes,
            repositories=self.repository.unreadable,
            loading=self.repository.waiting_for_loads,
        )

    async def load(self) -> Sequence[dict[str, str]]:
        """Load the start-up models; after that the server is ready if the models are. Returns the
        index."""
        if self.cache is not None:
            await in_thread(self.cache.check)
        self._loading = asyncio.ensure_future(in_thread(self.repository.start))
        # Cancelling this only stops the waiting: loads cannot be interrupted.
        failures = await asyncio.shield(self._loading)
        index = await in_thread(self.engine.index)
        _log_models(index)
        reasons = [_one_line(failures[name]) for name in sorted(failures)]
        if reasons and self.options.exit_on_error:
            raise ModelsFailed(reasons)
        for reason in reasons:
            logger.error("%s", reason)
        memory.exclude_started()
        self.engine.started()
        self.loaded = True
        return index

    async def unload(self, deadline: float) -> bool:
        """Unload everything before the loop's time is `deadline`; false if that took longer."""
        if self._loading is not None and not self._loading.done():
            logger.info("models are still loading; exiting without waiting for them")
            self.left_behind = True
            return True
        left_secs = max(0.0, deadline - asyncio.get_running_loop().time())
        unloading = asyncio.ensure_future(in_thread(self.repository.stop))
        done, _ = await asyncio.wait({unloading}, timeout=left_secs)
        if done:
            unloading.result()
        return bool(done)

    async def close(self, *, clean: bool) -> None:
        """Release what is left, after `unload` or instead of it."""
        self.loop.release()
        if self._workers is not None:
            self._workers.close()
        await in_thread(self._tracer.close)
        if self.cache is not None:
            await in_thread(self.cache.close)
        if not clean:
            logger.error("the exit timeout of %d s has passed", self.options.exit_timeout_secs)
            self.left_behind = True
        hanging = abandoned_instances()
        if hanging:
            names = ", ".join(hanging)
            logger.warning("exiting without waiting for executions that hang: %s", names)
            self.left_behind = True

    def _task_workers(self) -> Workers:
        """The worker threads of tasks, created for the first model with a task; thread-safe."""
        with self._making_workers:
            if self._workers is None:
                self._workers = Workers(device.available_cores())
            return self._workers


# ---- helpers


async def in_thread(function: Callable[[], Result]) -> Result:
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


def _log_models(index: Sequence[dict[str, str]]) -> None:
    """Log the start-up table: each model that was loaded or failed, with its status."""
    rows = [("model", "version", "status")]
    for row in index:
        if "state" in row:  # others are in the repository, but were not requested
            reason = f": {_one_line(row['reason'])}" if row.get("reason") else ""
            rows.append((row["name"], row.get("version", "-"), row["state"] + reason))
    if len(rows) == 1:
        logger.info(
            "no model is loaded; a repository has a folder for each: models/resnet/1/model.onnx"
        )
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    table = [f"  {name:<{widths[0]}}  {v:<{widths[1]}}  {status}" for name, v, status in rows]
    logger.info("models after start-up", extra={"table": "\n".join(table)})


def _one_line(text: str) -> str:
    return " ".join(text.split())

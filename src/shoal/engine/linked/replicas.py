"""Models that a front end runs itself, because their configs ask for it: `run_in_frontends`.

    looked up --> loading, on a thread: the engine serves requests --> replica: they run here
    the engine says that it has changed --> dropped: queued requests are served, then it is closed

A replica is the `Model` that a server of one process would have. What it counts is sent to the
engine every half second, and whenever someone asks for statistics.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from shoal.backends.registry import BackendRegistry
from shoal.core.request import Request
from shoal.errors import Internal, ShoalError, Unavailable
from shoal.models.ensemble import load_version
from shoal.models.replicas import ReplicaReporter, may_have_replicas
from shoal.models.served import ServedModel
from shoal.models.spec import ModelSpec, ServingContext
from shoal.models.version import Model
from shoal.repository import memory
from shoal.repository.preparation import fingerprints
from shoal.scheduler.base import BatcherClosed
from shoal.tasks.endpoint import PARAMETER as TASK

if TYPE_CHECKING:
    from shoal.engine.linked.model import LinkedModel

logger = logging.getLogger(__name__)

REPORT_SECS = 0.5
_POLL_NS = 250_000_000  # less than the engine waits for front ends to see a change

Plan = tuple[dict[str, str], str]  # the settings of the backend, and a digest of the model's files
Send = Callable[[int, Any], None]  # a model's key and the report of its replica; None: it is closed


def plan_of(model: ServedModel) -> Plan | None:
    """What front ends need to load a replica of the engine's model; None if they must not."""
    spec = model.spec
    if not may_have_replicas(spec):
        return None
    return dict(spec.settings), _digest(spec.fingerprints[model.version])


def _digest(fingerprint: object) -> str:
    return hashlib.blake2b(repr(fingerprint).encode()).hexdigest()


class ReplicaLoader:
    """Loads replicas as the engine has loaded the models. Any thread may call it."""

    def __init__(self, context: ServingContext, backends: BackendRegistry, cores: int) -> None:
        """`cores` are those of one front end."""
        self._context = context
        self._backends = backends
        self._cores = cores

    def __call__(self, model: LinkedModel) -> Model:
        """Load it. Raises a ShoalError, also if its files are not those of the engine."""
        assert model.plan is not None
        settings, digest = model.plan
        folder, version_folder = model.folders[0], model.folders[-1]
        versions = {model.version: version_folder}
        # Its task has to exist once only, and is that of `model`.
        parameters = {key: value for key, value in model.config.parameters.items() if key != TASK}
        config = dataclasses.replace(model.config, parameters=parameters)
        backend = self._backends.get(config.backend or config.platform, model=model.name)
        spec = ModelSpec(
            model.name,
            folder,
            config,
            backend,
            versions,
            fingerprints(folder, versions, backend),
            settings,
            self._cores,
            self._context,
        )
        made = load_version(spec, model.version)
        assert isinstance(made, Model)
        now = fingerprints(folder, versions, backend)[model.version]
        if _digest(now) != digest:
            made.close()
            raise Unavailable("its files are not those that the engine process has loaded")
        memory.exclude_loaded()
        return made


class Replicas:
    """The replicas of a front end. Its methods belong to the loop's thread, unless they say
    otherwise."""

    def __init__(
        self, load: Callable[[LinkedModel], Model], send: Send, poll: Callable[[], bool]
    ) -> None:
        """`poll` handles what the engine has sent; false where that is not possible."""
        self._load = load
        self._send = send
        self._poll = poll
        self._polled_ns = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-replica")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # guards what follows, and `replica` of all models
        self._live: dict[Model, tuple[int, ReplicaReporter]] = {}  # until they are closed
        self._timer: asyncio.TimerHandle | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report on this loop."""
        self._loop = loop

    def start(self, model: LinkedModel) -> None:
        """Load a replica of the model, if it is to have one; requests use it from then on. From any
        thread; returns at once."""
        if model.plan is not None and not model.has_replica_begun:
            model.has_replica_begun = True
            with contextlib.suppress(RuntimeError):  # the front end has ended
                self._thread.submit(self._start, model)

    def _start(self, model: LinkedModel) -> None:
        if model.is_dropped:
            return
        try:
            replica = self._load(model)
        except Exception as failure:  # noqa: BLE001 - the engine serves it
            error = failure if isinstance(failure, ShoalError) else Internal(repr(failure))
            if not model.is_dropped:
                logger.warning(
                    "model '%s' version %d runs in the engine process only, because this front end "
                    "cannot load it: %s",
                    model.name,
                    model.version,
                    error.message,
                )
            return
        with self._lock:
            used = not model.is_dropped  # else the engine has replaced it meanwhile
            if used:
                self._live[replica] = (model.key, ReplicaReporter(replica))
                model.replica = replica
        if used:
            self._call(self._report_later)
        else:
            replica.close()

    def accept(self, request: Request, model: LinkedModel) -> bool:
        """Have the replica of a model take a request over; false if there is none. From any thread.
        Raises as `ServedModel.accept`. Requests that may be traced are for the engine."""
        if model.plan is None or request.trace is not None:
            return False
        if not self.are_current(request.start_ns):
            return False
        replica, inputs = model.replica, request.inputs
        if replica is None:
            return False
        try:
            replica.accept(request)
        except BatcherClosed:  # it is being replaced at this moment
            request.inputs = inputs
            return False
        return True

    def are_current(self, now_ns: int) -> bool:
        """Whether this process knows which models have changed. One that was stopped reads that
        first: the engine waits only for a second until all front ends have seen a change."""
        if now_ns - self._polled_ns < _POLL_NS:
            return True
        polled_ns = time.monotonic_ns()
        if not self._poll():
            return False
        self._polled_ns = polled_ns
        return True

    def drop(self, model: LinkedModel) -> None:
        """Run no more requests of the model here; those that are queued are served. From any
        thread; returns at once."""
        with self._lock:
            model.is_dropped = True
            replica, model.replica = model.replica, None
        if replica is not None:
            name = f"shoal-close-{model.name}"
            threading.Thread(target=self._close, args=(replica,), name=name, daemon=True).start()

    def _close(self, replica: Model) -> None:
        replica.close()
        self._call(lambda: self._closed(replica))
        memory.give_memory_back()

    def _closed(self, replica: Model) -> None:
        self.report()
        with self._lock:
            key, _ = self._live.pop(replica)
        self._send(key, None)

    def _call(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(callback)

    def _report_later(self) -> None:
        if self._timer is None and self._live and self._loop is not None:
            self._timer = self._loop.call_later(REPORT_SECS, self._report_now)

    def _report_now(self) -> None:
        self._timer = None
        self.report()
        self._report_later()

    def report(self) -> None:
        """Send the engine what has been counted."""
        with self._lock:
            live = list(self._live.values())
        for key, reporter in live:
            report = reporter.report()
            if report is not None:
                self._send(key, report)

    def in_flight(self) -> int:
        """Requests that were accepted and have no response yet."""
        with self._lock:
            return sum([replica.in_flight() for replica in self._live])

    def close(self) -> None:
        """Load and report nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None

"""The engine as a front-end process has it: at the other end of a link.

    find --> KnownModels, which looks models up        infer --> EngineConnection --> engine

Models are looked up when they are first asked for, and again when the engine says that another
version serves. A request that was checked against an older version is checked again by the engine.
A model that front ends are to run themselves has a replica here: see `replicas`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.inbox import LoopInbox
from shoal.core.interface import FunctionRoute
from shoal.core.planned import PlannedRequest
from shoal.core.readiness import Problem, Readiness
from shoal.core.request import Request
from shoal.core.validate import validate
from shoal.engine.contract import Engine, EngineModel, described_server
from shoal.engine.linked.connection import EngineConnection, engine_gone, engine_silent
from shoal.engine.linked.known_models import KnownModels
from shoal.engine.linked.messages import ModelDescription
from shoal.engine.linked.model import LinkedModel
from shoal.engine.linked.replicas import Replicas
from shoal.engine.linked.tracing import LinkedTracer
from shoal.errors import InvalidArgument, ShoalError, Unavailable
from shoal.link.channel import MOST_BYTES
from shoal.link.link import Link
from shoal.logs import Log
from shoal.models.version import Model
from shoal.statistics.trace_settings import Changes
from shoal.tasks.workers import Workers

_ANSWER_SECS = 10.0  # for what the engine answers at once, unless it is stopped
_READINESS_SECS = 2.0  # less than most probes wait
_MOST_FILE_BYTES = MOST_BYTES - (1 << 20)  # of a model that a request brings


class LinkedEngine(Engine):
    """The contract of the engine, for frontends in another process.

    Methods that look up models may be called from any thread, and so may those that block.
    """

    def __init__(
        self,
        *,
        server_id: str,
        has_gpus: bool,
        workers: Callable[[], Workers],
        log: Log | None = None,
        report: Callable[[], Any] = lambda: None,
        load_replica: Callable[[LinkedModel], Model] | None = None,
    ) -> None:
        """There is no engine before `connect`. `workers` are the threads of tasks. `log` gets the
        settings that clients change. `report` returns what the engine may ask for, as plain
        values. `load_replica` loads models that are to run here; without it none do."""
        self._report = report
        self.tracer: LinkedTracer = LinkedTracer()
        self._log = log
        self._described = described_server(server_id, has_gpus=has_gpus)
        self._workers = workers
        self.on_lost: Callable[[], None] = lambda: None  # called on the loop when a link ends
        self._connection: EngineConnection | None = None
        self._replicas: Replicas | None = None
        if load_replica is not None:
            self._replicas = Replicas(load_replica, self._send_replica, self._poll)
        self._exiting = False
        self._known = KnownModels(self._linked, self._make_model, self._replicas)

    # ---- the link

    def connect(self, link: Link, inbox: LoopInbox) -> None:
        """Use the engine at the other end of `link`. On the loop's thread."""
        if self._replicas is not None:
            self._replicas.bind(asyncio.get_running_loop())
        before = self._connection
        self._connection = EngineConnection(
            link,
            inbox,
            self._known.forget,
            self._lost,
            self._take_settings,
            self._known.retire,
            self._answer_question,
        )
        if before is not None:
            before.close()
        self.tracer.connection = self._connection

    def _take_settings(
        self, connection: EngineConnection, tracing: bool, log: Mapping[str, Any]
    ) -> None:
        if self._connection is connection:
            self.tracer.active = tracing
            if self._log is not None:
                self._log.update(**log)

    def _answer_question(self) -> Any:
        if self._replicas is not None:
            self._replicas.report()
        return self._report()

    def _send_replica(self, key: int, report: Any) -> None:
        connection = self._connection
        if connection is not None:
            connection.send_replica(key, report)

    def _lost(self, connection: EngineConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self.tracer.active = False
            self.tracer.connection = None
            self._known.forget("")
            self.on_lost()

    def begin_exit(self) -> None:
        """The server shuts down."""
        self._exiting = True

    def close(self) -> None:
        """End the link and the threads. On the loop's thread."""
        if self._connection is not None:
            self._connection.close()
        if self._replicas is not None:
            self._replicas.close()
        self._known.close()

    @property
    def link(self) -> Link | None:
        """The link, while there is an engine process."""
        connection = self._connection
        return None if connection is None else connection.link

    def in_flight(self) -> int:
        """Requests that wait for a response."""
        connection, replicas = self._connection, self._replicas
        here = 0 if replicas is None else replicas.in_flight()
        return here + (0 if connection is None else connection.in_flight)

    def _linked(self) -> EngineConnection:
        connection = self._connection
        if connection is None:
            raise engine_gone()
        return connection

    def call(self, method: str, *arguments: Any, answer_secs: float | None = _ANSWER_SECS) -> Any:
        """Call a method of the engine process and wait for its result. Not on the loop's thread.

        Raises its error; Unavailable if there is no engine, or no answer within `answer_secs`. None
        for work that may take any time: then it is Unavailable if the engine is stopped.
        """
        answer: Future[Any] = Future()

        def settled(value: Any, error: ShoalError | None) -> None:
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        self._linked().call(method, *arguments, settled=settled)
        try:
            return answer.result(answer_secs)
        except FutureTimeoutError:
            raise engine_silent() from None

    # ---- inference

    def infer(self, request: Request) -> None:
        """See `Engine`. The engine process validates it, too: another version may serve by then."""
        model = self._known.models.get((request.model_name, request.model_version))
        if model is None or not self._run_here(request, model):
            self._infer(request, model, 0)

    def _infer_task(self, request: Request, model: LinkedModel) -> None:
        if not self._run_here(request, model):
            self._infer(request, model, model.key)

    def _run_here(self, request: Request, model: LinkedModel) -> bool:
        """Have the replica of `model` take a request over; false if there is none."""
        return self._replicas is not None and self._replicas.accept(request, model)

    def _poll(self) -> bool:
        connection = self._connection
        return connection is not None and connection.poll()

    def _infer(self, request: Request, model: LinkedModel | None, key: int) -> None:
        connection = self._linked()
        inputs = request.inputs
        if model is not None:
            if request.trace is None:  # a refusal is part of a trace, which the engine keeps
                validate(request, model.signature)
            request.served_by = model
        connection.infer(request, inputs, key)

    def _infer_photos(self, requests: Sequence[PlannedRequest], key: int) -> None:
        self._linked().infer_photos(requests, key)

    def infer_group(
        self, requests: Sequence[PlannedRequest], model: Any
    ) -> Sequence[PlannedRequest]:
        """See `Engine`."""
        first = requests[0]
        known = self._known.models.get((first.model_name, first.model_version))
        if known is not None and known.replica is not None:
            assert self._replicas is not None
            replica = known.replica if self._replicas.are_current(first.start_ns) else None
            if replica is not model:  # loaded or dropped since the template was made
                return requests
            taken = replica.accept_group(requests)
            return () if taken == len(requests) else replica.accept_rest(requests[taken:])
        if known is not model:
            return requests
        self._linked().infer_group(requests)
        return ()

    def client_has_read(self, request: Request, count: int) -> None:
        """See `Engine`."""
        if self._connection is not None:
            self._connection.client_has_read(request, count)

    def check_room(self, name: str, version: int = -1) -> None:
        """See `Engine`."""
        self._known.check_room((name, version))

    # ---- health

    @property
    def asks_process(self) -> bool:
        """See `Engine`."""
        return True

    def exiting(self) -> bool:
        """See `Engine`."""
        return self._exiting

    def readiness(self) -> Readiness:
        """See `Engine`."""
        try:
            ready, problems = self.call("readiness", answer_secs=_READINESS_SECS)
        except Unavailable as error:
            return Readiness(False, (Problem(error.message, public=True, repository=True),))
        return Readiness(ready, tuple([Problem(*problem) for problem in problems]))

    def model_ready(self, name: str, version: int = -1) -> bool:
        """See `Engine`."""
        ready: bool = self.call("model_ready", name, version, answer_secs=None)
        return ready

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """See `Engine`."""
        del name, version
        return True

    # ---- what there is

    def server_metadata(self) -> dict[str, Any]:
        """See `Engine`."""
        return self._described

    def find(self, name: str, version: int = -1) -> LinkedModel:
        """See `Engine`."""
        return self._known.find((name, version))

    def newest_models(self) -> list[EngineModel]:
        """See `Engine`."""
        return [*self._known.newest()]

    def routes(self) -> Sequence[FunctionRoute]:
        """See `Engine`."""
        return self._known.routes()

    def ready_versions(self, name: str) -> list[int]:
        """See `Engine`."""
        return list(self.find(name).versions)

    def _task_models(self) -> Sequence[EngineModel]:
        return self.newest_models()

    def _make_model(self, description: ModelDescription) -> LinkedModel:
        return LinkedModel(
            description,
            self._infer_task,
            self._infer_photos,
            self._workers,
            self._linked().count_task,
            partial(self.call, "task_files"),
        )

    # ---- what blocks

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """See `Engine`."""
        counted: list[dict[str, Any]] = self.call("statistics", name, version)
        return counted

    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """See `Engine`."""
        explained: list[dict[str, Any]] = self.call("explain", name, version)
        return explained

    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """See `Engine`."""
        settings: dict[str, list[str]] = self.call("trace_settings", model)
        return settings

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """See `Engine`."""
        self.call("update_trace_settings", model, dict(changes))

    def record_traces(self, model: str, count: int) -> None:
        """See `Engine`."""
        self.call("record_traces", model, count)

    def recorded_traces(self, model: str) -> dict[str, Any]:
        """See `Engine`."""
        recorded: dict[str, Any] = self.call("recorded_traces", model)
        return recorded

    def log_settings(self) -> dict[str, Any]:
        """See `Engine`."""
        settings: dict[str, Any] = self.call("log_settings")
        return settings

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """See `Engine`."""
        self.call("update_log_settings", dict(changes))

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """See `Engine`."""
        rows: list[dict[str, str]] = self.call("index", ready_only, answer_secs=None)
        return rows

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""
        plain = {path: bytes(content) for path, content in files.items()}
        size = sum(map(len, plain.values()))
        if size > _MOST_FILE_BYTES:
            raise InvalidArgument(
                f"the files of model '{name}' have {size} bytes; with --frontend-processes a "
                f"request may bring {_MOST_FILE_BYTES}. Copy them into the model repository"
            )
        self.call("load", name, config_json, plain, answer_secs=None)

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """See `Engine`."""
        self.call("unload", name, unload_dependents, answer_secs=None)

    def register_repository(self, path: Path, names: Mapping[str, str]) -> None:
        """See `Engine`."""
        self.call("register_repository", str(path), dict(names), answer_secs=None)

    def unregister_repository(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """See `Engine`."""
        known: bool = self.call("unregister_repository", str(path), wait_secs, answer_secs=None)
        return known

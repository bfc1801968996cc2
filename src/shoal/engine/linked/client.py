"""The engine as a front-end process has it: at the other end of a link.

    find --known--> LinkedModel            infer, infer_group --> EngineConnection --> engine
         '-not known--> ModelLookup: ask the engine, then try again

Models are looked up when they are first asked for, and again when the engine says that another
version serves. A request that was checked against an older version is checked again by the engine.
A model that front ends are to run themselves has a replica here: see `replicas`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from shoal.engine.linked.lookups import Key, LoadedByRequest, ModelLookup, RoomQuestion, Settled
from shoal.engine.linked.messages import ModelDescription
from shoal.engine.linked.model import LinkedModel
from shoal.engine.linked.replicas import Replicas
from shoal.engine.linked.tracing import LinkedTracer
from shoal.errors import Internal, InvalidArgument, ShoalError, Unavailable
from shoal.link.channel import MOST_BYTES
from shoal.link.link import Link
from shoal.logs import Log
from shoal.models.version import Model
from shoal.statistics.trace_settings import Changes
from shoal.tasks.workers import Workers

_ANSWER_SECS = 10.0  # for what the engine answers at once, unless it is stopped
_READINESS_SECS = 2.0  # less than most probes wait
_MOST_FILE_BYTES = MOST_BYTES - (1 << 20)  # of a model that a request brings
_THREADS = 4  # that read the files of tasks

_ALL: Key = ("", 0)  # all models
_ROUTES: Key = ("", 1)  # the routes of functions


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
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-lookup")
        self._lock = threading.Lock()  # guards what follows
        self._models: dict[Key, LinkedModel] = {}
        self._all: list[LinkedModel] | None = None  # the newest of each
        self._routes: Sequence[FunctionRoute] | None = None
        self._on_demand: dict[Key, str] = {}  # models that their first request loads
        self._lookups: dict[Key, list[Settled]] = {}
        self._with_tasks: dict[int, LinkedModel] = {}  # whose tasks have not ended
        self._changes = 0  # a lookup that began before the last one may be out of date

    # ---- the link

    def connect(self, link: Link, inbox: LoopInbox) -> None:
        """Use the engine at the other end of `link`. On the loop's thread."""
        if self._replicas is not None:
            self._replicas.bind(asyncio.get_running_loop())
        before = self._connection
        self._connection = EngineConnection(
            link,
            inbox,
            self._forget,
            self._lost,
            self._take_settings,
            self._retire,
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
            self._forget("")
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
        self._threads.shutdown(wait=False, cancel_futures=True)

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
        model = self._models.get((request.model_name, request.model_version))
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
        known = self._models.get((first.model_name, first.model_version))
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
        """See `Engine`. The engine is asked about models that have refused a request; until it says
        that there is room, callers wait as for a lookup. Replicas have queues of their own."""
        key = (name, version)
        model = self._models.get(key)
        if model is None:
            return
        replica = model.replica
        if replica is not None:
            replica.check_room()
        elif model.refuses:
            raise RoomQuestion(self, key, model)

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
        key = (name, version)
        model: LinkedModel | None = self._models.get(key)
        if model is None:
            raise self._unknown(key)
        return model

    def newest_models(self) -> list[EngineModel]:
        """See `Engine`."""
        found = self._all
        if found is None:
            raise self._unknown(_ALL)
        return list(found)

    def routes(self) -> Sequence[FunctionRoute]:
        """See `Engine`."""
        found = self._routes
        if found is None:
            raise self._unknown(_ROUTES)
        return found

    def ready_versions(self, name: str) -> list[int]:
        """See `Engine`."""
        return list(self.find(name).versions)

    def _task_models(self) -> Sequence[EngineModel]:
        return self.newest_models()

    def _unknown(self, key: Key) -> ShoalError:
        if self._connection is None:
            return engine_gone()
        text = self._on_demand.get(key)
        if text is not None:
            return LoadedByRequest(self, key, text)
        return ModelLookup(self, key)

    def _forget(self, name: str) -> None:
        """Look up the model `name` again ("": all of them) when someone asks for it."""
        with self._lock:
            self._changes += 1
            gone = [key for key in self._models if name in ("", key[0])]
            kept = {key: model for key, model in self._models.items() if key not in gone}
            dropped = {self._models[key] for key in gone} - set(kept.values())
            dropped.update(set(self._all or ()) - set(kept.values()))
            self._models = kept
            self._all = None
            self._routes = None
            self._on_demand = {
                key: text for key, text in self._on_demand.items() if name not in ("", key[0])
            }
        for model in dropped:
            self._close(model)

    def _close(self, model: LinkedModel, then: Callable[[], None] = lambda: None) -> None:
        """End the task of a model when its calls have ended, then call `then`. Does not wait."""
        if self._replicas is not None:
            self._replicas.drop(model)
        if model.task is None:
            then()
            return

        def close() -> None:
            model.close()
            with self._lock:
                self._with_tasks.pop(model.key, None)
            then()

        threading.Thread(target=close, name="shoal-task-end", daemon=True).start()

    def _retire(self, connection: EngineConnection, key: int) -> None:
        """Begin no more calls of a model's task, which the engine is about to unload."""

        def retired() -> None:
            connection.tell("retired", key)

        with self._lock:
            self._changes += 1  # no lookup under way may bring it back
            model = self._with_tasks.get(key)
        if model is None:
            retired()
        else:
            self._close(model, retired)

    def look_up(self, key: Key, settled: Settled) -> None:
        """Ask the engine for a model, for `ModelLookup`."""
        with self._lock:
            waiting = self._lookups.setdefault(key, [])
            waiting.append(settled)
            if len(waiting) > 1:
                return
            changes = self._changes

        def found(value: Any, error: ShoalError | None) -> None:
            self._threads.submit(self._learn, key, changes, value, error)

        try:
            if key in (_ALL, _ROUTES):
                self._linked().call("models" if key is _ALL else "routes", settled=found)
            else:
                self._linked().call("find", *key, settled=found)
        except ShoalError as error:
            self._settle(key, error)

    def ask_for_room(self, key: Key, model: LinkedModel, settled: Settled) -> None:
        """Ask the engine whether a model has room for a request, for `RoomQuestion`."""

        def answered(_value: Any, error: ShoalError | None) -> None:
            if error is None:
                model.refuses = False
            settled(error)

        try:
            self._linked().call("check_room", *key, settled=answered)
        except ShoalError as error:
            settled(error)

    def load_on_demand(self, key: Key, settled: Settled) -> Callable[[], None]:
        """Have the engine load a model, for a request that waits for it. Returns what ends that."""

        def loaded(_value: Any, error: ShoalError | None) -> None:
            with self._lock:
                self._on_demand.pop(key, None)
            settled(error)

        try:
            connection = self._linked()
        except ShoalError as error:
            settled(error)
            return lambda: None
        number = connection.call("load_on_demand", *key, settled=loaded)
        return lambda: connection.leave(number)

    def _learn(self, key: Key, changes: int, value: Any, error: ShoalError | None) -> None:
        """Keep what the engine has answered, and wake those who wait for it."""
        try:
            if error is None and isinstance(value, str):  # it is loaded by its first request
                with self._lock:
                    if changes == self._changes:
                        self._on_demand[key] = value
            elif error is None and key is _ROUTES:
                routes = tuple([FunctionRoute(*one) for one in value])
                with self._lock:
                    if changes == self._changes:
                        self._routes = routes
            elif error is None:
                described = value if key is _ALL else [value]
                models = [self._make(ModelDescription(*one)) for one in described]
                with self._lock:
                    known = {*self._models.values(), *(self._all or ())}
                    if changes == self._changes:
                        known.update(models)
                        if key is _ALL:
                            self._all = models
                        else:
                            self._models[key] = models[0]
                for model in set(models) - known:  # it has been replaced meanwhile
                    self._close(model)
                if self._replicas is not None:
                    for model in known.intersection(models):
                        self._replicas.start(model)
        except ShoalError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - becomes the response
            error = Internal(f"{type(failure).__name__}: {failure}")
        self._settle(key, error)

    def _make(self, description: ModelDescription) -> LinkedModel:
        with self._lock:
            known = [*self._models.values(), *(self._all or ())]
        for model in known:
            if model.key == description.key:
                found: LinkedModel = model
                return found
        connection = self._linked()
        made = LinkedModel(
            description,
            self._infer_task,
            self._infer_photos,
            self._workers,
            connection.count_task,
            partial(self.call, "task_files"),
        )
        if made.task is not None:
            with self._lock:
                self._with_tasks[made.key] = made
        return made

    def _settle(self, key: Key, error: ShoalError | None) -> None:
        with self._lock:
            waiting = self._lookups.pop(key, [])
        for settled in waiting:
            settled(error)

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

"""The models that a front end knows, and what it asks the engine in order to know more.

    find --known--> LinkedModel
         '-not known--> ModelLookup --then--> look_up: ask the engine, keep what it answers

What is known is forgotten when the engine says that it has changed, and looked up again when
someone asks for it. An answer that was under way at that moment is out of date and not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.core.interface import FunctionRoute
from shoal.engine.linked.connection import EngineConnection
from shoal.engine.linked.lookups import Key, LoadedByRequest, ModelLookup, RoomQuestion, Settled
from shoal.engine.linked.messages import ModelDescription
from shoal.engine.linked.model import LinkedModel
from shoal.engine.linked.replicas import Replicas
from shoal.errors import Internal, ShoalError

_THREADS = 4  # that read the files of tasks

_ALL: Key = ("", 0)  # all models
_ROUTES: Key = ("", 1)  # the routes of functions


class KnownModels:
    """Looks models up and keeps them. Any thread may call any method."""

    def __init__(
        self,
        linked: Callable[[], EngineConnection],
        make: Callable[[ModelDescription], LinkedModel],
        replicas: Replicas | None,
    ) -> None:
        """`linked` returns the connection, or raises if there is none. `make` makes the model of a
        description, and `replicas`, if any, begin and end with their models."""
        self._linked = linked
        self._make_model = make
        self._replicas = replicas
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-lookup")
        self._lock = threading.Lock()  # guards what follows
        self.models: dict[Key, LinkedModel] = {}  # read without the lock
        self._all: list[LinkedModel] | None = None  # the newest of each
        self._routes: Sequence[FunctionRoute] | None = None
        self._on_demand: dict[Key, str] = {}  # models that their first request loads
        self._lookups: dict[Key, list[Settled]] = {}
        self._with_tasks: dict[int, LinkedModel] = {}  # whose tasks have not ended
        self._changes = 0  # a lookup that began before the last one may be out of date

    def find(self, key: Key) -> LinkedModel:
        """The model, if it is known. Raises what its caller can wait for, if not."""
        model = self.models.get(key)
        if model is None:
            raise self._unknown(key)
        return model

    def newest(self) -> list[LinkedModel]:
        """The newest version of each model; raises as `find`."""
        found = self._all
        if found is None:
            raise self._unknown(_ALL)
        return list(found)

    def routes(self) -> Sequence[FunctionRoute]:
        """The routes of functions; raises as `find`."""
        found = self._routes
        if found is None:
            raise self._unknown(_ROUTES)
        return found

    def check_room(self, key: Key) -> None:
        """The engine is asked about models that have refused a request; until it says that there is
        room, callers wait as for a lookup. Replicas have queues of their own."""
        model = self.models.get(key)
        if model is None:
            return
        replica = model.replica
        if replica is not None:
            replica.check_room()
        elif model.refuses:
            raise RoomQuestion(self, key, model)

    def _unknown(self, key: Key) -> ShoalError:
        try:
            self._linked()
        except ShoalError as gone:
            return gone
        text = self._on_demand.get(key)
        if text is not None:
            return LoadedByRequest(self, key, text)
        return ModelLookup(self, key)

    # ---- what ends

    def forget(self, name: str) -> None:
        """Look up the model `name` again ("": all of them) when someone asks for it."""
        with self._lock:
            self._changes += 1
            gone = [key for key in self.models if name in ("", key[0])]
            kept = {key: model for key, model in self.models.items() if key not in gone}
            dropped = {self.models[key] for key in gone} - set(kept.values())
            dropped.update(set(self._all or ()) - set(kept.values()))
            self.models = kept
            self._all = None
            self._routes = None
            self._on_demand = {
                key: text for key, text in self._on_demand.items() if name not in ("", key[0])
            }
        for model in dropped:
            self._end(model)

    def retire(self, connection: EngineConnection, key: int) -> None:
        """Begin no more calls of a model's task, which the engine is about to unload."""

        def retired() -> None:
            connection.tell("retired", key)

        with self._lock:
            self._changes += 1  # no lookup under way may bring it back
            model = self._with_tasks.get(key)
        if model is None:
            retired()
        else:
            self._end(model, retired)

    def _end(self, model: LinkedModel, then: Callable[[], None] = lambda: None) -> None:
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

    def close(self) -> None:
        """End the threads; what is under way is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- questions to the engine, for the exceptions in `lookups`

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
                self._learn_models(key, changes, value if key is _ALL else [value])
        except ShoalError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - becomes the response
            error = Internal(f"{type(failure).__name__}: {failure}")
        self._settle(key, error)

    def _learn_models(self, key: Key, changes: int, described: Sequence[Sequence[Any]]) -> None:
        models = [self._make(ModelDescription(*one)) for one in described]
        with self._lock:
            known = {*self.models.values(), *(self._all or ())}
            if changes == self._changes:
                known.update(models)
                if key is _ALL:
                    self._all = models
                else:
                    self.models[key] = models[0]
        for model in set(models) - known:  # it has been replaced meanwhile
            self._end(model)
        if self._replicas is not None:
            for model in known.intersection(models):
                self._replicas.start(model)

    def _make(self, description: ModelDescription) -> LinkedModel:
        """The model of a description: the one that is known, or a new one."""
        with self._lock:
            known: list[LinkedModel] = [*self.models.values(), *(self._all or ())]
        for model in known:
            if model.key == description.key:
                return model
        made = self._make_model(description)
        if made.task is not None:
            with self._lock:
                self._with_tasks[made.key] = made
        return made

    def _settle(self, key: Key, error: ShoalError | None) -> None:
        with self._lock:
            waiting = self._lookups.pop(key, [])
        for settled in waiting:
            settled(error)

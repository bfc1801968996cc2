"""The engine's side of the links to its front ends.

    link of each front end --> Frontend --> LocalEngine --> Frontend --> link, once per iteration

A front end that ends takes its requests with it: they are cancelled, and its memory is freed.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from shoal.core.model_loading import ModelLoading
from shoal.engine.linked.frontend import Frontend
from shoal.engine.linked.groups import Groups
from shoal.engine.linked.messages import ModelDescription
from shoal.engine.local import LocalEngine
from shoal.errors import Unavailable
from shoal.instance.inline import LoopHandle
from shoal.link.link import Link
from shoal.statistics.trace_settings import Changes
from shoal.tasks.files import read_files

logger = logging.getLogger(__name__)

_THREADS = 8  # for calls that block, and as many for those that take long
_TAKE_LONG = {"load", "unload", "register_repository", "unregister_repository", "model_ready"}
_SEEN_SECS = 1.0  # for front ends to forget what they know of a model that was replaced
_REPORT_SECS = 0.5  # for front ends to report; of one that does not, the last report is used


class Control(Protocol):
    """What front ends change in the engine."""

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """See `Engine`."""

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """See `Engine`."""

    def register_repository(self, path: Path, names: Mapping[str, str]) -> None:
        """See `Engine`."""

    def unregister_repository(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """See `Engine`."""

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """See `Engine`."""

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """See `Engine`."""


class EngineService:
    """Serves the front ends. Its methods belong to the loop's thread, unless they say otherwise."""

    def __init__(
        self,
        engine: LocalEngine,
        loop: LoopHandle,
        *,
        control: Control | None = None,
        methods: Mapping[str, Callable[..., Any]] | None = None,
        max_unread_bytes: int = 4 << 30,
    ) -> None:
        """`loop` is the one that runs. `control` is used instead of the engine's own methods.
        `methods` are further ones that front ends may call; they may block, and return plain
        values. No more than `max_unread_bytes` of large responses wait for a front end to read
        them."""
        control = self._controlled = control or engine
        self.engine = engine
        self.max_unread_bytes = max_unread_bytes
        self.after_batches = loop.after_batches
        self.groups = Groups(engine, loop.after_reading)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-engine-calls")
        self._slow_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-slow-calls")
        self.methods: dict[str, Callable[..., Any]] = {
            "readiness": self._readiness,
            "model_ready": engine.model_ready,
            "find": self._find,
            "models": self._models,
            "task_files": self._files_of_task,
            "routes": self._routes,
            "statistics": partial(self._with_reports, engine.statistics),
            "explain": partial(self._with_reports, engine.explain),
            "trace_settings": engine.trace_settings,
            "update_trace_settings": partial(self._control, control.update_trace_settings),
            "record_traces": partial(self._control, engine.record_traces),
            "recorded_traces": engine.recorded_traces,
            "log_settings": engine.log_settings,
            "update_log_settings": partial(self._control, self._update_log_settings),
            "index": engine.index,
            "register_repository": self._register_repository,
            "unregister_repository": self._unregister_repository,
            "load": partial(self._control, control.load),
            "unload": partial(self._control, control.unload),
            **(methods or {}),
        }
        self._keys: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        # From the clock, so that an engine that replaces this one gives none of them again.
        self._next_key = itertools.count(time.monotonic_ns())
        self._described: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by key
        self._task_files: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()
        self._changed = threading.Condition()  # guards the rest
        self._frontends: set[Frontend] = set()
        self._has_replicas = False  # whether front ends may count something for models
        self._changes = 0
        self._asked = 0
        engine.tracer.on_change(self.settings_changed)

    def connect(self, link: Link) -> Frontend:
        """Serve a front end until its link ends."""
        frontend = Frontend(self, link)
        with self._changed:
            self._frontends.add(frontend)
            self._tell_settings(frontend)
        return frontend

    def leave(self, frontend: Frontend) -> None:
        """A front end has ended."""
        with self._changed:
            self._frontends.discard(frontend)
            self._changed.notify_all()

    def frontends(self) -> list[Frontend]:
        """Those that are connected. From any thread."""
        with self._changed:
            return list(self._frontends)

    def close(self) -> None:
        """End all links."""
        for frontend in self.frontends():
            frontend.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._slow_threads.shutdown(wait=False, cancel_futures=True)

    def start_call(self, method: str, run: Callable[..., None], *arguments: Any) -> None:
        """Run a call on a thread. Those that take long do not delay the others."""
        threads = self._slow_threads if method in _TAKE_LONG else self._threads
        threads.submit(run, *arguments)

    def ask_for_reports(self) -> list[Frontend]:
        """Have all front ends send a report, and return those that are connected. Blocks."""
        with self._changed:
            self._asked += 1
            asked = self._asked
            for frontend in self._frontends:
                frontend.send_question(asked)
            self._changed.wait_for(
                lambda: all(frontend.reported >= asked for frontend in self._frontends),
                _REPORT_SECS,
            )
            return list(self._frontends)

    # ---- models

    def model_changed(self, name: str) -> None:
        """Other versions of a model serve now. From any thread."""
        for model in self.engine.models_with_tasks():
            self._files_of(model)
        with self._changed:
            self._changes += 1
            for frontend in self._frontends:
                frontend.send_change(self._changes, name)

    def _files_of_task(self, key: int) -> dict[str, bytes]:
        model = self.served(key)
        if model is None:
            raise Unavailable("the model is being unloaded; try again in a moment")
        return self._files_of(model)

    def _files_of(self, model: Any) -> dict[str, bytes]:
        """The files of a model's task, as they were when it was loaded."""
        files = self._task_files.get(model)
        if files is None:
            files = self._task_files[model] = read_files(model.folders[0])
        return files

    def settings_changed(self) -> None:
        """Other requests may be sampled now, or the log has other settings. From any thread."""
        with self._changed:
            self._changes += 1
            for frontend in self._frontends:
                self._tell_settings(frontend)

    def _tell_settings(self, frontend: Frontend) -> None:
        engine = self.engine
        frontend.send_settings(self._changes, engine.tracer.active, engine.log_settings())

    def seen(self) -> None:
        """A front end has forgotten what it knew, or has ended calls. From any thread."""
        with self._changed:
            self._changed.notify_all()

    def _wait_until_seen(self) -> None:
        """A client that has loaded a model may ask any front end about it next."""
        with self._changed:
            change = self._changes
            self._changed.wait_for(
                lambda: all(frontend.seen >= change for frontend in self._frontends), _SEEN_SECS
            )

    def _control(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        finally:
            self._wait_until_seen()

    def _register_repository(self, path: str, names: dict[str, str]) -> None:
        self._controlled.register_repository(Path(path), names)

    def _unregister_repository(self, path: str, wait_secs: float) -> bool:
        return self._controlled.unregister_repository(Path(path), wait_secs=wait_secs)

    def _update_log_settings(self, changes: Mapping[str, Any]) -> None:
        self._controlled.update_log_settings(changes)
        self.settings_changed()

    def _find(self, name: str, version: int) -> tuple[Any, ...] | str:
        """The description of a model; a text for one that its first request loads."""
        try:
            return self._describe(self.engine.find(name, version), name)
        except ModelLoading as pending:
            return pending.message

    def _models(self) -> list[tuple[Any, ...]]:
        return [self._describe(model, model.name) for model in self.engine.newest_models()]

    def _routes(self) -> list[tuple[str, ...]]:
        return [astuple(route) for route in self.engine.routes()]

    def _describe(self, model: Any, name: str) -> tuple[Any, ...]:
        with self._changed:
            key = self._keys.get(model, 0)
            if not key:
                key = self._keys[model] = next(self._next_key)
                self._described[key] = model
                if model.task is not None:
                    model.task.finish_elsewhere = partial(self._finish_calls, key)
        description = ModelDescription.of(key, model, self.engine.ready_versions(name))
        if description.plan is not None:
            self._has_replicas = True
        return tuple(description)

    def _with_reports(self, read: Callable[..., Any], name: str, version: int) -> Any:
        """Read statistics, which front ends contribute to where they run models themselves."""
        if self._has_replicas:
            self.ask_for_reports()
        return read(name, version)

    def served(self, key: int) -> Any:
        """The model with that key, until it is unloaded."""
        return self._described.get(key)

    def _finish_calls(self, key: int) -> None:
        """Wait until no front end has calls of a model's task under way. Blocks. A front end that
        does not answer is not waited for."""
        with self._changed:
            self._changes += 1
            change = self._changes
            waiting = set(self._frontends)
            for frontend in waiting:
                frontend.send_retirement(change, key)
            self._changed.wait_for(
                lambda: all(each.seen >= change for each in waiting & self._frontends), _SEEN_SECS
            )
            answering = {frontend for frontend in waiting if frontend.seen >= change}
            self._changed.wait_for(
                lambda: all(key in each.retired for each in answering & self._frontends)
            )
            for frontend in waiting:
                frontend.retired.discard(key)

    def _readiness(self) -> tuple[Any, ...]:
        readiness = self.engine.readiness()
        return readiness.ready, [astuple(problem) for problem in readiness.problems]

"""The engine's side of the links to its front ends.

    link of each front end --> Frontend --> LocalEngine --> Frontend --> link, once per iteration

A front end that ends takes its requests with it: they are cancelled, and its memory is freed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from shoal.core import dtypes
from shoal.core.model_loading import ModelLoading
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.reply import DISCARD
from shoal.core.request import DONE, Request
from shoal.core.response import Response
from shoal.core.tensor import Buffer, Tensor
from shoal.core.validate import validate
from shoal.engine.linked import messages
from shoal.engine.linked.messages import ModelDescription
from shoal.engine.linked.tracing import FrontendTraces
from shoal.engine.local import LocalEngine
from shoal.errors import Internal, QueueRejected, ShoalError
from shoal.instance.inline import LoopHandle
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.link import INLINE_BYTES, Link
from shoal.statistics.trace_settings import Changes

logger = logging.getLogger(__name__)

_start = attrgetter("start_ns")
_TYPES = {kind.number: kind for kind in dtypes.ALL}
_THREADS = 8  # for calls that block, and as many for those that take long
_TAKE_LONG = {"load", "unload", "register_repository", "unregister_repository", "model_ready"}
_MOST_BACKLOG_BYTES = 16 << 20  # that a front end has not read, before models are slowed down
_SLOW_DOWN_SECS = 0.001
_SEEN_SECS = 1.0  # for front ends to forget what they know of a model that was replaced
_REPORT_SECS = 0.5  # for front ends to report; of one that does not, the last report is used
_MOST_TEMPLATES = 4096
_LEAST_IN_BLOCK = 2  # a single request has a quicker way


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
    ) -> None:
        """`loop` is the one that runs. `control` is used instead of the engine's own methods.
        `methods` are further ones that front ends may call; they may block, and return plain
        values."""
        control = self._controlled = control or engine
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.after_batches = loop.after_batches
        self._after_reading = loop.after_reading
        self.replies = _Replies()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-engine-calls")
        self._slow_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-slow-calls")
        self.methods: dict[str, Callable[..., Any]] = {
            "readiness": self._readiness,
            "model_ready": engine.model_ready,
            "find": self._find,
            "models": self._models,
            "statistics": engine.statistics,
            "explain": engine.explain,
            "trace_settings": engine.trace_settings,
            "update_trace_settings": partial(self._control, control.update_trace_settings),
            "log_settings": engine.log_settings,
            "update_log_settings": partial(self._control, self._update_log_settings),
            "index": engine.index,
            "register_repository": self._register_repository,
            "unregister_repository": self._unregister_repository,
            "load": partial(self._control, control.load),
            "unload": partial(self._control, control.unload),
            **(methods or {}),
        }
        self._templates: dict[Any, RequestTemplate] = {}
        self._groups: dict[RequestTemplate | None, list[_Group]] = {}
        self._keys: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        # From the clock, so that an engine that replaces this one gives none of them again.
        self._next_key = itertools.count(time.monotonic_ns())
        self._described: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by key
        self._layout_numbers: dict[Any, int] = {}
        self._changed = threading.Condition()  # guards the rest
        self._frontends: set[Frontend] = set()
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
        with self._changed:
            self._changes += 1
            for frontend in self._frontends:
                frontend.send_change(self._changes, name)

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

    def _describe(self, model: Any, name: str) -> tuple[Any, ...]:
        with self._changed:
            key = self._keys.get(model, 0)
            if not key:
                key = self._keys[model] = next(self._next_key)
                self._described[key] = model
                if model.task is not None:
                    model.task.finish_elsewhere = partial(self._finish_calls, key)
        return tuple(ModelDescription.of(key, model, self.engine.ready_versions(name)))

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

    # ---- groups

    def add(self, group: _Group) -> None:
        """Requests have arrived; they run after those of other front ends have been read, too."""
        template = group.known.template
        groups = self._groups.get(template)
        if groups is None:
            groups = self._groups[template] = []
            if len(self._groups) == 1:
                self._after_reading(self.run_groups)
        groups.append(group)

    def run_groups(self) -> None:
        """Run what has arrived: groups of one template as one batch where that is possible."""
        waiting, self._groups = self._groups, {}
        for template, groups in waiting.items():
            if template is None:
                for group in groups:
                    group.frontend.submit(group)
                continue
            block: list[_Group] = []
            rows = 0
            for group in groups:
                if rows + group.size > group.known.most_in_block and block:
                    self._run_block(template, block)
                    block, rows = [], 0
                block.append(group)
                rows += group.size
            self._run_block(template, block)

    def _run_block(self, template: RequestTemplate, block: Sequence[_Group]) -> None:
        responses = self._responses(template, block)
        if responses is None:
            for group in block:
                group.frontend.submit(group)
            return
        layout, contents = responses
        start = 0
        for group in block:
            end = start + group.size
            part = contents
            if len(block) > 1:
                part = [
                    content[start * size : end * size]
                    for content, size in zip(contents, layout.sizes, strict=True)
                ]
            group.frontend.send_results(layout, range(group.first, group.first + group.size), part)
            start = end

    def _responses(
        self, template: RequestTemplate, block: Sequence[_Group]
    ) -> PlannedResponses | None:
        """The responses to all requests of a block, if they can run at once."""
        model = template.live_model()
        total = sum([group.size for group in block])
        if model is None or total > block[0].known.most_in_block or total < _LEAST_IN_BLOCK:
            return None
        columns: list[Buffer]
        if len(block) == 1:
            (group,) = block
            columns = [group.contents[column] for column in group.known.columns(total)]
        else:
            columns = [
                b"".join([g.contents[g.known.columns(g.size)[index]] for g in block])
                for index in range(len(template.sizes))
            ]
        started: list[int] = []
        for group in sorted(block, key=_start) if len(block) > 1 else block:
            started += [group.start_ns] * group.size
        return self.engine.run_block(model, template, columns, started)

    # ---- templates

    def template(self, packed: tuple[Any, ...]) -> RequestTemplate | None:
        """A template for such requests, the same for all front ends. None if they have to be
        checked one by one."""
        name, version, inputs, sizes, outputs, parameters, priority, timeout_us = packed
        key = (name, version, inputs, outputs, tuple(parameters.items()), priority, timeout_us)
        known = self._templates.get(key)
        if known is not None and known.live_model() is not None:
            return known
        sent = {
            tensor: Tensor(tensor, _TYPES[kind], shape, raw=np.zeros(size, np.uint8).data)
            for (tensor, kind, shape), size in zip(inputs, sizes, strict=True)
        }
        request = Request(
            name,
            dict(sent),
            DISCARD,
            model_version=version,
            requested_outputs=outputs,
            parameters=parameters,
            priority=priority,
            timeout_us=timeout_us,
        )
        try:
            model = self.engine.find(name, version)
            if model.decoupled:
                return None
            validate(request, model.signature)
        except ShoalError:
            return None  # each of them gets this error
        request.served_by = model
        template = RequestTemplate.of(request, sent, self.replies)
        if template is not None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return template

    def layout_number(self, layout: ResponseLayout) -> int:
        """The number by which front ends know a layout; the same for equal ones. Any thread."""
        number: int | None = layout.encoded
        if number is None:
            with self._changed:
                numbers = self._layout_numbers
                number = numbers.setdefault(messages.pack_layout(layout), len(numbers) + 1)
            layout.encoded = number
        return number


class _ReplyTo:
    """Where the responses to one request of a front end go."""

    __slots__ = ("frontend", "number")

    def __init__(self, frontend: Frontend, number: int) -> None:
        self.frontend = frontend
        self.number = number

    def send(self, response: Response) -> None:
        """Send one response."""
        self.frontend.respond(self.number, response)


class _Replies:
    """Answers batches of requests that were made from one template, of any front ends."""

    reply_types: tuple[type, ...] = (_ReplyTo,)

    def send_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        replies: Any = [request.reply for request in requests]
        layout, contents = responses
        start, count = 0, len(replies)
        while start < count:
            frontend = replies[start].frontend
            end = start + 1
            while end < count and replies[end].frontend is frontend:
                end += 1
            part = contents
            if end - start < count:
                part = [
                    memoryview(content)[start * size : end * size]
                    for content, size in zip(contents, layout.sizes, strict=True)
                ]
            numbers = [reply.number for reply in replies[start:end]]
            frontend.send_results(layout, numbers, part)
            start = end

    def refuse_all(self, error: QueueRejected, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        by_frontend: dict[Frontend, list[int]] = {}
        for request in requests:
            reply: Any = request.reply
            by_frontend.setdefault(reply.frontend, []).append(reply.number)
        for frontend, numbers in by_frontend.items():
            frontend.send_refusals(error, numbers)


class _KnownTemplate:
    """A template of a front end, and where the inputs of each request of a group are."""

    __slots__ = ("_columns", "_places", "is_large", "most_in_block", "packed", "template")

    def __init__(self, template: RequestTemplate | None, packed: tuple[Any, ...]) -> None:
        self.template = template
        self.packed = packed
        sizes: tuple[int, ...] = packed[3]
        self.is_large = max(sizes, default=0) > INLINE_BYTES
        self.most_in_block = 0  # requests that may run as one batch
        model = None if template is None else template.live_model()
        if template is not None and model is not None and not self.is_large:
            self.most_in_block = model.config.max_batch_size // template.rows
        self._columns: dict[int, list[slice]] = {}
        self._places: dict[int, list[tuple[slice, ...]]] = {}

    def columns(self, count: int) -> list[slice]:
        """Where each input of all requests is, in the contents of a group of `count`."""
        known = self._columns.get(count)
        if known is None:
            known, at = [], 0
            for size in self.packed[3]:
                known.append(slice(at, at + size * count))
                at += size * count
            self._columns[count] = known
        return known

    def places(self, count: int) -> list[tuple[slice, ...]]:
        """Where the inputs of each request are, in the contents of a group of `count`."""
        known = self._places.get(count)
        if known is None:
            columns = list(zip(self.columns(count), self.packed[3], strict=True))
            known = self._places[count] = [
                tuple(
                    slice(column.start + index * size, column.start + (index + 1) * size)
                    for column, size in columns
                )
                for index in range(count)
            ]
        return known


class _Group(NamedTuple):
    """Requests of one template that a front end has sent in one message."""

    frontend: Frontend
    known: _KnownTemplate
    first: int
    size: int  # how many they are
    ids: Sequence[str] | None
    start_ns: int
    contents: Any


class Frontend:
    """One front-end process, as the engine sees it."""

    def __init__(self, service: EngineService, link: Link) -> None:
        self._service = service
        self._link = link
        self.seen = 0
        self.reported = 0  # the number of the last question
        self.on_report: Callable[[Any], None] = lambda _: None
        self.on_end: Callable[[], None] = lambda: None
        self.closed = False
        self.retired: set[int] = set()  # keys of models whose tasks have ended; for the service
        self._requests: dict[int, Request] = {}
        self._templates: dict[int, _KnownTemplate] = {}
        self._layouts: set[int] = set()
        self._telling = threading.Lock()  # so that a layout is announced before it is used
        self._flush_due = False
        self._loads: dict[int, Callable[[], None]] = {}  # what ends the waiting for each
        self._traces = FrontendTraces(service.engine.tracer)
        self._handlers: dict[str, Callable[..., None]] = {
            "hello": lambda _version: None,
            "infer": self._infer,
            "template": self._take_template,
            "forget": self._forget_template,
            "group": self._take_group,
            "cancel": self._cancel,
            "call": self._call,
            "seen": self._take_seen,
            "report": self._take_report,
            "task": self._count_task,
            "leave": self._leave,
            "retired": self._take_retirement,
            "trace": self._traces.start,
            "trace_call": self._traces.start_call,
            "trace_end": self._traces.end,
        }
        service.loop.add_reader(link.fileno(), self._read)

    # ---- from the front end, on the loop

    def _read(self) -> None:
        try:
            received = self._link.receive()
        except ChannelClosed:
            self.close()
            return
        for kind, body in received:
            try:
                self._handlers[kind](*body)
            except Exception:
                logger.exception("a message of a front end could not be handled")

    def close(self) -> None:
        """The front end has ended: no client waits for its requests."""
        if self.closed:
            return
        self.closed = True
        self._service.loop.remove_reader(self._link.fileno())
        self._link.close()
        for request in list(self._requests.values()):
            request.cancel()
        self._requests.clear()
        for number in list(self._loads):
            self._leave(number)
        self._traces.close()
        self._service.leave(self)
        self.on_end()

    def _infer(self, number: int, packed: tuple[Any, ...], key: int) -> None:
        self._service.run_groups()  # which arrived before
        reply = _ReplyTo(self, number)
        try:
            request = messages.unpack_request(self._link, packed, reply)
        except ShoalError as error:  # no memory for its tensors
            reply.send(Response(packed[0], packed[1], packed[2], error=error))
            return
        self._traces.attach(request, packed[messages.TRACE])
        model = self._service.served(key) if key else None
        self._submit(number, request, None if model is None else model.accept)

    def _submit(
        self, number: int, request: Request, accept: Callable[[Request], None] | None = None
    ) -> None:
        """Have the engine take a request over, or answer it with the error."""
        self._requests[number] = request
        try:
            (accept or self._service.engine.infer)(request)
        except ShoalError as error:
            self._refuse(number, request, error)
        except Exception as error:
            logger.exception("a request of a front end failed")
            self._refuse(number, request, Internal(f"{type(error).__name__}: {error}"))

    def _refuse(self, number: int, request: Request, error: ShoalError) -> None:
        """Answer a request that the engine has not taken over: for its trace, it did not run."""
        request.state = DONE
        self.respond(number, Response(request.model_name, -1, request.id, error=error))

    def _take_template(self, number: int, packed: tuple[Any, ...]) -> None:
        self._templates[number] = _KnownTemplate(self._service.template(packed), packed)

    def _forget_template(self, number: int) -> None:
        del self._templates[number]

    def _take_group(
        self,
        template_number: int,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        contents: Any,
    ) -> None:
        known = self._templates[template_number]
        self._service.add(_Group(self, known, first, count, ids, start_ns, contents))

    def submit(self, group: _Group) -> None:
        """Queue the requests of a group, or answer them with the error."""
        _, known, first, count, ids, start_ns, contents = group
        template = known.template
        model = None if template is None else template.live_model()
        if known.is_large:
            try:
                contents = self._link.unpack_buffers(contents)
            except ShoalError as error:  # no memory for their tensors
                name, version = known.packed[:2]
                for number, one in enumerate(ids or [""] * count, first):
                    self.respond(number, Response(name, version, one, error=error))
                return
        if template is None or model is None:
            self._check_each(known, first, count, ids, start_ns, contents)
            return
        engine = self._service.engine
        if known.is_large:
            requests = self._large_requests(template, model, first, count, ids, start_ns, contents)
        else:
            places = known.places(count)
            requests = [
                PlannedRequest(
                    template,
                    contents,
                    places[index],
                    "" if ids is None else ids[index],
                    _ReplyTo(self, first + index),
                    model,
                    start_ns,
                )
                for index in range(count)
            ]
        self._requests.update(zip(range(first, first + count), requests, strict=True))
        try:
            rest = engine.infer_group(requests, model)
        except Exception as error:
            logger.exception("a group of requests failed")
            for request in requests:
                request.fail(Internal(f"{type(error).__name__}: {error}"))
            return
        for request in rest:
            template.expired = True
            request.leave_template()
            reply: Any = request.reply
            self._submit(reply.number, request)

    def _large_requests(
        self,
        template: RequestTemplate,
        model: Any,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        buffers: Sequence[Any],
    ) -> list[PlannedRequest]:
        """Requests whose inputs are in shared memory, each input at a place of its own."""
        width = len(template.sizes)
        requests = []
        for index in range(count):
            request = PlannedRequest(
                template,
                buffers[index * width : (index + 1) * width],
                tuple(range(width)),
                "" if ids is None else ids[index],
                _ReplyTo(self, first + index),
                model,
                start_ns,
            )
            requests.append(request)
        return requests

    def _check_each(
        self,
        known: _KnownTemplate,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        contents: Any,
    ) -> None:
        """Serve requests whose template no longer holds as full ones."""
        name, version, inputs, sizes, outputs, parameters, priority, timeout_us = known.packed
        width = len(sizes)
        buffers: Sequence[Any]
        if known.is_large:
            buffers = contents
        else:
            buffers = [contents[place] for row in known.places(count) for place in row]
        for index in range(count):
            row = buffers[index * width : (index + 1) * width]
            request = Request(
                name,
                {
                    tensor: Tensor(tensor, _TYPES[kind], shape, raw=raw)
                    for (tensor, kind, shape), raw in zip(inputs, row, strict=True)
                },
                _ReplyTo(self, first + index),
                model_version=version,
                id="" if ids is None else ids[index],
                requested_outputs=outputs,
                parameters=dict(parameters),
                priority=priority,
                timeout_us=timeout_us,
            )
            request.start_ns = start_ns
            self._submit(first + index, request)

    def _cancel(self, number: int) -> None:
        self._service.run_groups()  # it may be one of them
        request = self._requests.get(number)
        if request is not None:
            request.cancel()

    def _take_seen(self, change: int) -> None:
        self.seen = change
        self._service.seen()

    def _take_report(self, asked: int, report: Any) -> None:
        self.on_report(report)
        self.reported = asked
        self._service.seen()

    def _take_retirement(self, key: int) -> None:
        self.retired.add(key)
        self._service.seen()

    def _count_task(self, key: int, kind: str, count: int, elapsed_ns: int) -> None:
        model = self._service.served(key)
        if model is not None and model.task is not None:
            model.task.statistics.add(kind, count, elapsed_ns)

    def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "load_on_demand":
            self._load_on_demand(number, *arguments)
        else:
            work = self._service.methods[method]
            self._service.start_call(method, self._run, number, work, arguments)

    def _run(self, number: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run a call, on a thread."""
        try:
            value = work(*arguments)
        except Exception as error:  # noqa: BLE001 - becomes the result
            self._send("raised", number, failure.pack(error))
        else:
            self._send("returned", number, value)

    def _load_on_demand(self, number: int, name: str, version: int) -> None:
        def settled(error: ShoalError | None) -> None:
            self._loads.pop(number, None)
            if error is None:
                self._send("returned", number, None)
            else:
                self._send("raised", number, failure.pack(error))

        try:
            self._service.engine.find(name, version)
        except ModelLoading as pending:
            self._loads[number] = lambda: None  # `settled` may be called before `then` returns
            leave = pending.then(settled)
            if number in self._loads:
                self._loads[number] = leave
        except ShoalError as error:
            settled(error)
        else:
            settled(None)

    def _leave(self, number: int) -> None:
        """No client waits for a load any more."""
        leave = self._loads.pop(number, None)
        if leave is not None:
            leave()

    # ---- to the front end, from any thread

    def _send(self, kind: str, *body: Any) -> None:
        """Send a message; on the loop, those of one iteration together."""
        link = self._link
        try:
            if threading.get_ident() != self._service.thread:
                if link.backlog_bytes > _MOST_BACKLOG_BYTES:
                    time.sleep(_SLOW_DOWN_SECS)  # and no longer: others may need this thread
                link.send(kind, *body)
                return
            link.send(kind, *body, more=True)
        except ChannelClosed:
            return  # `_read` sees the end, too
        if not self._flush_due:
            self._flush_due = True
            self._service.after_batches(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        try:
            self._link.flush()
        except ChannelClosed:
            return

    def respond(self, number: int, response: Response) -> None:
        """Send one of a request's responses."""
        if response.final:
            self._requests.pop(number, None)
        if self.closed:
            return
        try:
            packed = messages.pack_response(self._link, response)
        except Exception as error:
            logger.exception("a response could not be sent to its front end")
            failed = Response(
                response.model_name,
                response.model_version,
                response.request_id,
                error=Internal(f"{type(error).__name__}: {error}"),
            )
            packed = messages.pack_response(self._link, failed)
        self._send("response", number, packed)

    def send_results(
        self, layout: ResponseLayout, numbers: Sequence[int], contents: Sequence[Any]
    ) -> None:
        """Send the only responses of requests of one template."""
        requests = self._requests
        if requests:
            for one in numbers:
                requests.pop(one, None)
        if self.closed:
            return
        number = self._service.layout_number(layout)
        if number not in self._layouts:
            with self._telling:
                if number not in self._layouts:
                    self._send("layout", number, messages.pack_layout(layout))
                    self._layouts.add(number)
        span = (numbers.start, len(numbers)) if isinstance(numbers, range) else numbers
        self._send("results", number, span, self._link.pack_buffers(contents))

    def send_refusals(self, error: QueueRejected, numbers: list[int]) -> None:
        """Send the error of requests of one template that found no room."""
        for number in numbers:
            self._requests.pop(number, None)
        self._send("refused", failure.pack(error), numbers)

    def send_change(self, change: int, name: str) -> None:
        """Other versions of a model serve now."""
        self._send("changed", change, name)

    def send_retirement(self, change: int, key: int) -> None:
        """A model is about to be unloaded: calls of its task are to end."""
        self._send("retire", change, key)

    def send_question(self, number: int) -> None:
        """Ask for a report."""
        self._send("question", number)

    def send_settings(self, change: int, tracing: bool, log: Mapping[str, Any]) -> None:
        """Whether requests may be sampled, and the settings of the log."""
        self._send("settings", change, tracing, log)

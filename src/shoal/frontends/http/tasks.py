"""POST …/classify, …/answer and so on: the tasks of models.

    photo or JSON --> TaskRequest --> engine.task --> JSON, or with ?stream=true events

`/classify` without a model works where one loaded model has that task.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from shoal.engine import Engine
from shoal.errors import Unsupported
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import STATUS, as_shoal_error, note_error, send_error
from shoal.frontends.http.events import EVENT_HEADERS, event, room
from shoal.frontends.http.message import error_body
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import send_json
from shoal.frontends.http.routes import (
    BINARY_MEDIA,
    EVENT_MEDIA,
    FORM_MEDIA,
    JSON_MEDIA,
    MODEL_VERSION,
    Target,
    route,
)
from shoal.frontends.http.traced import serve_traced, trace_of
from shoal.frontends.http.upload import read_upload, reads_quickly
from shoal.frontends.threads import without_frames
from shoal.tasks.endpoint import TaskCall
from shoal.tasks.request import TaskRequest
from shoal.wire import json_text

_route = partial(
    route, api="inference", loads_model=True, request_media=(JSON_MEDIA, FORM_MEDIA, BINARY_MEDIA)
)
_task = partial(
    _route,
    name="task",
    response="TaskAnswer",
    response_media=(JSON_MEDIA, EVENT_MEDIA),
    request="TaskRequest",
    page="tasks",
)
_classify = partial(
    _route, name="classify", response="PhotoLabels", request="PhotoRequest", page="photos"
)


class TaskRoutes:
    """Serves the operations of all tasks."""

    def __init__(self, engine: Engine, options: HttpOptions) -> None:
        self._engine = engine
        self._options = options
        self._running: set[asyncio.Task[None]] = set()  # the loop holds only weak references

    @_classify(
        f"POST {MODEL_VERSION}/{{operation:classify}}",
        summary="Labels for photos",
        description="For models with the task image-classification. A form with any number of "
        "files, the bytes of one file, or JSON with base64. `top` may be in the query.",
    )
    @_classify(
        "POST /{operation:classify}",
        summary="Labels for photos, from the only loaded model that classifies",
    )
    @_task(
        f"POST {MODEL_VERSION}/{{operation}}",
        summary="Call a model's task: classify, answer, embed, predict, rerank or another one",
        description="A form with files, JSON, or the bytes of a file. Values may be in the query. "
        "With `stream=true`, where a task supports it, an event for each piece.",
    )
    @_task("POST /{operation}", summary="Call the task of the only loaded model that has it")
    def perform(self, exchange: Exchange, target: Target) -> None:
        """Serve one call of a task. If this raises, there was no response."""
        if exchange.caller is not None and not target.model:
            names = self._models(target)
            model = exchange.caller.only_model(names, target.operation)
            target = dataclasses.replace(target, model=model)
        tracer = self._engine.tracer
        if tracer.active:
            named = dataclasses.replace(target, model=target.model or self._only_model(target))
            if serve_traced(tracer, exchange, named, self._start):
                return
        self._start(exchange, target)

    def _only_model(self, target: Target) -> str:
        """The model that serves the operation where the path names none; empty if several do."""
        names = self._models(target)
        return names[0] if len(names) == 1 else ""

    def _models(self, target: Target) -> list[str]:
        """The models that offer the operation."""
        tasks = self._engine.tasks()
        return [name for name, _, task in tasks if task.operation == target.operation]

    def _start(self, exchange: Exchange, target: Target) -> None:
        call = self._engine.task(target.operation, target.model, target.version)
        work: Coroutine[Any, Any, None]
        if reads_quickly(exchange.request):
            try:
                request = read_upload(exchange.request, self._options.max_input_bytes)
                work = _serve(exchange, call, request, stream=request.flag("stream"))
            except BaseException:
                call.leave()
                raise
        else:
            work = self._read_and_serve(exchange, call)
        trace = trace_of(exchange)
        if trace is not None:
            call.trace(trace)
        running = _started(work)
        self._running.add(running)

        def ended(over: asyncio.Task[None]) -> None:
            self._running.discard(over)
            call.leave()

        running.add_done_callback(ended)
        exchange.on_disconnect = running.cancel

    async def _read_and_serve(self, exchange: Exchange, call: TaskCall) -> None:
        most_bytes = self._options.max_input_bytes
        try:
            read = partial(read_upload, exchange.request, most_bytes)
            request = await asyncio.to_thread(without_frames(read))
            stream = request.flag("stream")
        except Exception as error:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(error))
            return
        await _serve(exchange, call, request, stream=stream)


def _started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that has begun, where Python can do that: the loop would begin it one iteration later,
    after it has read what other clients have sent meanwhile."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.ensure_future(work)


def _serve(
    exchange: Exchange, call: TaskCall, request: TaskRequest, *, stream: bool
) -> Coroutine[Any, Any, None]:
    return (_send_events if stream else _send_result)(exchange, call, request)


async def _send_result(exchange: Exchange, call: TaskCall, request: TaskRequest) -> None:
    try:
        send_json(exchange, await call.perform(request))
    except Exception as error:  # noqa: BLE001 - becomes the response
        send_error(exchange, as_shoal_error(error))


async def _send_events(exchange: Exchange, call: TaskCall, request: TaskRequest) -> None:
    pieces = call.stream(request)
    started = False
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if not started:
                    started = True
                    exchange.start_stream(200, EVENT_HEADERS)
                exchange.send_chunk(event(json_text.dumps(piece)))
                await room(exchange)
        if not started:
            raise Unsupported("the task returned nothing")
    except Exception as failure:  # noqa: BLE001 - becomes the response, or its last event
        error = as_shoal_error(failure)
        if not started:
            send_error(exchange, error)
            return
        note_error(exchange, STATUS[error.code], error.message)
        exchange.send_chunk(event(error_body(error.message)))
    exchange.end_stream()

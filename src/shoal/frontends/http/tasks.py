"""POST …/classify, …/answer and so on: a model's task, for people.

    photo or JSON --> Asked --> engine.task --> JSON, or with ?stream=true an event for each piece

`/classify` alone works too where one loaded model offers it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from shoal.errors import Unsupported
from shoal.frontends.http.contracts import Engine, Exchange
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
from shoal.frontends.http.upload import read_upload
from shoal.tasks.asked import Asked
from shoal.tasks.door import TaskCall
from shoal.wire import json_text

_REQUEST_MEDIA = (JSON_MEDIA, FORM_MEDIA, BINARY_MEDIA)


class TaskRoutes:
    """Serves the operations of all tasks."""

    def __init__(self, engine: Engine, options: HttpOptions) -> None:
        self._engine = engine
        self._options = options
        self._under_way: set[asyncio.Task[None]] = set()  # the loop itself does not keep them

    @route(
        f"POST {MODEL_VERSION}/{{operation:classify}}",
        api="inference",
        name="classify",
        loads_model=True,
        summary="Labels for photos",
        description="For models with the task image-classification. A form with any number of "
        "files, the bytes of one file, or JSON with base64. `top` may be in the query.",
        response="PhotoLabels",
        request="PhotoRequest",
        request_media=_REQUEST_MEDIA,
        page="photos",
    )
    @route(
        "POST /{operation:classify}",
        api="inference",
        name="classify",
        loads_model=True,
        summary="Labels for photos, from the only loaded model that classifies",
        response="PhotoLabels",
        request="PhotoRequest",
        request_media=_REQUEST_MEDIA,
        page="photos",
    )
    @route(
        f"POST {MODEL_VERSION}/{{operation}}",
        api="inference",
        name="task",
        loads_model=True,
        summary="Call a model's task: classify, answer, caption, embed, or one of your own",
        description="A form with files, JSON, or the bytes of a file. Values may be in the query. "
        "With `stream=true`, where a task supports it, an event for each piece.",
        response="TaskAnswer",
        response_media=(JSON_MEDIA, EVENT_MEDIA),
        request="TaskRequest",
        request_media=_REQUEST_MEDIA,
        page="tasks",
    )
    @route(
        "POST /{operation}",
        api="inference",
        name="task",
        loads_model=True,
        summary="Call the task of the only loaded model that has it",
        response="TaskAnswer",
        response_media=(JSON_MEDIA, EVENT_MEDIA),
        request="TaskRequest",
        request_media=_REQUEST_MEDIA,
        page="tasks",
    )
    def perform(self, exchange: Exchange, target: Target) -> None:
        """Answer one call of a task. If this raises, it was not answered."""
        call = self._engine.task(target.operation, target.model, target.version)
        try:
            asked = read_upload(exchange.request, self._options.max_input_bytes)
            answer = _events if asked.flag("stream") else _whole
        except BaseException:
            call.leave()
            raise
        self.start(exchange, answer(exchange, call, asked), call)

    def start(self, exchange: Exchange, work: Any, call: TaskCall) -> None:
        """Run the coroutine that answers `exchange`; it ends early when the client goes away."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._under_way.add(task)

        def ended(over: asyncio.Task[None]) -> None:
            self._under_way.discard(over)
            call.leave()

        task.add_done_callback(ended)
        exchange.on_disconnect = task.cancel


async def _whole(exchange: Exchange, call: TaskCall, asked: Asked) -> None:
    try:
        send_json(exchange, await call.perform(asked))
    except Exception as error:  # noqa: BLE001 - becomes the answer
        send_error(exchange, as_shoal_error(error))


async def _events(exchange: Exchange, call: TaskCall, asked: Asked) -> None:
    pieces = call.stream(asked)
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
            raise Unsupported("the task gave no answer at all")
    except Exception as failure:  # noqa: BLE001 - becomes the answer, or its last event
        error = as_shoal_error(failure)
        if not started:
            send_error(exchange, error)
            return
        note_error(exchange, STATUS[error.code], error.message)
        exchange.send_chunk(event(error_body(error.message)))
    exchange.end_stream()

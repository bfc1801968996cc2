"""The handlers of /v1/…: read the body, find the model, respond in OpenAI's format.

    exchange --> coroutine --> JSON, or with "stream": true an event for each piece and [DONE]

Each call is a coroutine. It waits for models that are loaded on demand, and is cancelled when its
client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from shoal.core.inbox import LoopInbox
from shoal.core.response import ParameterValue
from shoal.engine import Engine, EngineModel
from shoal.errors import InvalidArgument, NotFound
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error
from shoal.frontends.http.events import EVENT_HEADERS, event, room
from shoal.frontends.http.openai import embeddings, reranking, speech
from shoal.frontends.http.openai.errors import OpenAiError, described, no_such_model, send_error
from shoal.frontends.http.openai.fields import Fields
from shoal.frontends.http.openai.generation import Generation, TextPiece
from shoal.frontends.http.openai.merging import merged
from shoal.frontends.http.openai.prompts import plain_prompt, read_messages, read_photo
from shoal.frontends.http.openai.sampling import ModelInputs, read_sampling
from shoal.frontends.http.openai.text_model import TextModel
from shoal.frontends.http.openai.text_responses import (
    ChatMessage,
    Completion,
    TextResponse,
    usage_of,
)
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import send_json
from shoal.frontends.http.routes import Target
from shoal.frontends.http.traced import serve_traced, trace_of
from shoal.frontends.http.upload import read_upload, reads_quickly
from shoal.frontends.threads import without_frames
from shoal.frontends.waiting import once_loaded
from shoal.statistics.trace import CallSpan
from shoal.tasks.request import TaskRequest
from shoal.wire import json_text

Found = TypeVar("Found")

MOST_TEXTS = 128  # choices of one request
_DONE = b"[DONE]"
_OPERATIONS = frozenset((embeddings.OPERATION, reranking.OPERATION, speech.OPERATION))


class OpenAiRoutes:
    """Serves all of them, on the event loop's thread."""

    def __init__(self, engine: Engine, inbox: LoopInbox, options: HttpOptions) -> None:
        self._engine = engine
        self._inbox = inbox
        self._options = options
        pattern = options.header_forward_pattern
        self._forwarding = HeaderForwarding(pattern, options.hidden_headers) if pattern else None
        self._running: set[asyncio.Task[None]] = set()  # the loop holds only weak references
        self._text_models: WeakKeyDictionary[EngineModel, TextModel | None] = WeakKeyDictionary()

    # ---- models

    def models(self, exchange: Exchange, _target: Target) -> None:
        """GET /v1/models."""
        listed = [
            _catalogue_entry(model)
            for model in self._engine.newest_models()
            if exchange.caller is None or exchange.caller.may_use(model.name)
            if _has_task(model) or self._as_text_model(model) is not None
        ]
        send_json(exchange, {"object": "list", "data": listed})

    def model(self, exchange: Exchange, target: Target) -> None:
        """GET /v1/models/{model}."""
        self._start(exchange, self._describe(exchange, target.model))

    async def _describe(self, exchange: Exchange, name: str) -> None:
        model = await self._loaded(name, lambda: self._engine.find(name))
        if not _has_task(model) and self._as_text_model(model) is None:
            raise no_such_model(name)
        send_json(exchange, _catalogue_entry(model))

    # ---- embeddings

    def embeddings(self, exchange: Exchange, target: Target) -> None:
        """POST /v1/embeddings."""
        fields = Fields.of(exchange.request, self._options.max_input_bytes)
        self._traced(exchange, target, fields, self._embed)

    async def _embed(self, exchange: Exchange, fields: Fields) -> None:
        request = embeddings.read(fields)
        try:
            found = await self._performed(exchange, fields.model, embeddings.OPERATION, request)
        except InvalidArgument as error:
            raise _translated(error, embeddings.translated) from None
        send_json(exchange, embeddings.response(found, fields.model))

    def rerank(self, exchange: Exchange, target: Target) -> None:
        """POST /v1/rerank."""
        fields = Fields.of(exchange.request, self._options.max_input_bytes)
        self._traced(exchange, target, fields, self._rank)

    async def _rank(self, exchange: Exchange, fields: Fields) -> None:
        request = reranking.read(fields)
        try:
            found = await self._performed(exchange, fields.model, reranking.OPERATION, request)
        except InvalidArgument as error:
            raise _translated(error, reranking.translated) from None
        send_json(exchange, reranking.response(found, fields.model))

    def speech(self, exchange: Exchange, target: Target, purpose: str) -> None:
        """POST /v1/audio/transcriptions and /v1/audio/translations."""
        self._start(exchange, self._read_speech(exchange, target, purpose))

    async def _read_speech(self, exchange: Exchange, target: Target, purpose: str) -> None:
        read = partial(read_upload, exchange.request, self._options.max_input_bytes)
        if reads_quickly(exchange.request):
            sent = read()
        else:
            sent = await asyncio.to_thread(without_frames(read))

        async def transcribe(through: Exchange, fields: Fields) -> None:
            request = speech.read(fields, sent.files, purpose)
            form = speech.format_of(fields)
            try:
                found = await self._performed(through, fields.model, speech.OPERATION, request)
            except InvalidArgument as error:
                raise _translated(error, speech.translated) from None
            speech.respond(through, found, form)

        self._traced(exchange, target, Fields(sent.values), transcribe)

    async def _performed(
        self, exchange: Exchange, name: str, operation: str, request: TaskRequest
    ) -> Any:
        """The result of a model's task. Raises OpenAiError if it has another one."""
        await self._loaded(name, lambda: self._engine.find(name))
        try:
            call = await self._loaded(name, lambda: self._engine.task(operation, name))
        except InvalidArgument as error:
            raise _of_model(error) from None
        trace = trace_of(exchange)
        if trace is not None:
            call.trace(trace)
        try:
            return await call.perform(request)
        finally:
            call.leave()

    # ---- text

    def completions(self, exchange: Exchange, target: Target) -> None:
        """POST /v1/completions."""
        fields = Fields.of(exchange.request, self._options.max_input_bytes)
        self._traced(exchange, target, fields, self._complete)

    def chat(self, exchange: Exchange, target: Target) -> None:
        """POST /v1/chat/completions."""
        fields = Fields.of(exchange.request, self._options.max_input_bytes)
        self._traced(exchange, target, fields, self._converse)

    async def _complete(self, exchange: Exchange, fields: Fields) -> None:
        prompts = list(fields.texts("prompt", most=MOST_TEXTS))
        if not prompts:
            raise OpenAiError("'prompt' is missing: send a text or a list of texts", "prompt")
        text_model = await self._text_model(fields.model)
        if text_model.prompt is None:
            raise OpenAiError(
                f"the model '{fields.model}' takes photos: use /v1/chat/completions", "model"
            )
        await self._generate(exchange, fields, text_model, prompts, Completion(fields.model))

    async def _converse(self, exchange: Exchange, fields: Fields) -> None:
        text_model = await self._text_model(fields.model)
        if text_model.prompt is None:
            prompt = read_photo(fields.get("messages"), fields.model)
        else:
            messages = read_messages(fields.get("messages"), fields.model)
            if text_model.has_template:
                prompt = await asyncio.to_thread(lambda: text_model.chat_template()(messages))
            else:
                prompt = plain_prompt(messages)
        await self._generate(exchange, fields, text_model, [prompt], ChatMessage(fields.model))

    async def _generate(
        self,
        exchange: Exchange,
        fields: Fields,
        text_model: TextModel,
        prompts: list[str],
        response: TextResponse,
    ) -> None:
        stream = fields.flag("stream")
        echo = fields.flag("echo") and isinstance(response, Completion)
        count = fields.integer("n", 1, lowest=1, highest=MOST_TEXTS)
        if count * len(prompts) > MOST_TEXTS:
            raise OpenAiError(f"at most {MOST_TEXTS} texts can be generated in one request", "n")
        with_usage = _includes_usage(fields, stream=stream)
        sampling = read_sampling(fields, text_model)
        model_inputs = ModelInputs(text_model, sampling)
        parameters = self._forwarded(exchange)
        generations = [
            Generation(
                text_model,
                model_inputs,
                sampling,
                index=position * count + number,
                prompt=prompt,
                number=number,
                stream=stream and text_model.decoupled,
                parameters=parameters,
            )
            for position, prompt in enumerate(prompts)
            for number in range(count)
        ]
        trace = trace_of(exchange)
        call = None
        if trace is not None:
            call = trace.start_call(text_model.name, text_model.version)
        pieces = merged([one.pieces(self._engine, self._inbox, call) for one in generations])
        if call is not None:
            pieces = _ending(call, pieces)
        opening = {one.index: one.prompt if echo else "" for one in generations}
        if stream:

            def ended() -> dict[str, Any]:
                return usage_of(generations, len(prompts))

            await _send_events(exchange, pieces, response, opening, ended if with_usage else None)
            return
        texts = {index: [text] for index, text in opening.items()}
        ends: dict[int, str] = {}
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                texts[piece.index].append(piece.text)
                ends[piece.index] = piece.end
        whole = [("".join(texts[index]), ends[index]) for index in sorted(texts)]
        send_json(exchange, response.whole(whole, usage_of(generations, len(prompts))))

    # ---- shared by all calls

    def _traced(
        self,
        exchange: Exchange,
        target: Target,
        fields: Fields,
        handle: Callable[[Exchange, Fields], Coroutine[Any, Any, None]],
    ) -> None:
        """Serve the call, as part of a trace if it is sampled."""
        if exchange.caller is not None:
            exchange.caller.check_model(fields.model)

        def serve(through: Exchange, _target: Target) -> None:
            self._start(through, handle(through, fields))

        tracer = self._engine.tracer
        named = dataclasses.replace(target, model=fields.model)
        if not (tracer.active and serve_traced(tracer, exchange, named, serve)):
            serve(exchange, target)

    def _start(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that responds to `exchange`; what it raises becomes the response."""

        async def responded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - becomes the response
                send_error(exchange, as_shoal_error(error))

        task = asyncio.ensure_future(responded())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        exchange.on_disconnect = task.cancel

    async def _loaded(self, name: str, find: Callable[[], Found]) -> Found:
        """The result of `find`, once the model is loaded if that happens on demand.

        Raises OpenAiError for a model that does not exist.
        """
        try:
            return await once_loaded(find)
        except NotFound:
            raise no_such_model(name) from None

    async def _text_model(self, name: str) -> TextModel:
        model = await self._loaded(name, lambda: self._engine.find(name))
        found = self._as_text_model(model)
        if found is None:
            raise OpenAiError(
                f"the model '{name}' does not generate text: it needs a BYTES input such as "
                f"text_input or image, and a BYTES output such as text_output",
                "model",
            )
        return found

    def _as_text_model(self, model: EngineModel) -> TextModel | None:
        try:
            return self._text_models[model]
        except KeyError:
            found = self._text_models[model] = TextModel.of(model)
            return found

    def _forwarded(self, exchange: Exchange) -> dict[str, ParameterValue]:
        parameters: dict[str, ParameterValue] = {}
        if self._forwarding is not None:
            self._forwarding.forward(exchange.request.headers, parameters)
        return parameters


def _has_task(model: EngineModel) -> bool:
    """Whether a loaded model has the task of one of these routes."""
    return model.task is not None and model.task.operation in _OPERATIONS


def _catalogue_entry(model: EngineModel) -> dict[str, Any]:
    """A model in the list; `created` is when it was loaded."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.loaded_ms // 1000,
        "owned_by": "shoal",
    }


def _of_model(error: InvalidArgument) -> OpenAiError:
    """The error for a model that does not exist or does not support the call."""
    return error if isinstance(error, OpenAiError) else OpenAiError(error.message, "model")


def _translated(
    error: InvalidArgument, translate: Callable[[InvalidArgument], OpenAiError]
) -> OpenAiError:
    return error if isinstance(error, OpenAiError) else translate(error)


def _includes_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if type(options) is not dict or not stream:
        raise OpenAiError(
            "'stream_options' must be an object, and requires \"stream\": true", "stream_options"
        )
    return bool(options.get("include_usage"))


async def _ending(
    call: CallSpan, pieces: AsyncGenerator[TextPiece, None]
) -> AsyncGenerator[TextPiece, None]:
    """The same pieces; their end is the end of the call."""
    error = "cancelled"
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece
        error = ""
    except Exception as raised:
        error = str(raised)
        raise
    finally:
        call.end(error)


async def _send_events(
    exchange: Exchange,
    pieces: AsyncGenerator[TextPiece, None],
    response: TextResponse,
    opening: dict[int, str],
    usage: Callable[[], dict[str, Any]] | None,
) -> None:
    """Send each piece as it arrives. An error before the first of them is raised."""
    more: dict[str, Any] = {} if usage is None else {"usage": None}
    started = False
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if not started:
                    started = True
                    exchange.start_stream(200, EVENT_HEADERS)
                first = piece.index in opening
                text = opening.pop(piece.index, "") + piece.text
                delta = response.delta(dataclasses.replace(piece, text=text), first=first)
                exchange.send_chunk(event(json_text.dumps(response.chunk([delta], more))))
                await room(exchange)
        if usage is not None:
            last = response.chunk([], {"usage": usage()})
            exchange.send_chunk(event(json_text.dumps(last)))
    except Exception as failure:
        if not started:
            raise
        error = as_shoal_error(failure)
        exchange.send_chunk(event(json_text.dumps(described(error))))
    exchange.send_chunk(event(_DONE))
    exchange.end_stream()

"""The declared routes of OpenAI's API. The first request for one imports the handlers."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from shoal.core.inbox import LoopInbox
from shoal.engine import Engine
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import (
    EVENT_MEDIA,
    FORM_MEDIA,
    JSON_MEDIA,
    TEXT_MEDIA,
    Target,
    route,
)

if TYPE_CHECKING:
    from shoal.frontends.http.openai.routes import OpenAiRoutes

_route = partial(route, error="OpenAiError", page="openai")
_STREAMS = (
    'For models that take and return text. With "stream": true an event for each piece, then '
    "`data: [DONE]`."
)


class OpenAiEndpoints:
    """Passes each request to `OpenAiRoutes`."""

    def __init__(self, engine: Engine, inbox: LoopInbox, options: HttpOptions) -> None:
        self._parts = (engine, inbox, options)

    @cached_property
    def _routes(self) -> OpenAiRoutes:
        from shoal.frontends.http.openai.routes import OpenAiRoutes

        return OpenAiRoutes(*self._parts)

    @_route("GET /v1/models", api="metadata", response="OpenAiModels")
    def openai_models(self, exchange: Exchange, target: Target) -> None:
        """The models that OpenAI's clients can use."""
        self._routes.models(exchange, target)

    @_route("GET /v1/models/{model}", api="metadata", response="OpenAiModel")
    def openai_model(self, exchange: Exchange, target: Target) -> None:
        """One of these models."""
        self._routes.model(exchange, target)

    @_route(
        "POST /v1/embeddings",
        api="inference",
        response="OpenAiEmbeddings",
        request="OpenAiEmbeddingsRequest",
    )
    def openai_embeddings(self, exchange: Exchange, target: Target) -> None:
        """Vectors for texts, in OpenAI's format.

        For models with the task sentence-embedding.
        """
        self._routes.embeddings(exchange, target)

    @_route(
        "POST /v2/rerank",
        api="inference",
        name="cohere_rerank",
        summary="As /v1/rerank, for Cohere's newer clients",
        response="RerankResults",
        request="RerankRequest",
    )
    @_route(
        "POST /v1/rerank",
        api="inference",
        response="RerankResults",
        request="RerankRequest",
    )
    def rerank(self, exchange: Exchange, target: Target) -> None:
        """Documents in the order of a query, as clients of Cohere and Jina expect it.

        For models with the task rerank.
        """
        self._routes.rerank(exchange, target)

    @_route(
        "POST /v1/audio/transcriptions",
        api="inference",
        response="Transcription",
        response_media=(JSON_MEDIA, TEXT_MEDIA),
        request="TranscriptionRequest",
        request_media=(FORM_MEDIA,),
    )
    def openai_transcriptions(self, exchange: Exchange, target: Target) -> None:
        """The words of speech, in OpenAI's format.

        For models with the task transcription.
        """
        self._routes.speech(exchange, target, "transcribe")

    @_route(
        "POST /v1/audio/translations",
        api="inference",
        response="Transcription",
        response_media=(JSON_MEDIA, TEXT_MEDIA),
        request="TranscriptionRequest",
        request_media=(FORM_MEDIA,),
    )
    def openai_translations(self, exchange: Exchange, target: Target) -> None:
        """The words of speech in English, in OpenAI's format."""
        self._routes.speech(exchange, target, "translate")

    @_route(
        "POST /v1/completions",
        api="inference",
        summary="Continue a text, in OpenAI's format",
        description=_STREAMS,
        response="OpenAiCompletion",
        response_media=(JSON_MEDIA, EVENT_MEDIA),
        request="OpenAiCompletionRequest",
    )
    def openai_completions(self, exchange: Exchange, target: Target) -> None:
        """Continue a text."""
        self._routes.completions(exchange, target)

    @_route(
        "POST /v1/chat/completions",
        api="inference",
        summary="The next message of a conversation, in OpenAI's format",
        description=_STREAMS,
        response="OpenAiChatCompletion",
        response_media=(JSON_MEDIA, EVENT_MEDIA),
        request="OpenAiChatRequest",
    )
    def openai_chat(self, exchange: Exchange, target: Target) -> None:
        """The next message of a conversation."""
        self._routes.chat(exchange, target)

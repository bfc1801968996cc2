"""GET …/explain: why batches are as they are and how to improve them, as JSON or as prose."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from shoal.engine import Engine
from shoal.errors import InvalidArgument
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header, HttpRequest
from shoal.frontends.http.responses import respond_if_blocking, send_json
from shoal.frontends.http.routes import JSON_MEDIA, MODEL_VERSION, TEXT_MEDIA, Target, route
from shoal.scheduler.explain import as_text

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")
_NO_MODEL = "No model is loaded.\n"
_FORMAT = ("format", "prose, or JSON", ("json", "text"))


class ExplainRoute:
    """Serves the explanation of one model, and of all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @route(
        "GET /v2/explain",
        api="statistics",
        summary="Explain the batches of all models and how to improve them",
        response="Explanations",
        response_media=(JSON_MEDIA, TEXT_MEDIA),
        query=(_FORMAT,),
        page="explain",
    )
    @route(
        f"GET {MODEL_VERSION}/explain",
        api="statistics",
        summary="Explain the batches of a model and how to improve them",
        response="Explanation",
        response_media=(JSON_MEDIA, TEXT_MEDIA),
        query=(_FORMAT,),
        page="explain",
    )
    def explain(self, exchange: Exchange, target: Target) -> None:
        """Explain one model (its newest version unless the path names one), or all models."""
        prose = _wants_prose(exchange.request)
        caller = exchange.caller

        def respond(found: list[dict[str, Any]]) -> None:
            if caller is not None:
                found = [each for each in found if caller.may_use(each["name"])]
            if prose:
                text = "\n".join(as_text(model) for model in found) or _NO_MODEL
                exchange.respond(200, [_TEXT], [text.encode()])
            else:
                send_json(exchange, found[0] if target.model else {"models": found})

        respond_if_blocking(
            exchange,
            self._engine.asks_process,
            lambda: self._engine.explain(target.model, target.version),
            respond=respond,
        )


def _wants_prose(request: HttpRequest) -> bool:
    """By `?format=`, or else by the first media type the client accepts."""
    formats = parse_qs(request.query, keep_blank_values=True).get("format")
    if formats is not None:
        chosen = formats[-1]
        if chosen not in ("text", "json"):
            raise InvalidArgument(f"unknown format '{chosen}': write format=text or format=json")
        return chosen == "text"
    accepted = (request.header(b"accept") or b"").decode("latin-1").lower().split(",")
    return accepted[0].partition(";")[0].strip() == "text/plain"

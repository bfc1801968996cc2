"""GET …/explain: why batches are as they are, and what would help, as JSON or as prose."""

from __future__ import annotations

from urllib.parse import parse_qs

from shoal.errors import InvalidArgument
from shoal.frontends.http.answers import send_json
from shoal.frontends.http.contracts import Engine, Exchange, HttpRequest
from shoal.frontends.http.message import Header
from shoal.frontends.http.routes import Target
from shoal.scheduler.explain import as_text

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")
_NOTHING = "No model is loaded.\n"


class ExplainRoute:
    """Serves the explanation of a model, and of all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def explain(self, exchange: Exchange, target: Target) -> None:
        """GET /v2/explain, or …/explain of a model's newest version or of the one named."""
        prose = _wants_prose(exchange.request)
        found = self._engine.explain(target.model, target.version)
        if prose:
            text = "\n".join(as_text(model) for model in found) or _NOTHING
            exchange.respond(200, [_TEXT], [text.encode()])
        else:
            send_json(exchange, found[0] if target.model else {"models": found})


def _wants_prose(request: HttpRequest) -> bool:
    """By `?format=`, or else by what the client accepts first."""
    asked = parse_qs(request.query, keep_blank_values=True).get("format")
    if asked is not None:
        if asked[-1] not in ("text", "json"):
            raise InvalidArgument(f"unknown format '{asked[-1]}': write format=text or format=json")
        return asked[-1] == "text"
    accepted = (request.header(b"accept") or b"").decode("latin-1").lower().split(",")
    return accepted[0].partition(";")[0].strip() == "text/plain"

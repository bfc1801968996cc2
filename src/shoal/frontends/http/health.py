"""Health over HTTP: whether the server is alive, whether it is ready, whether a model is ready.

The status says it all, and as in Triton there is no body: scripts compare what curl prints with
`-w '%{http_code}'`. Clients that parse a body get that of the Open Inference Protocol. `?verbose`
is for people: the same status, with the reasons.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from shoal.access.caller import Caller
from shoal.core.readiness import Problem, Readiness
from shoal.engine import Engine
from shoal.errors import Unavailable
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON, send_refusal
from shoal.frontends.http.keys import HttpKeys
from shoal.frontends.http.responses import respond_if_blocking, send_empty, send_json
from shoal.frontends.http.routes import MODEL_VERSION, Target, route
from shoal.wire import json_text

_PARSES_BODY = b"python-httpx/"  # KServe's client, which accepts `*/*` as curl does
_VERBOSE = ("verbose", "with the reasons", ("", "true", "false"))


class HealthRoutes:
    """Serves the health endpoints."""

    def __init__(self, engine: Engine, keys: HttpKeys | None = None) -> None:
        """With `keys`, clients see only reasons about models that their key permits."""
        self._engine = engine
        self._keys = keys

    @route("GET /v2/health/live", api="health", response="Live")
    def live(self, exchange: Exchange, _target: Target) -> None:
        """Whether the server is alive.

        200, also while it exits: a liveness probe must let it finish its requests.
        """
        _send(exchange, {"live": True})

    @route(
        "GET /v2/health/ready",
        api="health",
        response="Ready",
        error="NotReady",
        query=(_VERBOSE,),
        page="operation",
    )
    def ready(self, exchange: Exchange, _target: Target) -> None:
        """Whether the server is ready for traffic.

        200 when every requested model can serve, else 400; 503 while the server exits and, with
        `--strict-repository`, while a model repository cannot be read. With `?verbose`, the body
        has the reasons.
        """
        engine = self._engine
        if exchange.request.query and _is_verbose(exchange.request.query):
            respond_if_blocking(
                exchange,
                engine.asks_process,
                engine.readiness,
                respond=lambda readiness: self._send_reasons(exchange, readiness),
            )
            return
        if engine.exiting():
            raise Unavailable("Server exiting")
        respond_if_blocking(
            exchange,
            engine.asks_process,
            engine.readiness,
            respond=lambda readiness: self._send_status(exchange, readiness),
        )

    def _send_status(self, exchange: Exchange, readiness: Readiness) -> None:
        """Without the reasons, unless operators have to act."""
        if readiness.ready:
            _send(exchange, {"live": True, "ready": True})
            return
        lost = [one for one in readiness.problems if one.blocks and one.repository]
        if lost and self._keys is not None and not all(one.public for one in lost):
            raise Unavailable("a model repository cannot be read")  # the reason has names and paths
        if lost:
            raise Unavailable("; ".join(problem.text for problem in lost))
        _send(exchange, {"live": True, "ready": False}, 400)

    @route(f"GET {MODEL_VERSION}/ready", api="health", response="ModelReady")
    def model_ready(self, exchange: Exchange, target: Target) -> None:
        """Whether a model is ready.

        200 if it is, else 400.
        """
        model, version = target.model, target.version

        def respond(ready: bool) -> None:
            if ready:
                _send(exchange, {"name": model, "ready": True})
            else:
                send_refusal(exchange, 400, "Model version not ready")

        respond_if_blocking(
            exchange,
            self._engine.asks_readiness(model, version),
            lambda: self._engine.model_ready(model, version),
            respond=respond,
        )

    def _send_reasons(self, exchange: Exchange, readiness: Readiness) -> None:
        lost = any(problem.blocks and problem.repository for problem in readiness.problems)
        status = 200 if readiness.ready else 503 if lost or self._engine.exiting() else 400
        if self._keys is not None:
            caller = exchange.caller or self._keys.caller_if_any(exchange.request.header)
            readiness = _visible(readiness, caller)
        exchange.respond(status, [JSON], [json_text.dumps(_report(readiness))])


def _send(exchange: Exchange, value: dict[str, Any], status: int = 200) -> None:
    request = exchange.request
    agent = request.header(b"user-agent") or b""
    if b"application/json" in (request.header(b"accept") or b"") or agent.startswith(_PARSES_BODY):
        send_json(exchange, value, status)
    else:
        send_empty(exchange, status)


def _is_verbose(query: str) -> bool:
    values = parse_qs(query, keep_blank_values=True).get("verbose")
    return values is not None and values[-1] not in ("false", "0")


def _visible(readiness: Readiness, caller: Caller | None) -> Readiness:
    """The problems that `caller` may read; the number of the others."""

    def may_read(problem: Problem) -> bool:
        if problem.public or caller is None or "health" not in caller.apis:
            return problem.public
        return not problem.model or caller.may_use(problem.model)

    shown = [problem for problem in readiness.problems if may_read(problem)]
    for blocks in (True, False):
        hidden = sum(p.blocks is blocks and not may_read(p) for p in readiness.problems)
        if hidden:
            text = f"{hidden} more; send a key that permits 'health' and the models to read them"
            shown.append(Problem(text, blocks=blocks))
    return Readiness(readiness.ready, tuple(shown))


def _report(readiness: Readiness) -> dict[str, Any]:
    return {
        "ready": readiness.ready,
        "reasons": [problem.text for problem in readiness.problems if problem.blocks],
        "warnings": [problem.text for problem in readiness.problems if not problem.blocks],
    }

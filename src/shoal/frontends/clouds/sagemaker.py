"""The port for SageMaker: one model by `/invocations`, or many that the platform loads.

    GET  /ping                     -->  GET /v2/health/ready, or live
    POST /invocations              -->  POST /v2/models/<model>/infer, generate or generate_stream
    POST /models/<name>/invoke     -->  POST /v2/models/<target>/infer
    GET, POST, DELETE /models ...  -->  list, load, unload (`sagemaker_models`)

<target> is what the header X-Amzn-SageMaker-Target-Model names, else the name in the path. With
many models an error is 507 if memory ran out, so that the platform unloads another one, else 400.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from shoal.config.options.checks import INFERENCE_TYPES, PING_MODES
from shoal.core.tensor import Buffer
from shoal.errors import AlreadyExists, InvalidArgument, NotFound, ShoalError
from shoal.frontends.clouds.rewriting import RewritingApplication, RewrittenHead, json_bytes
from shoal.frontends.clouds.sagemaker_models import SageMakerModels
from shoal.frontends.http.application import Application
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.control import read_object
from shoal.frontends.http.errors import send_refusal
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.message import Head, Header
from shoal.frontends.http.responses import send_empty, send_json
from shoal.frontends.http.routes import Handler, Target
from shoal.frontends.http.wrapped_exchange import WrappedExchange

BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
# The model of /invocations where none is named: clients see this name in the error.
UNSPECIFIED_MODEL = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"

_TARGET_FIELD = b"x-amzn-sagemaker-target-model"
_MODELS = re.compile(r"/models(?:/(?P<name>[^/]+)(?P<invoke>/invoke)?|/)?")
_INDEX = "/v2/repository/index"
_MOST_LOAD_BYTES = 1 << 20  # of a request to load a model, which is read before its key is checked
_ALLOWED = {True: b"POST", False: b"DELETE, GET, POST"}
# Statuses that say what happened before the model was asked: they stay as they are.
_OWN_STATUSES = frozenset((401, 403, 405, 409, 413, 429))
_OUT_OF_MEMORY = re.compile(
    r"(?i:out[ _]?of[ _]?memory|failed to allocate memory)|MemoryError|OOM|"
    r"(Dst|Src) tensor is not initialized|No space left on device|"
    r"CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)"
)


@dataclass(frozen=True, slots=True)
class SageMakerSettings:
    """What the container's environment says."""

    model: str  # of /invocations
    inference_type: str = INFERENCE_TYPES[0]
    ping_mode: str = PING_MODES[0]
    max_json_bytes: int = 1 << 26


class SageMakerApplication(RewritingApplication):
    """Serves the port for SageMaker."""

    def __init__(
        self, application: Application, models: SageMakerModels, settings: SageMakerSettings
    ) -> None:
        super().__init__(application)
        self._models = models
        self._max_load_bytes = min(settings.max_json_bytes, _MOST_LOAD_BYTES)
        model = quote(settings.model, safe="")
        self._invocations = f"/v2/models/{model}/{settings.inference_type}"
        self._ping = f"/v2/health/{settings.ping_mode}"

    def _rewritten(self, head: Head) -> Head | None:
        if head.path == "/ping":
            return RewrittenHead(head, head.method, self._ping)
        if head.path == "/invocations":
            length = json_bytes(head, BINARY_TYPE)
            return RewrittenHead(head, head.method, self._invocations, length)
        return None

    def _serve(self, exchange: ConnectionExchange) -> None:
        head = exchange.request.head
        self._rewritten(head)  # raises what is wrong with an invocation
        path = _MODELS.fullmatch(head.path)
        if path is None:
            raise InvalidArgument(
                "this port serves /ping, /invocations and /models; use the HTTP port for "
                "everything else"
            )
        name, invokes = unquote(path["name"] or ""), path["invoke"] is not None
        if invokes and head.method == "POST":
            self._invoke(exchange, name)
        elif head.method == "GET" and not invokes:
            handler = self._describing(name) if name else self._list
            self._serve_as(exchange, _INDEX, handler)
        elif head.method == "POST" and not invokes:
            self._load(exchange)
        elif head.method == "DELETE" and name and not invokes:
            self._unload(exchange, name)
        else:
            headers = [(b"Allow", _ALLOWED[invokes])]
            send_refusal(exchange, 405, "Method Not Allowed", headers)

    def _serve_as(
        self, exchange: ConnectionExchange, path: str, handler: Handler | None = None
    ) -> None:
        """Serve a request as if it was for `path`, by `handler` if one is given."""
        exchange.request.head = RewrittenHead(exchange.request.head, "POST", path)
        self.application.handle(exchange, handler)

    # ---- models

    def _list(self, exchange: Exchange, _target: Target) -> None:
        caller = exchange.caller

        def work() -> object:
            ready = self._models.ready()
            return {
                "models": [
                    {"modelName": name, "modelUrl": str(loaded.repository)}
                    for name, loaded in ready.items()
                    if caller is None or caller.may_use(loaded.target)
                ]
            }

        self.application.control.run(exchange, work)

    def _describing(self, name: str) -> Handler:
        def describe(exchange: Exchange, _target: Target) -> None:
            loaded = self._models.find(name)
            if exchange.caller is not None:
                exchange.caller.check_model(loaded.target)
            send_json(exchange, {"modelName": name, "modelUrl": str(loaded.repository)})

        return describe

    def _load(self, exchange: ConnectionExchange) -> None:
        request = exchange.request
        document = read_object(request.body, self._max_load_bytes)
        name, url = _text(document, "model_name"), _text(document, "url")
        target = _target(request.head) or name

        def load(exchange: Exchange, _target: Target) -> None:
            self._change(exchange, lambda: self._models.load(name, url, target))

        self._serve_as(exchange, f"/v2/repository/models/{quote(target, safe='')}/load", load)

    def _unload(self, exchange: ConnectionExchange, name: str) -> None:
        loaded = self._models.get(name)
        target = name if loaded is None else loaded.target

        def unload(exchange: Exchange, _target: Target) -> None:
            self._change(exchange, lambda: self._models.unload(name))

        self._serve_as(exchange, f"/v2/repository/models/{quote(target, safe='')}/unload", unload)

    def _change(self, exchange: Exchange, work: Callable[[], None]) -> None:
        """Do `work` on a thread, and respond without a body or with the error."""

        def attempt() -> ShoalError | None:
            try:
                work()
            except ShoalError as error:
                return error
            return None

        def respond(error: ShoalError | None) -> None:
            if error is None:
                send_empty(exchange)
            else:
                send_refusal(exchange, _status(error), error.message)

        self.application.control.run(exchange, attempt, respond=respond)

    def _invoke(self, exchange: ConnectionExchange, name: str) -> None:
        head = exchange.request.head
        loaded = self._models.get(name)
        target = _target(head) or (name if loaded is None else loaded.target)
        path = f"/v2/models/{quote(target, safe='')}/infer"
        if loaded is None:  # which only those may learn who may use it
            self._serve_as(exchange, path, self._describing(name))
            return
        exchange.request.head = RewrittenHead(head, "POST", path, json_bytes(head, BINARY_TYPE))
        self.application.handle(_Invocation(exchange))


class _Invocation(WrappedExchange):
    """A request for one of many models."""

    __slots__ = ()

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once, with the statuses that the platform knows."""
        if status >= 400 and status not in _OWN_STATUSES:
            text = b"".join(bytes(part) for part in parts).decode("utf-8", "replace")
            status = 507 if _OUT_OF_MEMORY.search(text) else 400
        self._inner.respond(status, headers, parts)


def _status(error: ShoalError) -> int:
    """Of the response to a load or an unload that failed."""
    if isinstance(error, AlreadyExists):
        return 409
    if isinstance(error, NotFound):
        return 404
    return 507 if _OUT_OF_MEMORY.search(error.message) else 400


def _target(head: Head) -> str:
    """The model that the platform means; empty where only the name in the path is known."""
    return head.fields.get(_TARGET_FIELD, b"").decode("latin-1")


def _text(document: dict[str, object], key: str) -> str:
    value = document.get(key)
    if value is None or value == "":
        raise InvalidArgument(
            f"the request to load a model has no '{key}'; send "
            '{"model_name": "<name>", "url": "/opt/ml/models/<hash>/model"}'
        )
    if not isinstance(value, str):
        raise InvalidArgument(f"attempt to access JSON non-string as string: '{key}'")
    return value

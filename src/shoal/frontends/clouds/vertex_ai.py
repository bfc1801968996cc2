"""The port for Vertex AI: health and predictions on the routes that the platform names.

    GET  <AIP_HEALTH_ROUTE>                          -->  GET /v2/health/ready
    POST <AIP_PREDICT_ROUTE>                         -->  POST /v2/models/<default model>/infer
    POST <AIP_PREDICT_ROUTE>, with the header
         X-Vertex-Ai-Triton-Redirect: v2/models/...  -->  that request

Clients reach the predict route from anywhere, so a redirect can infer and read, and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from shoal.errors import Forbidden, InvalidArgument, Unavailable
from shoal.frontends.clouds.rewriting import RewritingApplication, RewrittenHead, json_bytes
from shoal.frontends.http.application import Application
from shoal.frontends.http.errors import send_refusal
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.message import Head
from shoal.frontends.http.routes import HttpEndpoint, resolve

BINARY_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
_REDIRECT_HEADER = "X-Vertex-Ai-Triton-Redirect"
_REDIRECT_FIELD = _REDIRECT_HEADER.lower().encode()

# What a redirect may request, besides inference.
_READS = frozenset(
    (
        *("server_metadata", "live", "ready", "model_ready", "model_metadata", "model_config"),
        *("statistics", "metrics", "index", "system_memory_status", "cuda_memory_status"),
    )
)
_CONTROLS = frozenset(("model-repository", "shared-memory"))


@dataclass(frozen=True, slots=True)
class VertexAiSettings:
    """What the platform tells the container in its environment."""

    predict_route: str
    health_route: str
    default_model: str = ""  # empty: the only model there is


def find_default_model(default: str, names: set[str]) -> str:
    """The default model among those that serve, after start-up.

    Raises InvalidArgument if it is not there, or if none is named and there are several.
    """
    if default and default not in names:
        raise InvalidArgument(
            f"failed to start Vertex AI service: Expect the default model '{default}' is "
            f"loaded (loaded: {', '.join(sorted(names)) or 'none'})"
        )
    if not default and len(names) != 1:
        raise InvalidArgument(
            "failed to start Vertex AI service: Expect the model repository contains only a "
            "single model if default model is not specified; name it with "
            f"--vertex-ai-default-model (loaded: {', '.join(sorted(names)) or 'none'})"
        )
    return default or next(iter(names))


class VertexAiApplication(RewritingApplication):
    """Serves the port for Vertex AI."""

    def __init__(self, application: Application, settings: VertexAiSettings) -> None:
        super().__init__(application)
        self._settings = settings
        self._default_model = settings.default_model

    def use_model(self, name: str) -> None:
        """Use this model for requests without a redirect; see `find_default_model`."""
        self._default_model = name

    def _rewritten(self, head: Head) -> Head | None:
        if head.path == self._settings.health_route:
            return RewrittenHead(head, head.method, "/v2/health/ready")
        if head.path != self._settings.predict_route:
            return None
        redirect = head.fields.get(_REDIRECT_FIELD)
        if redirect is None:
            if not self._default_model:
                return None
            path = f"/v2/models/{quote(self._default_model, safe='')}/infer"
            return RewrittenHead(head, head.method, path, json_bytes(head, BINARY_TYPE))
        if head.method != "POST":
            return None
        path = "/" + redirect.decode("latin-1")
        endpoint = _redirected(path)
        length = json_bytes(head, BINARY_TYPE) if endpoint.api == "inference" else None
        return RewrittenHead(head, endpoint.method, path, length)

    def _serve(self, exchange: ConnectionExchange) -> None:
        settings, head = self._settings, exchange.request.head
        if head.path != settings.predict_route:
            raise InvalidArgument(
                f"this port serves {settings.health_route} and {settings.predict_route}; use the "
                "HTTP port for everything else"
            )
        if head.method != "POST":
            send_refusal(exchange, 405, "Method Not Allowed", [(b"Allow", b"POST")])
            return
        rewritten = self._rewritten(head)  # what was wrong is raised again
        if rewritten is None:
            raise Unavailable("the server is starting: its models are loading")
        exchange.request.head = rewritten
        self.application.handle(exchange)


def _redirected(path: str) -> HttpEndpoint:
    """What serves a redirect. Raises Forbidden for what would change the server, InvalidArgument
    for anything else that cannot be requested so."""
    target = resolve(path)
    endpoints = [] if target is None else list(target.route.endpoints.values())
    for endpoint in endpoints:
        if endpoint.api == "inference" or endpoint.name in _READS:
            return endpoint
    if any(endpoint.api in _CONTROLS for endpoint in endpoints):
        raise Forbidden(
            f"{_REDIRECT_HEADER} cannot change models or shared memory; use the HTTP port for that"
        )
    raise InvalidArgument(
        f"{_REDIRECT_HEADER} does not lead anywhere: write the path of a request without its first "
        "slash, such as v2/models/<model>/infer"
    )

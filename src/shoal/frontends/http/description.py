"""Machine-readable descriptions of the server's interfaces, for HTTP and for gRPC.

GET /openapi.json --> OpenAPI 3.1          GET /proto, /proto/FILE --> input for protoc
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import shoal
from shoal.access.access import Access
from shoal.core.interface import FunctionInterface
from shoal.engine import Engine
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import send_json
from shoal.frontends.http.routes import TEXT_MEDIA, Target, route
from shoal.wire.proto.sources import SOURCES, source

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")


class DescriptionRoutes:
    """Serves the descriptions. The first request for the OpenAPI document builds it."""

    def __init__(self, engine: Engine, options: HttpOptions, access: Access | None = None) -> None:
        self._engine = engine
        self._options = options
        self._key_schemes = {} if access is None else _key_schemes(access.header)

    @route("GET /openapi.json", api="metadata", response="OpenApi")
    def openapi(self, exchange: Exchange, _target: Target) -> None:
        """All routes as an OpenAPI 3.1 document.

        Functions are described with the types of their arguments and results.
        """
        caller = exchange.caller
        functions = [
            (model.name, model.interface)
            for model in self._engine.newest_models()
            if model.interface is not None and (caller is None or caller.may_use(model.name))
        ]
        send_json(exchange, self._with_functions(functions))

    @route(
        "GET /proto",
        api="metadata",
        summary="The names of the .proto files",
        response="ProtoFiles",
        page="other-languages",
    )
    @route(
        "GET /proto/{file}",
        api="metadata",
        summary="A .proto file of the gRPC interface",
        description="protoc generates stubs from it in many languages.",
        response_media=(TEXT_MEDIA,),
        page="other-languages",
    )
    def proto(self, exchange: Exchange, target: Target) -> None:
        """One .proto file, or the list of them."""
        if target.file:
            exchange.respond(200, [_TEXT], [source(target.file)])
        else:
            send_json(exchange, {"files": sorted(SOURCES)})

    @cached_property
    def _document(self) -> dict[str, Any]:
        from shoal.frontends.http.openapi.document import document

        return document(shoal.__version__, self._options.restricted_apis, self._key_schemes)

    def _with_functions(self, functions: Sequence[tuple[str, FunctionInterface]]) -> dict[str, Any]:
        from shoal.frontends.http.openapi.functions import with_functions

        return with_functions(self._document, functions)


def _key_schemes(header: str) -> dict[str, dict[str, str]]:
    """How clients may send their key, in OpenAPI's terms."""
    schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
    if header:
        schemes["key"] = {"type": "apiKey", "in": "header", "name": header}
    return schemes

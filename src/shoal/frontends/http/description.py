"""What the server tells programmers about itself: its interface over HTTP and over gRPC.

GET /openapi.json --> OpenAPI 3.1          GET /proto, /proto/FILE --> what protoc makes stubs of
"""

from __future__ import annotations

from functools import cached_property

import shoal
from shoal.frontends.http.answers import send_json
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON
from shoal.frontends.http.message import Header
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target
from shoal.wire import json_text
from shoal.wire.proto.sources import SOURCES, source

_TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")


class DescriptionRoutes:
    """Serves the descriptions. The OpenAPI document is made when it is first asked for."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options

    def openapi(self, exchange: Exchange, _target: Target) -> None:
        """GET /openapi.json."""
        exchange.respond(200, [JSON], [self._document])

    def proto(self, exchange: Exchange, target: Target) -> None:
        """GET /proto lists the .proto files, GET /proto/FILE is one of them."""
        if target.file:
            exchange.respond(200, [_TEXT], [source(target.file)])
        else:
            send_json(exchange, {"files": sorted(SOURCES)})

    @cached_property
    def _document(self) -> bytes:
        from shoal.frontends.http.openapi.document import document

        return json_text.dumps(document(shoal.__version__, self._options.restricted_apis))

"""The document itself: every path of every declared endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal.frontends.http.openapi.schemas import SCHEMAS, reference
from shoal.frontends.http.routes import (
    BINARY_MEDIA,
    EVENT_MEDIA,
    FORM_MEDIA,
    JSON_MEDIA,
    HttpEndpoint,
    Schema,
    endpoints,
)

_OTHERS = "server"  # the tag of routes that cannot be restricted
_PARAMETER = re.compile(r"\{(\w+)\}")
_PARAMETERS: Mapping[str, tuple[str, str]] = {
    "model": ("string", "the model's name"),
    "version": ("integer", "the version's number; without one, the newest that is ready"),
    "repository": ("string", "reserved: this server has one index for all repositories"),
    "region": ("string", "the name under which a region is registered"),
    "file": ("string", "the file's name"),
    "asset": ("string", "the file's name"),
    "operation": ("string", "of the model's task: classify, answer, caption, embed and others"),
}


def document(
    version: str,
    restricted_apis: Mapping[str, tuple[str, str]],
    key_schemes: Mapping[str, dict[str, str]] | None = None,
) -> dict[str, Any]:
    """The whole interface. A restricted endpoint names the required header, not its value;
    `key_schemes` are the ways to send a key, where one is required."""
    key_schemes = key_schemes or {}
    declared = endpoints()
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in declared:
        for path in endpoint.paths():
            if path.endswith("/") and path != "/":
                continue  # the same as without the slash
            made = _operation(endpoint, path, restricted_apis, key_schemes)
            paths.setdefault(path, {})[endpoint.method.lower()] = made
    schemes: dict[str, dict[str, str]] = {
        api: {"type": "apiKey", "in": "header", "name": header}
        for api, (header, _) in restricted_apis.items()
    }
    schemes.update(key_schemes)
    components: dict[str, Any] = {"schemas": SCHEMAS}
    if schemes:
        components["securitySchemes"] = schemes
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": version,
            "summary": "Inference server: the KServe v2 protocol with Triton's extensions",
            "description": "HEAD works wherever GET does. The same over gRPC: /proto lists the "
            ".proto files.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": tag} for tag in dict.fromkeys(endpoint.api or _OTHERS for endpoint in declared)
        ],
        "paths": paths,
        "components": components,
    }


def _operation(
    endpoint: HttpEndpoint,
    path: str,
    restricted_apis: Mapping[str, tuple[str, str]],
    key_schemes: Mapping[str, object],
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _identifier(endpoint, path),
        "tags": [endpoint.api or _OTHERS],
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint, path),
        "responses": _responses(endpoint),
    }
    if endpoint.description:
        made["description"] = endpoint.description
    if endpoint.request:
        made["requestBody"] = {
            "required": endpoint.request_required,
            "content": _content(endpoint.request, endpoint.request_media),
        }
    restriction: dict[str, list[str]] = {}
    if endpoint.api in restricted_apis:
        restriction[endpoint.api] = []
    if restriction or key_schemes:
        made["security"] = [{**restriction, scheme: []} for scheme in key_schemes] or [restriction]
    return made


def _identifier(endpoint: HttpEndpoint, path: str) -> str:
    """A name for generated clients, unique and stable: the endpoint's, and the path's parameters.

    `model` is left out where every path of that name has it.
    """
    named = [other for other in endpoints() if other.name == endpoint.name]
    always_model = all("{model}" in one for other in named for one in other.paths())
    parameters = _PARAMETER.findall(path)
    return "_".join(
        [endpoint.name, *(name for name in parameters if name != "model" or not always_model)]
    )


def _parameters(endpoint: HttpEndpoint, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in _PARAMETER.findall(path):
        kind, text = _PARAMETERS.get(name, ("string", ""))
        schema = {"type": kind}
        found.append(
            {"name": name, "in": "path", "required": True, "description": text, "schema": schema}
        )
    for name, text, values in endpoint.query:
        choice = {"type": "string", "enum": list(values)}
        found.append({"name": name, "in": "query", "description": text, "schema": choice})
    for name, text in endpoint.headers:
        size = {"type": "integer", "minimum": 0}
        found.append({"name": name, "in": "header", "description": text, "schema": size})
    return found


def _responses(endpoint: HttpEndpoint) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "success"}
    if endpoint.response or endpoint.response_media != (JSON_MEDIA,):
        success["content"] = _content(endpoint.response, endpoint.response_media)
    failure = {
        "description": "what went wrong; see `error`",
        "content": {JSON_MEDIA: {"schema": reference(endpoint.error)}},
    }
    return {"200": success, "default": failure}


def _content(schema: str | Schema, media: tuple[str, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in media:
        if kind == JSON_MEDIA or (kind == FORM_MEDIA and JSON_MEDIA not in media):
            described = reference(schema) if isinstance(schema, str) else schema
        elif kind == FORM_MEDIA:
            described = {"type": "object", "description": "files and values"}
        elif kind == BINARY_MEDIA:
            described = {"type": "string", "format": "binary"}
        elif kind == EVENT_MEDIA:
            described = {
                "type": "string",
                "description": f"each event is `data: ` and a {schema}",
            }
        else:
            described = {"type": "string"}
        content[kind] = {"schema": described}
    return content

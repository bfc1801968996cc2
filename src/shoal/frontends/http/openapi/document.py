"""The document itself: every spelling of every route, with its operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.frontends.http.openapi.operations import (
    BINARY,
    EVENTS,
    FORM,
    JSON,
    TASK_OPERATIONS,
    Operation,
    find,
)
from shoal.frontends.http.openapi.schemas import SCHEMAS, reference
from shoal.frontends.http.routes import ROUTES, Route

_OTHERS = "server"  # the tag of routes that no restriction can name
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


def document(version: str, restricted_apis: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The whole interface. What is restricted says which header it asks for, not its value."""
    paths: dict[str, dict[str, Any]] = {}
    for route, path in _paths():
        operations = paths.setdefault(path, {})
        for method in route.methods:
            operations.setdefault(method.lower(), _operation(route, path, method, restricted_apis))
    schemes = {
        category: {"type": "apiKey", "in": "header", "name": header}
        for category, (header, _) in restricted_apis.items()
    }
    components: dict[str, Any] = {"schemas": SCHEMAS}
    if schemes:
        components["securitySchemes"] = schemes
    tags = dict.fromkeys(route.category or _OTHERS for route in ROUTES)
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
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": components,
    }


def _paths() -> Iterator[tuple[Route, str]]:
    """Every path that is worth a line; a slash at the end says nothing new."""
    for route in ROUTES:
        for path in route.spellings():
            if path.endswith("/") and path != "/":
                continue
            if "{memory}" in path:
                for memory in ("system", "cuda"):
                    yield route, path.replace("{memory}", memory)
                continue
            for operation in TASK_OPERATIONS if "{operation}" in path else ():
                yield route, path.replace("{operation}", operation)
            yield route, path


def _operation(
    route: Route, path: str, method: str, restricted_apis: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    _, described = find(method, route.name, _words(path))
    made: dict[str, Any] = {
        "operationId": _identifier(route, path, method),
        "tags": [route.category or _OTHERS],
        "summary": described.summary,
        "parameters": _parameters(path, described),
        "responses": _responses(described),
    }
    if described.description:
        made["description"] = described.description
    if described.body:
        made["requestBody"] = {
            "required": described.body_required,
            "content": _content(described.body, described.body_media),
        }
    if route.category in restricted_apis:
        made["security"] = [{route.category: []}]
    return made


def _words(path: str) -> tuple[str, ...]:
    """What tells one spelling of a route from another; see `operations`."""
    memory = re.match("/v2/(system|cuda)sharedmemory", path)
    if memory:
        return (memory[1],)
    every = () if "{model}" in path or "{file}" in path else ("all",)
    return (*_task_operation(path), *every)


def _task_operation(path: str) -> tuple[str, ...]:
    last = path.rpartition("/")[2]
    return (last,) if last in TASK_OPERATIONS else ()


def _identifier(route: Route, path: str, method: str) -> str:
    """A name for generated clients, different for each operation and stable."""
    verb = "" if len(route.methods) == 1 else {"GET": "get_", "POST": "update_"}[method]
    memory = re.match("/v2/(system|cuda)sharedmemory", path)
    kind = f"{memory[1]}_" if memory else ""
    parameters = [name for name in _PARAMETER.findall(path) if name != "model" or _some_lack(route)]
    name = next(iter(_task_operation(path)), f"{verb}{kind}{route.name}")
    return "_".join([name, *parameters])


def _some_lack(route: Route) -> bool:
    """Whether this is also asked without a model, so that the name must tell the two apart."""
    return any(
        "{model}" not in path
        for other in ROUTES
        if other.name == route.name
        for path in other.spellings()
    )


def _parameters(path: str, described: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in _PARAMETER.findall(path):
        kind, words = _PARAMETERS[name]
        schema = {"type": kind}
        found.append(
            {"name": name, "in": "path", "required": True, "description": words, "schema": schema}
        )
    for name, words, values in described.query:
        choice = {"type": "string", "enum": list(values)}
        found.append({"name": name, "in": "query", "description": words, "schema": choice})
    for name, words in described.headers:
        size = {"type": "integer", "minimum": 0}
        found.append({"name": name, "in": "header", "description": words, "schema": size})
    return found


def _responses(described: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "success"}
    if described.answer or described.media != (JSON,):
        success["content"] = _content(described.answer, described.media)
    failure = {
        "description": "what went wrong; see `error`",
        "content": {JSON: {"schema": reference(described.failure)}},
    }
    return {"200": success, "default": failure}


def _content(schema: str, media: tuple[str, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in media:
        if kind == JSON:
            content[kind] = {"schema": reference(schema)}
        elif kind == FORM:
            content[kind] = {"schema": {"type": "object", "description": "files and values"}}
        elif kind == BINARY:
            content[kind] = {"schema": {"type": "string", "format": "binary"}}
        else:
            words = f"each event is `data: ` and a {schema}" if kind == EVENTS else ""
            text = {"type": "string", **({"description": words} if words else {})}
            content[kind] = {"schema": text}
    return content

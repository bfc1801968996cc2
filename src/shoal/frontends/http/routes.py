"""Routes: each is declared once, on its handler; the router and all descriptions are made from it.

    @route("GET /v2/health/live", api="health")      -->  router, OpenAPI document, restricted APIs,
    def live(self, exchange, target): ...                 docs/http-api.md

    "/v2/models/resnet%2050/versions/3/infer"  --resolve-->  Target(route, "resnet 50", 3)

A template is a path with {parameters}; a part in [brackets] is optional. `{name:value}` matches
only `value`. Where two templates match a path, the one with the earlier literal segment wins, so
the order of declarations does not matter. Clients repeat paths, so `resolve` caches its results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

from shoal.config.options.checks import CATEGORIES
from shoal.errors import InvalidArgument, quoted
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import HttpRequest
from shoal.tasks.registry import operations

MODEL_VERSION = "/v2/models/{model}[/versions/{version}]"
REPOSITORY = "/v2/repository[/{repository}]"

JSON_MEDIA = "application/json"
BINARY_MEDIA = "application/octet-stream"
TEXT_MEDIA = "text/plain"
EVENT_MEDIA = "text/event-stream"
FORM_MEDIA = "multipart/form-data"

_PARAMETERS = {"version": "[0-9]+", "operation": "[a-z][a-z0-9-]*"}  # others: one path segment
_SPECIAL = re.compile(r"\{(\w+)(?::([^}]*))?\}|[][.]")
_FIXED = re.compile(r"\{\w+:([^}]*)\}")
_INNERMOST = re.compile(r"\[([^][]*)\]")

_CACHE_ENTRIES = 1024
_LONGEST_CACHED = 512  # characters, so that long paths cannot fill the memory
_LARGEST_VERSION = 2**63 - 1

Schema = dict[str, Any]
Handler = Callable[[Exchange, "Target"], None]
Method = TypeVar("Method", bound=Callable[..., None])


@dataclass(frozen=True, slots=True, eq=False)
class HttpEndpoint:
    """One method of one path, as `route` declares it.

    A schema is a name in `openapi.schemas`, or the schema itself; an empty one means no body.
    """

    method: str
    template: str
    handler: Callable[..., None]  # a method of a class, not bound
    name: str  # in the OpenAPI document, where generated clients take it from
    api: str  # the kind that --http-restricted-api names; empty: cannot be restricted
    summary: str
    description: str
    loads_model: bool = False  # in lazy mode: wait for the model, instead of reporting it missing
    response: str | Schema = ""
    response_media: tuple[str, ...] = (JSON_MEDIA,)
    request: str | Schema = ""
    request_media: tuple[str, ...] = (JSON_MEDIA,)
    request_required: bool = True
    query: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # name, description, values
    headers: tuple[tuple[str, str], ...] = ()  # optional ones: name, description
    error: str = "Error"
    page: str = ""  # of the documentation, where there is one about it
    key_api: str = ""  # the kind that keys permit, where `api` is empty
    is_public: Callable[[HttpRequest], bool] | None = None  # which requests need no key

    def paths(self) -> list[str]:
        """Every path the template stands for, with each optional part and without it."""
        found = [_FIXED.sub(r"\1", self.template)]
        while any("[" in path for path in found):
            found = [
                path
                for longer in found
                for path in (_INNERMOST.sub("", longer, 1), _INNERMOST.sub(r"\1", longer, 1))
            ]
        return list(dict.fromkeys(found))


class HttpRoute:
    """The endpoints of one template."""

    __slots__ = ("allow", "endpoints", "name", "pattern", "template")

    def __init__(self, endpoints: Iterable[HttpEndpoint]) -> None:
        declared = {endpoint.method: endpoint for endpoint in endpoints}
        first = next(iter(declared.values()))
        self.template = first.template
        self.name = first.name
        self.pattern = re.compile(_SPECIAL.sub(_regular, self.template))
        # HEAD is a GET whose body the transport leaves out.
        self.endpoints = {**declared, **({"HEAD": declared["GET"]} if "GET" in declared else {})}
        self.allow = ", ".join([*self.endpoints, "OPTIONS"]).encode()  # as the header lists them


@dataclass(frozen=True, slots=True)
class Target:
    """A route and the parameters of its path; `version` is -1 where the path has none."""

    route: HttpRoute
    model: str = ""
    version: int = -1
    repository: str = ""
    region: str = ""  # of shared memory
    file: str = ""
    operation: str = ""  # of a task
    arguments: tuple[tuple[str, str], ...] = ()  # of a function, in the path of its own route


_endpoints: list[HttpEndpoint] = []


def route(
    method_and_template: str,
    *,
    api: str,
    name: str = "",
    summary: str = "",
    description: str = "",
    **more: Any,
) -> Callable[[Method], Method]:
    """Declare that a method of a class serves a path; see `HttpEndpoint` for more arguments.

    The handler's docstring is the summary (first line) and description unless they are given. A
    handler may have several routes. `Application` has to make an object of the class.
    """
    method, _, template = method_and_template.partition(" ")
    if api and api not in CATEGORIES:
        raise ValueError(f"route {template}: unknown API kind '{api}', not in {CATEGORIES}")

    def declare(handler: Method) -> Method:
        first, _, rest = (handler.__doc__ or "").partition("\n")
        endpoint = HttpEndpoint(
            method,
            template,
            handler,
            name or handler.__name__,
            api,
            summary or first.rstrip("."),
            description or ("" if summary else " ".join(rest.split())),
            **more,
        )
        _endpoints.append(endpoint)
        return handler

    return declare


def endpoints() -> list[HttpEndpoint]:
    """All that are declared, in the order of a search: literal segments before parameters."""
    from shoal.frontends.http import application  # noqa: F401 - imports every handler

    return sorted(_endpoints, key=lambda endpoint: _rank(endpoint.template))


@cache
def routes() -> list[HttpRoute]:
    """The endpoints by template."""
    by_template: dict[str, list[HttpEndpoint]] = {}
    for endpoint in sorted(endpoints(), key=lambda endpoint: endpoint.method):
        by_template.setdefault(endpoint.template, []).append(endpoint)
    return [HttpRoute(by_template[template]) for template in sorted(by_template, key=_rank)]


def bind(owners: Iterable[object]) -> Mapping[HttpEndpoint, Handler]:
    """The handler of each endpoint: the method of that one of `owners` whose class declares it."""
    methods = {
        function: getattr(owner, name)
        for owner in owners
        for name, function in vars(type(owner)).items()
        if callable(function)
    }
    return {endpoint: methods[endpoint.handler] for endpoint in endpoints()}


def resolve(path: str) -> Target | None:
    """The target of `path` (percent-encoded); None where no route matches.

    Raises InvalidArgument for a version beyond 64 bits.
    """
    if len(path) > _LONGEST_CACHED:
        return _search(path)
    return _cached_search(path)


def _search(path: str) -> Target | None:
    for candidate in routes():
        match = candidate.pattern.fullmatch(path)
        if match:
            named = match.groupdict()
            operation = named.get("operation") or ""
            if operation and operation not in operations():
                return None
            return Target(
                candidate,
                unquote(named.get("model") or ""),
                _version(named.get("version")),
                unquote(named.get("repository") or ""),
                unquote(named.get("region") or ""),
                unquote(named.get("file") or named.get("asset") or ""),
                operation,
            )
    return None


_cached_search = lru_cache(_CACHE_ENTRIES)(_search)


def _rank(template: str) -> list[bool]:
    """Sorts templates by where their parameters are: a literal segment comes first."""
    return ["{" in segment for segment in _FIXED.sub(r"\1", template).split("/")]


def _regular(special: re.Match[str]) -> str:
    """The regular expression for a parameter, a bracket or a dot of a template."""
    name, value = special[1], special[2]
    if name:
        return f"(?P<{name}>{value or _PARAMETERS.get(name, '[^/]+')})"
    return {"[": "(?:", "]": ")?", ".": r"\."}[special[0]]


def _version(digits: str | None) -> int:
    if digits is None:
        return -1
    if len(digits) > 19 or int(digits) > _LARGEST_VERSION:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{quoted(digits)}' "
            f"(details: it does not fit into 64 bits), version should be an integral value > 0"
        )
    return int(digits)

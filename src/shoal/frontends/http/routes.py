"""Which path means what: one table of routes, and the search through it.

    "/v2/models/resnet%2050/versions/3/infer"  -->  Target(infer, "resnet 50", 3)

A route's template is its path with {parameters}; what stands in [brackets] may be left out.
Clients ask for the same few paths again and again, so what a path means is remembered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from shoal.errors import InvalidArgument
from shoal.tasks.registry import operations

_VERSION = "/v2/models/{model}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository}]"
_MEMORY = "/v2/{memory}sharedmemory"

_PARAMETERS = {
    "version": "[0-9]+",
    "memory": "system|cuda",
    "operation": "[a-z][a-z0-9-]*",
}  # others are one part of the path
_SPECIAL = re.compile(r"\{(\w+)\}|[][.]")
_INNERMOST = re.compile(r"\[([^][]*)\]")

_REMEMBERED = 1024
_LONGEST_REMEMBERED = 512  # characters, so that odd paths cannot fill the memory
_NEWEST_POSSIBLE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of request. `category` is the group that restricted APIs name it by."""

    name: str
    methods: tuple[str, ...]
    category: str
    template: str
    pattern: re.Pattern[str] = field(init=False)
    allow: bytes = field(init=False)  # what it answers, as the Allow header lists it

    def __post_init__(self) -> None:
        listed = [*self.methods, *(["HEAD"] if "GET" in self.methods else []), "OPTIONS"]
        object.__setattr__(self, "allow", ", ".join(listed).encode())
        object.__setattr__(self, "pattern", re.compile(_SPECIAL.sub(_regular, self.template)))

    def answers(self, method: str) -> bool:
        """Whether a request with this method is answered here; HEAD is a GET without its body."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def spellings(self) -> list[str]:
        """Every path the template stands for, with each optional part and without it."""
        found = [self.template]
        while any("[" in path for path in found):
            found = [
                spelling
                for path in found
                for spelling in (_INNERMOST.sub("", path, 1), _INNERMOST.sub(r"\1", path, 1))
            ]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Target:
    """A route and what its path names; `version` is -1 where the path has none."""

    route: Route
    model: str = ""
    version: int = -1
    repository: str = ""
    region: str = ""
    cuda: bool = False  # of a GPU, not of the system
    file: str = ""
    operation: str = ""  # of a task


def _route(name: str, methods: str, category: str, template: str) -> Route:
    return Route(name, tuple(methods.split()), category, template)


def _regular(special: re.Match[str]) -> str:
    """The regular expression for a parameter, or for what is special in a template or in one."""
    name = special[1]
    if name:
        return f"(?P<{name}>{_PARAMETERS.get(name, '[^/]+')})"
    return {"[": "(?:", "]": ")?", ".": r"\."}[special[0]]


# The first match wins: `/v2/models/stats` must come before the models.
ROUTES = (
    _route("infer", "POST", "inference", _VERSION + "/infer"),
    _route("live", "GET", "health", "/v2/health/live"),
    _route("ready", "GET", "health", "/v2/health/ready"),
    _route("model_ready", "GET", "health", _VERSION + "/ready"),
    _route("server_metadata", "GET", "metadata", "/v2"),
    _route("statistics", "GET", "statistics", "/v2/models/stats"),
    _route("statistics", "GET", "statistics", _VERSION + "/stats"),
    _route("explain", "GET", "statistics", "/v2[/models/{model}[/versions/{version}]]/explain"),
    _route("model_config", "GET", "model-config", _VERSION + "/config"),
    _route("model_metadata", "GET", "metadata", _VERSION),
    _route("index", "POST", "model-repository", _REPOSITORY + "/index"),
    _route("load", "POST", "model-repository", _REPOSITORY + "/models/{model}/load"),
    _route("unload", "POST", "model-repository", _REPOSITORY + "/models/{model}/unload"),
    _route("generate", "POST", "inference", _VERSION + "/generate"),
    _route("generate_stream", "POST", "inference", _VERSION + "/generate_stream"),
    _route("memory_status", "GET", "shared-memory", _MEMORY + "[/region/{region}]/status"),
    _route("memory_register", "POST", "shared-memory", _MEMORY + "/region/{region}/register"),
    _route("memory_unregister", "POST", "shared-memory", _MEMORY + "[/region/{region}]/unregister"),
    _route("trace", "GET POST", "trace", "/v2[/models/{model}]/trace/setting"),
    _route("logging", "GET POST", "logging", "/v2/logging"),
    _route("metrics", "GET", "", "/metrics[/]"),
    _route("console_state", "GET", "statistics", "/v2/console"),
    _route("console_file", "GET", "", "/console/{asset}"),
    _route("openai_models", "GET", "metadata", "/v1/models"),
    _route("openai_model", "GET", "metadata", "/v1/models/{model}"),
    _route("openai_embeddings", "POST", "inference", "/v1/embeddings"),
    _route("openai_completions", "POST", "inference", "/v1/completions"),
    _route("openai_chat", "POST", "inference", "/v1/chat/completions"),
    _route("openapi", "GET", "metadata", "/openapi.json"),
    _route("proto", "GET", "metadata", "/proto[/{file}]"),
    _route("welcome", "GET", "", "/"),
    # Any word may be the operation of an installed task, so these two come last.
    _route("task", "POST", "inference", _VERSION + "/{operation}"),
    _route("task", "POST", "inference", "/{operation}"),
)


def resolve(path: str) -> Target | None:
    """What `path` (percent-encoded) asks for; None for a path nobody serves.

    Raises InvalidArgument for a version beyond 64 bits.
    """
    if len(path) > _LONGEST_REMEMBERED:
        return _search(path)
    return _remembered(path)


def _search(path: str) -> Target | None:
    for route in ROUTES:
        match = route.pattern.fullmatch(path)
        if match:
            named = match.groupdict()
            if route.name == "task" and named["operation"] not in operations():
                return None
            return Target(
                route,
                unquote(named.get("model") or ""),
                _version(named.get("version")),
                unquote(named.get("repository") or ""),
                unquote(named.get("region") or ""),
                named.get("memory") == "cuda",
                unquote(named.get("file") or named.get("asset") or ""),
                named.get("operation") or "",
            )
    return None


_remembered = lru_cache(_REMEMBERED)(_search)


def _version(digits: str | None) -> int:
    if digits is None:
        return -1
    if len(digits.lstrip("0")) > 19 or int(digits) > _NEWEST_POSSIBLE:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{digits}' (details: it "
            f"does not fit into 64 bits), version should be an integral value > 0"
        )
    return int(digits)

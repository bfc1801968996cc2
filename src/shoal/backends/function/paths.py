"""The path of a function's own route: `path="/greet"`, `path="GET /users/{name}"`.

The method is POST unless the path begins with another one. A path may not be one of the server's
own, except for the short paths of tasks (`/classify`), which a function takes over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shoal.backends.function.reader import SourceLocation
from shoal.core.interface import FunctionField, ValueForm, is_object

# The first segments of the server's own paths; a test compares them with its routes.
RESERVED = frozenset(("v1", "v2", "metrics", "openapi.json", "docs", "proto", "console"))
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WITHOUT_BODY = ("GET",)
_SEGMENT = re.compile(r"\{([A-Za-z_]\w*)\}|[A-Za-z0-9._~:@-]+")


@dataclass(frozen=True, slots=True)
class RoutePath:
    """A method and a path, in which {arguments} are parameters."""

    method: str = ""
    path: str = ""

    @property
    def parameters(self) -> list[str]:
        """The arguments in the path."""
        found = (_SEGMENT.fullmatch(segment) for segment in self.path.split("/")[1:])
        return [match[1] for match in found if match is not None and match[1]]


def read(written: Any, place: SourceLocation) -> RoutePath:
    """The route that `path=` declares. Raises ConfigError."""
    if not written:
        return RoutePath()
    if not isinstance(written, str):
        raise place.error(f"path= is {written!r}", fix='Write path="/greet"')
    first, _, rest = written.partition(" ")
    method, path = (first.upper(), rest.strip()) if rest else ("POST", written)
    if method not in METHODS:
        raise place.error(
            f"path= has the method '{method}'", fix=f"Write one of {', '.join(METHODS)}"
        )
    segments = path.split("/")[1:]
    matches = [_SEGMENT.fullmatch(segment) for segment in segments]
    if not path.startswith("/") or not segments or not all(matches):
        raise place.error(
            f"path= is '{written}'",
            fix='Write a path such as "/greet" or "GET /users/{name}", without a slash at its end',
        )
    if segments[0] in RESERVED or segments[0].startswith("{"):
        what = (
            "begins with a parameter, so that it would match the server's own paths"
            if segments[0].startswith("{")
            else f"belongs to the server itself, as everything below /{segments[0]} does"
        )
        raise place.error(f"the path '{path}' {what}", fix='Choose another: path="/my/greet"')
    return RoutePath(method, path)


def check(route: RoutePath, fields: tuple[FunctionField, ...], place: SourceLocation) -> None:
    """Check that the arguments can be sent by that route. Raises ConfigError."""
    named = {field.name: field for field in fields}
    for name in route.parameters:
        field = named.get(name)
        if field is None:
            raise place.error(
                f"the path '{route.path}' has the parameter '{name}', which is not an argument",
                fix=f"Its arguments are: {', '.join(named) or 'none'}",
            )
        if not _fits_text(field):
            raise place.error(
                "a part of a path is a single text or number",
                argument=name,
                fix=f"Take {{{name}}} out of the path, or change its type",
            )
    for field in fields if route.method in _WITHOUT_BODY else ():
        if field.form is ValueForm.BINARY or is_object(field.schema):
            raise place.error(
                f"a {route.method} request has no body that could hold it",
                argument=field.name,
                fix=f'Write path="POST {route.path}"',
            )


def _fits_text(field: FunctionField) -> bool:
    return (field.is_single and field.form in (ValueForm.NUMBERS, ValueForm.TEXT)) or (
        field.form is ValueForm.JSON and field.schema.get("type") in ("string", "integer", "number")
    )

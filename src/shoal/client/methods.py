"""Turns operations into methods: blocking ones of `Client`, coroutines of `AsyncClient`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from shoal.client.steps import ClientSession, Steps

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """A client that runs steps on blocking sockets."""

    _session: ClientSession

    def _run(self, steps: Steps[T]) -> T: ...


class Awaiting(Protocol):
    """A client that runs steps on an event loop."""

    _session: ClientSession

    async def _run(self, steps: Steps[T]) -> T: ...


def blocking(
    operation: Callable[Concatenate[ClientSession, P], Steps[T]],
) -> Callable[Concatenate[Blocking, P], T]:
    """The method of `Client` for `operation`."""

    @functools.wraps(operation)
    def method(client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._run(operation(client._session, *args, **kwargs))

    return method


def awaiting(
    operation: Callable[Concatenate[ClientSession, P], Steps[T]],
) -> Callable[Concatenate[Awaiting, P], Coroutine[Any, Any, T]]:
    """The method of `AsyncClient` for `operation`."""

    @functools.wraps(operation)
    async def method(client: Awaiting, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._run(operation(client._session, *args, **kwargs))

    return method

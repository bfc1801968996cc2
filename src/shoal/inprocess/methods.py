"""Turns functions of the engine into methods: blocking ones of `Server`, coroutines of
`AsyncServer`. All of them wait for a model that is loaded on demand."""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from shoal.core.model_loading import ModelLoading
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument, ShoalError
from shoal.inprocess.inference import PreparedRequest
from shoal.inprocess.responses import AsyncResponses, Responses, Result

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[LocalEngine, P], T]
Prepare = Callable[Concatenate[LocalEngine, P], PreparedRequest]


class HasEngine(Protocol):
    """A server that may run."""

    @property
    def engine(self) -> LocalEngine:
        """The engine of the running server; raises Unavailable if it does not run."""


def when_loaded(action: Callable[[], T]) -> T:
    """The result of `action`, once the model is loaded on demand. Raises as `action` does."""
    while True:
        try:
            return action()
        except ModelLoading as pending:
            settled: queue.SimpleQueue[ShoalError | None] = queue.SimpleQueue()
            pending.then(settled.put)
            error = settled.get()
            if error is not None:
                raise error from None


async def _when_loaded(action: Callable[[], T]) -> T:
    """As `when_loaded`, on a thread if it has to wait."""
    try:
        return action()
    except ModelLoading:
        return await asyncio.to_thread(when_loaded, action)


# ---- status and control


def blocking(operation: Operation[P, T]) -> Callable[Concatenate[HasEngine, P], T]:
    """The method of `Server` for `operation`."""

    @functools.wraps(operation)
    def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine = server.engine
        return when_loaded(lambda: operation(engine, *args, **kwargs))

    return method


def awaiting(
    operation: Operation[P, T],
) -> Callable[Concatenate[HasEngine, P], Coroutine[Any, Any, T]]:
    """The method of `AsyncServer` for `operation`, which runs on a thread."""

    @functools.wraps(operation)
    async def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine = server.engine
        return await asyncio.to_thread(when_loaded, lambda: operation(engine, *args, **kwargs))

    return method


# ---- inference


def blocking_infer(prepare: Prepare[P]) -> Callable[Concatenate[HasEngine, P], Result]:
    """The method of `Server` for one response."""

    def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        engine = server.engine
        prepared = when_loaded(lambda: prepare(engine, *args, **kwargs))
        _check_one_response(prepared)
        return Responses(engine, prepared).only()

    return _described(method, prepare, "infer", _INFER)


def blocking_stream(prepare: Prepare[P]) -> Callable[Concatenate[HasEngine, P], Responses]:
    """The method of `Server` for any number of responses."""

    def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> Responses:
        engine = server.engine
        return Responses(engine, when_loaded(lambda: prepare(engine, *args, **kwargs)))

    return _described(method, prepare, "stream", _STREAM)


def awaiting_infer(
    prepare: Prepare[P],
) -> Callable[Concatenate[HasEngine, P], Coroutine[Any, Any, Result]]:
    """The method of `AsyncServer` for one response."""

    async def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        engine = server.engine

        async def prepared() -> PreparedRequest:
            made = await _when_loaded(lambda: prepare(engine, *args, **kwargs))
            _check_one_response(made)
            return made

        return await AsyncResponses(engine, prepared).only()

    return _described(method, prepare, "infer", _INFER)


def awaiting_stream(prepare: Prepare[P]) -> Callable[Concatenate[HasEngine, P], AsyncResponses]:
    """The method of `AsyncServer` for any number of responses."""

    def method(server: HasEngine, /, *args: P.args, **kwargs: P.kwargs) -> AsyncResponses:
        engine = server.engine
        return AsyncResponses(
            engine, lambda: _when_loaded(lambda: prepare(engine, *args, **kwargs))
        )

    return _described(method, prepare, "stream", _STREAM)


def _check_one_response(prepared: PreparedRequest) -> None:
    if prepared.decoupled:
        raise InvalidArgument(
            f"model '{prepared.request.model_name}' may send any number of responses; use stream()"
        )


_INFER = """Send a request to a model, without a socket; returns its outputs by name.

Inputs are arrays, tensors on the CPU of libraries with DLPack, or lists and values, which are
converted to the model's datatype; text is returned as `bytes`. Concurrent requests share batches.
Raises the ShoalError that a client would get, and DeadlineExceeded after `timeout_secs`.
"""
_STREAM = """As `infer`, for a model with any number of responses: an iterator over them.

Closing it before its end, or calling its `cancel`, cancels the request.
"""
Method = TypeVar("Method", bound=Callable[..., Any])


def _described(method: Method, prepare: Callable[..., Any], name: str, text: str) -> Method:
    """The method with the parameters of `prepare`, for `help` and notebooks."""
    method.__name__ = method.__qualname__ = name
    method.__doc__ = text
    signature = inspect.signature(prepare)
    method.__dict__["__signature__"] = signature.replace(return_annotation=inspect.Signature.empty)
    return method

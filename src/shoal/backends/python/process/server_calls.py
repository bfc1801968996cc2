"""Calls from a model's process to the server: other models, loading, metrics, log lines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from shoal.backends.python.api.host import Context, FamilyHandle, MetricHandle
from shoal.backends.python.server_host import ServerHost
from shoal.core.request import Request, RequestTrace
from shoal.core.response import Response
from shoal.errors import Internal, ShoalError
from shoal.link.channel import ChannelClosed
from shoal.link.link import Link

_SLOW = ("load", "unload", "is_ready")


class ServerCalls:
    """Handles the calls of one process. Called by the thread that reads the pipe."""

    def __init__(
        self,
        link: Link,
        context: Context,
        server: ServerHost,
        trace_of: Callable[[int], RequestTrace | None],
    ) -> None:
        """`trace_of` finds the trace of a request that the process executes, by its number."""
        self._trace_of = trace_of
        self._link = link
        self._context = context
        self._server = server
        self._requests_made: dict[int, Request] = {}  # of other models
        self._held: dict[int, FamilyHandle | MetricHandle] = {}  # metrics, by number
        self._last_number = 0

    def handlers(self) -> dict[str, Callable[..., None]]:
        """The handlers by kind of message."""
        return {
            "infer": self._on_infer,
            "cancel": self._on_cancel,
            "log": self._on_log,
            "call": self._on_call,
        }

    def close(self) -> None:
        """The process is gone: cancel its requests, drop its metrics."""
        for request in list(self._requests_made.values()):
            request.cancel()
        for held in self._held.values():
            held.close()
        self._held.clear()

    # ---- other models

    def _on_infer(
        self,
        call: int,
        fields: tuple[Any, ...],
        wanted: list[str],
        packed: list[Any],
        decoupled: bool,
        waits: bool,
        traced: int | None,
    ) -> None:
        name, version, identity, correlation_id, flags, timeout_us, parameters = fields
        request = Request(
            name,
            {tensor.name: tensor for tensor in self._link.unpack(packed)},
            _CallReply(self, call),
            model_version=version,
            id=identity,
            requested_outputs=tuple(wanted),
            parameters=parameters,
            timeout_us=timeout_us,
            correlation_id=correlation_id,
            flags=flags,
        )
        trace = None if traced is None else self._trace_of(traced)
        if trace is not None:
            trace.attach(request)
        self._requests_made[call] = request
        waiting = self._context if waits else None
        try:
            self._server.infer(request, decoupled=decoupled, waiting=waiting)
        except ShoalError as error:
            self.answer(call, Response(name, -1, identity, error=error))

    def answer(self, call: int, response: Response) -> None:
        """Pass a response of another model on. Never raises: others wait behind it."""
        if response.final:
            self._requests_made.pop(call, None)
        error = None
        packed: list[Any] = []
        if response.error is not None:
            error = (response.error.code.value, response.error.message)
        else:
            packed = self._link.pack(response.outputs)
        with contextlib.suppress(ChannelClosed):  # no caller waits
            self._link.send(
                *("answer", call, response.model_version, response.final, error),
                *(response.parameters, packed),
            )

    def _on_cancel(self, call: int) -> None:
        request = self._requests_made.get(call)
        if request is not None:
            request.cancel()

    # ---- the rest

    def _on_log(self, level: int, message: str, file: str, line: int) -> None:
        self._server.log(level, message, file, line)

    def _on_call(self, call: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name in _SLOW:  # the pipe must be read meanwhile
            threading.Thread(
                target=self._run, args=(call, name, arguments), name=f"shoal-{name}", daemon=True
            ).start()
        else:
            self._run(call, name, arguments)

    def _run(self, call: int, name: str, arguments: tuple[Any, ...]) -> None:
        value: Any = None
        error = None
        try:
            value = getattr(self, f"_call_{name}")(*arguments)
        except ValueError as failure:
            error = ("", str(failure))
        except ShoalError as failure:
            error = (failure.code.value, failure.message)
        except Exception as failure:  # noqa: BLE001 - the model is told
            error = (Internal.code.value, f"{type(failure).__name__}: {failure}")
        if call:
            with contextlib.suppress(ChannelClosed):
                self._link.send("result", call, value, error)

    def _call_load(self, name: str, config: str, files: dict[str, bytes]) -> None:
        self._server.load_model(name, config, files)

    def _call_unload(self, name: str, unload_dependents: bool) -> None:
        self._server.unload_model(name, unload_dependents)

    def _call_is_ready(self, name: str, version: int) -> bool:
        return self._server.is_model_ready(name, version)

    def _call_family(self, name: str, description: str, kind: str) -> int:
        return self._hold(self._server.metric_family(name, description, kind))

    def _call_metric(self, family: int, labels: dict[str, str], buckets: list[float] | None) -> int:
        held: Any = self._held[family]
        return self._hold(held.metric(labels, buckets))

    def _call_change_metric(self, metric: int, operation: str, value: float | None) -> Any:
        held: Any = self._held[metric]
        return held.value() if operation == "value" else getattr(held, operation)(value)

    def _call_close_metric(self, number: int) -> None:
        self._held.pop(number).close()

    def _hold(self, held: FamilyHandle | MetricHandle) -> int:
        self._last_number += 1
        self._held[self._last_number] = held
        return self._last_number


class _CallReply:
    """The reply of a request that a process made."""

    __slots__ = ("_call", "_server_calls")

    def __init__(self, server_calls: ServerCalls, call: int) -> None:
        self._server_calls = server_calls
        self._call = call

    def send(self, response: Response) -> None:
        """Pass it on."""
        self._server_calls.answer(self._call, response)

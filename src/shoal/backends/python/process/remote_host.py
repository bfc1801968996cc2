"""The server at the other end of the pipe, as pb_utils needs it inside a model's process."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from shoal import errors
from shoal.backends.python.api.host import (
    NOT_FROM_FORKS,
    Context,
    FamilyHandle,
    MetricHandle,
    write_log,
)
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.link.channel import ChannelClosed
from shoal.link.link import Link
from shoal.statistics.custom import check_change

MOST_BACKLOG_BYTES = 1 << 20  # of messages that the server has still to read
_CLASSES = {
    kind.code.value: kind
    for kind in (
        *(errors.InvalidArgument, errors.NotFound, errors.AlreadyExists, errors.Unavailable),
        *(errors.Unsupported, errors.Cancelled, errors.Internal, errors.Unknown),
    )
}


class RemoteTrace:
    """A reference to the trace of a request, which the server keeps."""

    __slots__ = ("_context", "key")

    def __init__(self, key: int, context: str | None) -> None:
        self.key = key
        self._context = context

    def attach(self, request: Request) -> None:
        """Trace `request` too: the server receives the reference with it."""
        request.trace = self

    def context(self) -> str | None:
        """The request's position in the trace, as text."""
        return self._context


class RemoteHost:
    """The server at the other end, for pb_utils."""

    shares_memory = False  # tensors from the pipe belong to this process alone

    def __init__(self, link: Link, listen: Callable[[], None]) -> None:
        """`listen` makes responses be received while the main thread is busy."""
        self._link = link
        self._listen = listen
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._requests_made: dict[int, Request] = {}  # requests to other models
        self._calls: dict[int, Future[Any]] = {}

    # ---- other models

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """Run `request` on another model."""
        self._check_process()
        self._listen()
        call = next(self._numbers)
        self._requests_made[call] = request
        request.on_cancel = lambda: self._link.send("cancel", call)
        fields = (
            *(request.model_name, request.model_version, request.id, request.correlation_id),
            *(request.flags, request.timeout_us, request.parameters),
        )
        wanted = list(request.requested_outputs)
        packed = self._link.pack(request.inputs.values())
        traced = request.trace.key if isinstance(request.trace, RemoteTrace) else None
        waits = waiting is not None
        self._send("infer", call, fields, wanted, packed, decoupled, waits, traced)

    def answered(
        self,
        call: int,
        version: int,
        final: bool,
        error: tuple[str, str] | None,
        parameters: dict[str, Any],
        packed: list[Any],
    ) -> None:
        """A response of another model has arrived."""
        request = self._requests_made.pop(call, None) if final else self._requests_made.get(call)
        if request is None:
            return
        outputs = self._link.unpack(packed)
        failed = None if error is None else _CLASSES[error[0]](error[1])
        request.reply.send(
            Response(request.model_name, version, request.id, outputs, parameters, failed, final)
        )

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""
        self.call("load", name, config, dict(files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""
        self.call("unload", name, unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model can be asked."""
        return bool(self.call("is_ready", name, version))

    # ---- metrics and log

    def metric_family(self, name: str, description: str, kind: str) -> FamilyHandle:
        """A family of metrics that the server keeps."""
        return RemoteFamily(self, kind, int(self.call("family", name, description, kind)))

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Into the server's log."""
        if os.getpid() != self._pid:
            write_log(level, message, file, line)
            return
        with contextlib.suppress(ChannelClosed):  # the other side is gone
            self._link.send("log", level, message, file, line)

    # ---- calls to the server

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the server, and wait for the result or raise its error."""
        self._check_process()
        self._listen()
        call = next(self._numbers)
        future: Future[Any] = Future()
        self._calls[call] = future
        self._send("call", call, name, arguments)
        return future.result()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # the pipe was closed when this process was forked
            raise errors.Unavailable(NOT_FROM_FORKS)

    def _send(self, kind: str, *body: Any) -> None:
        try:
            self._link.send(kind, *body)
        except ChannelClosed:
            raise errors.Unavailable(NOT_FROM_FORKS) from None

    def returned(self, call: int, value: Any, error: tuple[str, str] | None) -> None:
        """The result of a call has arrived."""
        future = self._calls.pop(call)
        if error is None:
            future.set_result(value)
        elif error[0] == "":
            future.set_exception(ValueError(error[1]))
        else:
            future.set_exception(_CLASSES[error[0]](error[1]))

    def request(self, name: str, *arguments: Any) -> None:
        """Call the server without waiting, for what does not fail there."""
        self._check_process()
        self._send("call", 0, name, arguments)
        self._link.wait_for_room(MOST_BACKLOG_BYTES)

    def tell(self, name: str, *arguments: Any) -> None:
        """Release something of the server's; it may be gone."""
        try:
            self._link.send("call", 0, name, arguments)
        except ChannelClosed:  # then there is nothing to release
            return


class RemoteFamily:
    """A family of metrics at the other end."""

    def __init__(self, server: RemoteHost, kind: str, number: int) -> None:
        self._server = server
        self._kind = kind
        self._number = number

    def metric(self, labels: Mapping[str, str], buckets: list[float] | None) -> MetricHandle:
        """The metric with these labels."""
        number = self._server.call("metric", self._number, dict(labels), buckets)
        return RemoteMetric(self._server, self._kind, int(number))

    def close(self) -> None:
        """Let go of it."""
        self._server.tell("close_metric", self._number)


class RemoteMetric:
    """A metric at the other end.

    Changes are checked here and not waited for: a model may make one for each word of a text. The
    server makes them before it handles what is sent later, such as the response.
    """

    def __init__(self, server: RemoteHost, kind: str, number: int) -> None:
        self._server = server
        self._kind = kind
        self._number = number

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge."""
        self._change("increment", value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._change("set", value)

    def observe(self, value: float) -> None:
        """Count a value into a histogram."""
        self._change("observe", value)

    def _change(self, operation: str, value: float) -> None:
        check_change(self._kind, operation, value)
        self._server.request("change_metric", self._number, operation, value)

    def value(self) -> float:
        """What a counter or gauge shows."""
        return float(self._server.call("change_metric", self._number, "value", None))

    def close(self) -> None:
        """Let go of it."""
        self._server.tell("close_metric", self._number)

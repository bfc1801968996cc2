"""The standard health service: for load balancers, Kubernetes and grpc_health_probe.

The server is one service: for every name, the response is whether the
server is ready.
"""

from __future__ import annotations

import asyncio

from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import SHUTTING_DOWN, fail
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages

_LOOK_SECS = 1.0


class HealthMethods:
    """Serves Check and Watch."""

    def __init__(self, engine: Engine, look_secs: float = _LOOK_SECS) -> None:
        self._engine = engine
        self._look_secs = look_secs
        self._watchers: set[Call] = set()
        self._last_status = b""  # as last sent to watchers
        self._timer: asyncio.TimerHandle | None = None

    def check(self, message: Buffer) -> bytes:
        """Check: SERVING or NOT_SERVING."""
        parse(messages.HealthCheckRequest, message)
        return self._status()

    def watch(self, call: Call) -> None:
        """Watch: the status now, and again whenever it changes."""

        def begin(message: Buffer) -> None:
            try:
                parse(messages.HealthCheckRequest, message)
            except Exception as error:  # noqa: BLE001 - becomes the response
                fail(call, error)
                return
            if call not in self._watchers:
                self._look()  # so that all watchers know the same
                self._watchers.add(call)
                call.send([self._last_status])
                self._wait()

        def leave() -> None:
            self._watchers.discard(call)

        call.on_message = begin
        call.on_cancel = leave

    def drain(self) -> None:
        """The server shuts down: send a last status and end the watches."""
        self._look()
        while self._watchers:
            self._watchers.pop().finish(StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _status(self) -> bytes:
        serving = "SERVING" if self._engine.ready() else "NOT_SERVING"
        status: bytes = messages.HealthCheckResponse(status=serving).SerializeToString()
        return status

    def _look(self) -> None:
        """Tell the watchers if the status has changed."""
        status = self._status()
        if status != self._last_status:
            self._last_status = status
            for call in self._watchers:
                call.send([status])

    def _wait(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._look_secs, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._watchers:
            self._look()
            self._wait()

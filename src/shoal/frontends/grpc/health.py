"""The standard health service: for load balancers, Kubernetes and grpc_health_probe.

The server is one service: for every name, the response is whether the
server is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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

    def asks_process(self, _message: Buffer) -> bool:
        """Whether `check` asks another process."""
        return self._engine.asks_process

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
                self._look(join)  # first, so that all watchers know the same

        def join() -> None:
            if not has_left:
                self._watchers.add(call)
                call.send([self._last_status])
                self._wait()

        has_left = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            self._watchers.discard(call)

        call.on_message = begin
        call.on_cancel = leave

    def drain(self) -> None:
        """The server shuts down: send a last status and end the watches."""
        self._tell(_status_of(serving=False))
        while self._watchers:
            self._watchers.pop().finish(StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _status(self) -> bytes:
        return _status_of(serving=self._engine.ready())

    def _look(self, then: Callable[[], None]) -> None:
        """Tell the watchers if the status has changed, then go on."""
        if not self._engine.asks_process:
            self._tell(self._status())
            then()
            return

        def done(future: asyncio.Future[bytes]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._tell(future.result())
                then()

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._status).add_done_callback(done)

    def _tell(self, status: bytes) -> None:
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
            self._look(self._wait)


def _status_of(*, serving: bool) -> bytes:
    name = "SERVING" if serving else "NOT_SERVING"
    status: bytes = messages.HealthCheckResponse(status=name).SerializeToString()
    return status

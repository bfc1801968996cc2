"""gRPC calls without a transport: a test plays the client and looks at what the service does.

call = start(service, "ModelInfer")
call.message(request).half_close()
assert call.status == StatusCode.OK
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from shoal.core.inbox import Answer, LoopInbox
from shoal.core.tensor import Buffer
from shoal.frontends.grpc.call import Call, Service
from shoal.frontends.grpc.service import INFERENCE
from shoal.frontends.grpc.status import Metadata, MetadataValue, StatusCode


class FakeCall:
    """A call as a service sees it, and the client's side of it as a test plays it."""

    def __init__(self, path: str = "", metadata: Sequence[tuple[str, MetadataValue]] = ()) -> None:
        self.path = path
        self.metadata = list(metadata)
        self.deadline_ns: int | None = None
        self.peer = "ipv4:127.0.0.1:1"
        self.caller = None
        self.holds_request = False
        self.cancelled = False
        self.writable = True
        self.on_message: Callable[[Buffer], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.sent: list[bytes] = []
        self.status: StatusCode | None = None  # None: not ended
        self.text = ""
        self.paused = False

    # What the service calls.

    def reply(self, parts: Sequence[Buffer], trailing_metadata: Metadata = ()) -> None:
        """Send one message and end."""
        self.send(parts)
        self.finish(trailing_metadata=trailing_metadata)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Keep a message."""
        if self.status is None and not self.cancelled:
            self.sent.append(b"".join(parts))

    def finish(self, code: int = 0, message: str = "", trailing_metadata: Metadata = ()) -> None:
        """Keep the status; the first one counts."""
        del trailing_metadata
        if self.status is None and not self.cancelled:
            self.status, self.text = StatusCode(code), message

    def pause_receiving(self) -> None:
        """Note it."""
        self.paused = True

    def resume_receiving(self) -> None:
        """Note it."""
        self.paused = False

    # What the client does.

    def message(self, message: Any) -> FakeCall:
        """Send a message, given as bytes or as an object of the schema."""
        content = message if isinstance(message, bytes) else message.SerializeToString()
        if self.on_message is not None:
            self.on_message(content)
        return self

    def half_close(self) -> FakeCall:
        """Send no more."""
        if self.on_half_close is not None:
            self.on_half_close()
        return self

    def cancel(self) -> None:
        """Take the call back."""
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()

    def drain(self) -> None:
        """Catch up with what was sent."""
        self.writable = True
        if self.on_drain is not None:
            self.on_drain()


class DirectInbox(LoopInbox):
    """An inbox without a loop: responses are delivered where they are sent."""

    def __init__(self) -> None:
        """A test ends the loop iterations."""
        self._later: list[Callable[[], None]] = []
        self.after_reading = self._later.append

    def end_iteration(self) -> None:
        """Call what waits for the end of the loop iteration."""
        while self._later:
            self._later.pop(0)()

    def post(self, deliver: Callable[[Answer], None], response: Answer) -> None:
        """Deliver at once."""
        deliver(response)


def start(
    service: Service, name: str, metadata: Sequence[tuple[str, MetadataValue]] = ()
) -> FakeCall:
    """A call of a method, by its path or, in Triton's service, by its name alone."""
    path = name if name.startswith("/") else INFERENCE + name
    method = service.method(path)
    assert method is not None, f"there is no method {path}"
    call = FakeCall(path, metadata)
    method.start(cast("Call", call))
    return call

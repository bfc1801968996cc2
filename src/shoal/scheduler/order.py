"""preserve_ordering: responses are sent in the order of their requests, whichever ends first."""

from __future__ import annotations

import threading
from collections import deque

from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import Response


class OrderKeeper:
    """Requests in order: the responses of each wait until all before it are answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _line, _sending and every held response
        self._line: deque[_HeldReply] = deque()
        self._sending = False  # a thread is in `_send`

    def join(self, request: Request) -> None:
        """Append a request. Call this in queue order, once the request is sure to be answered."""
        held = _HeldReply(request.reply, self)
        with self._lock:
            self._line.append(held)
        request.reply = held

    def _arrived(self, held: _HeldReply, response: Response) -> None:
        with self._lock:
            held.waiting.append(response)
            if self._sending:  # that thread will send it: two must not overtake each other
                return
            self._sending = True
        self._send()

    def _send(self) -> None:
        """Send what is due. The lock is not held meanwhile: a reply may be the step of an ensemble,
        which submits its outputs to the next model at once, and that may be this one again."""
        while True:
            with self._lock:
                head = self._line[0] if self._line else None
                if head is None or not head.waiting:
                    self._sending = False
                    return
                ready = head.waiting.popleft()
                if ready.final:
                    self._line.popleft()
            head.reply.send(ready)


class _HeldReply:
    """Replaces a request's reply until all requests before it are answered."""

    __slots__ = ("_keeper", "reply", "waiting")

    def __init__(self, reply: Reply, keeper: OrderKeeper) -> None:
        self.reply = reply
        self._keeper = keeper
        self.waiting: deque[Response] = deque()

    def send(self, response: Response) -> None:
        """Pass the response on, or hold it until it is due."""
        self._keeper._arrived(self, response)

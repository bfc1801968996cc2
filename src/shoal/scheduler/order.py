"""preserve_ordering: responses leave in the order their requests came, whoever finishes first."""

from __future__ import annotations

import threading
from collections import deque

from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import Response


class OrderKeeper:
    """One line of requests; each one's responses wait until all before it are answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _line and every held response
        self._line: deque[_HeldReply] = deque()

    def join(self, request: Request) -> None:
        """Give the request its place. Call in queue order, once it is sure to be answered."""
        held = _HeldReply(request.reply, self)
        with self._lock:
            self._line.append(held)
        request.reply = held

    def _arrived(self, held: _HeldReply, response: Response) -> None:
        with self._lock:  # also while sending: two threads must not overtake each other here
            held.waiting.append(response)
            while self._line:
                head = self._line[0]
                answered = False
                while head.waiting:
                    ready = head.waiting.popleft()
                    answered = ready.final
                    head.reply.send(ready)
                if not answered:
                    return
                self._line.popleft()


class _HeldReply:
    """Stands in for a request's reply while it is in line."""

    __slots__ = ("_keeper", "reply", "waiting")

    def __init__(self, reply: Reply, keeper: OrderKeeper) -> None:
        self.reply = reply
        self._keeper = keeper
        self.waiting: deque[Response] = deque()

    def send(self, response: Response) -> None:
        """Pass the response on, or keep it until its turn."""
        self._keeper._arrived(self, response)

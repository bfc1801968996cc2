"""A stream of a `Client`: many requests and their answers on one call.

with client.stream("words") as stream:
    stream.send({"text": ["one two three"]})
    for result in stream:          # until everything sent is answered
        print(result["word"])
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal.client.duplex import Duplex
from shoal.client.result import Result
from shoal.client.steps import Steps
from shoal.client.streaming import Streaming


class Stream:
    """One stream. Any thread may send, and any may receive."""

    def __init__(
        self,
        streaming: Streaming,
        run: Callable[[Steps[Any]], Any],
        duplex: Duplex,
    ) -> None:
        self._streaming = streaming
        self._run = run
        self._timeout_secs = streaming.session.timeout_secs
        self._lock = threading.Lock()  # guards what _streaming counts
        self._duplex = duplex

    @property
    def waiting(self) -> int:
        """The number of requests in progress."""
        return self._streaming.waiting

    def send(self, inputs: Mapping[str, Any], **arguments: Any) -> None:
        """Send a request without waiting for its response.

        `arguments` are those of `Client.infer` that concern the request: `id`, `outputs`,
        `parameters`, `classes`, `sequence_id` and so on, and `model` where it is another one.
        Waits for the server's flow control.
        """
        parts, size = self._run(self._streaming.outgoing(inputs, **arguments))
        with self._lock:
            self._streaming.waiting += 1
        self._duplex.send(parts, size)

    def finish(self) -> None:
        """End the sending side; responses still arrive."""
        self._duplex.finish()

    def receive(self, timeout: float | None = None) -> Result | None:
        """The next response, in `timeout` seconds or else the client's; None: there are no more.

        A request that failed raises its ServerError here; the stream continues.
        """
        limit = self._timeout_secs if timeout is None else timeout
        while True:
            message = self._duplex.receive(limit)
            with self._lock:
                result, done = self._streaming.received(message)
            if done:
                return result

    def __iter__(self) -> Iterator[Result]:
        """Responses until all requests sent so far are answered. Raises as `receive` does."""
        while self._streaming.waiting > 0:
            found = self.receive()
            if found is not None:
                yield found

    def close(self) -> None:
        """End the stream; requests in progress are cancelled."""
        self._duplex.close()

    def __enter__(self) -> Stream:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

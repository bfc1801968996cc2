"""The HTTP listener without a server behind it, and the raw sockets that talk to it.

thread = ListenerThread("uvloop")
port = thread.start(application)
with connect(port) as client: ...
thread.stop()
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.listener import HttpListener
from shoal.testing import WAIT_SECS

HOST = b" HTTP/1.1\r\nHost: x\r\n"


class ListenerThread:
    """A listener on a loop of its own in a thread of its own, so that tests may block."""

    def __init__(self, kind: str) -> None:
        """`kind` is "asyncio" or "uvloop"."""
        uvloop = pytest.importorskip("uvloop") if kind == "uvloop" else None
        self.loop = uvloop.new_event_loop() if uvloop else asyncio.new_event_loop()
        self.faults: list[dict] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.listeners: list[HttpListener] = []

    @property
    def listener(self) -> HttpListener:
        """The one started last."""
        return self.listeners[-1]

    def await_(self, coroutine):
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_SECS)

    def call(self, function, *arguments):
        """Call a function on the loop."""

        async def called():
            return function(*arguments)

        return self.await_(called())

    def start(self, handle, host: str = "127.0.0.1", **limits) -> int:
        """Listen; the port."""
        listener = HttpListener(handle, HttpLimits(**limits))
        port = self.await_(listener.start(host, 0))
        self.listeners.append(listener)
        return port

    def wait_until_empty(self) -> None:
        """Wait until every connection is closed."""
        closed = threading.Event()
        state = self.listener._state
        on_empty = state.on_empty

        def empty() -> None:
            on_empty()
            closed.set()

        def watch() -> None:
            state.on_empty = empty
            if not state.connections:
                closed.set()

        self.call(watch)
        assert closed.wait(WAIT_SECS), "a connection was left open"
        self.call(lambda: None)  # the callback has returned, and holds no references any more

    def stop(self) -> None:
        """Close everything; fails when a timer, a task or an unhandled error is left."""

        async def finish() -> None:
            for listener in self.listeners:
                await listener.stop_accepting(linger_secs=0)
                listener.abort_all()
                assert await listener.drain(WAIT_SECS)
                assert listener._timer is None
            me = asyncio.current_task()
            assert [task for task in asyncio.all_tasks() if task is not me] == []

        try:
            self.await_(finish())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
        assert self.faults == []


class HeldApplication:
    """An application that keeps its exchanges, and events for what happens to them."""

    def __init__(self) -> None:
        self.exchanges: list[ConnectionExchange] = []
        self.arrived = threading.Semaphore(0)
        self.disconnected = threading.Semaphore(0)

    def __call__(self, exchange: ConnectionExchange) -> None:
        exchange.on_disconnect = self.disconnected.release
        self.exchanges.append(exchange)
        self.arrived.release()

    def wait(self) -> ConnectionExchange:
        """The last exchange, once another one has arrived."""
        assert self.arrived.acquire(timeout=WAIT_SECS)
        return self.exchanges[-1]

    def wait_for_disconnect(self) -> None:
        """Wait until a client has disconnected."""
        assert self.disconnected.acquire(timeout=WAIT_SECS)


def connect(port: int) -> socket.socket:
    """A client's socket."""
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECS)


def read_all(client: socket.socket) -> bytes:
    """Everything until the server ends the connection."""
    received = b""
    while piece := client.recv(1 << 16):
        received += piece
    return received

"""The server to measure, in a separate process, so that it shares no thread with the load.

    ChildServer --pipe--> process: shoal.Server, on free ports of this machine, no model loaded yet

It ends when the pipe is closed, so also when its parent process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe

from shoal.config.options import Options
from shoal.errors import ShoalError, Unavailable
from shoal.inprocess.keywords import DEFAULTS

_START_SECS = 120
_STOP_SECS = 60


class ChildServer:
    """A server without models, for a `with` block."""

    def __init__(self, options: Options) -> None:
        """`options` as for `shoal serve`; ports and loaded models are set here."""
        self._options = dataclasses.replace(
            options,
            **DEFAULTS,
            allow_metrics=False,
            model_control_mode="explicit",
            load_model=(),
        ).without_keys()  # other machines cannot reach it
        self.http_url = ""
        self.grpc_url = ""
        self.tcp_url = ""  # if the options include that port

    def __enter__(self) -> ChildServer:  # noqa: PYI034 - Python 3.10 has no Self
        """Start it. Raises Unavailable with the reason when that fails."""
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._pipe: Pipe = ours
        self._process = context.Process(
            target=_serve, args=(theirs, self._options), name="shoal-child-server"
        )
        with _ignored_interrupts():
            self._process.start()
        theirs.close()
        try:
            if not ours.poll(_START_SECS):
                raise Unavailable(f"the server did not start within {_START_SECS} seconds")
            self.http_url, self.grpc_url, self.tcp_url, failure = ours.recv()
        except (EOFError, OSError):
            self._end()
            raise Unavailable("the server ended before it had started") from None
        except BaseException:
            self._end()
            raise
        if failure:
            self._end()
            raise Unavailable(failure)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._pipe.close()  # the process ends on this
        self._process.join(_STOP_SECS)
        if self._process.is_alive():  # a model that never returns
            self._process.kill()
            self._process.join()
        self._process.close()


@contextlib.contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Processes started in this block ignore Ctrl-C from the beginning."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Pipe, options: Options) -> None:
    """The body of the process."""
    from shoal.inprocess.server import Server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends this process
    logging.getLogger("shoal").addHandler(
        logging.NullHandler()
    )  # failures are reported as responses
    server = Server(options=options)
    try:
        server.start()
    except ShoalError as error:
        pipe.send(("", "", "", error.message))
        return
    pipe.send((server.http_url, server.grpc_url, server.tcp_url, ""))
    with contextlib.suppress(EOFError, OSError):  # the other end was closed
        pipe.recv()
    server.stop()

"""What a front end and the engine have in common: the control link and the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import pickle
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from shoal import settings
from shoal.config.options import Options
from shoal.errors import ShoalError
from shoal.inprocess.loop import new_event_loop
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.child import serve_link
from shoal.link.link import Link
from shoal.logs import Log
from shoal.repository import memory

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """What a child begins with."""

    link: Link  # to the supervisor
    options: Options
    log: Log
    more: Any  # what else its kind of process needs
    early: list[tuple[str, tuple[Any, ...]]]  # messages that came with the first one


class Control:
    """The control link of a child process, on its loop."""

    def __init__(self, start: Start, handlers: dict[str, Callable[..., None]]) -> None:
        """Each message is passed to the handler of its kind. The process ends with the link."""
        self._link = start.link
        self._handlers = {"ping": lambda: self.send("pong"), **handlers}
        self._early = start.early
        loop = asyncio.get_running_loop()
        loop.call_soon(self._handle_early)
        loop.add_reader(start.link.fileno(), self._read)

    def _handle_early(self) -> None:
        early, self._early = self._early, []
        for kind, body in early:
            self._handlers[kind](*body)

    def _read(self) -> None:
        try:
            received = self._link.receive()
        except ChannelClosed:
            os._exit(1)  # the supervisor is gone, and with it everything that this was for
        self._handle_early()
        for kind, body in received:
            self._handlers[kind](*body)

    def take_file(self) -> int:
        """A descriptor that came with the message that is being handled."""
        return self._link.take_file()

    def send(self, kind: str, *body: Any) -> None:
        """Send the supervisor a message. From any thread."""
        with contextlib.suppress(ChannelClosed):
            self._link.send(kind, *body)

    def send_file(self, file: int, kind: str, *body: Any) -> None:
        """Send a message with an open file, which is closed here. From any thread."""
        with contextlib.suppress(ChannelClosed):
            self._link.send_files(kind, *body, files=[file])


def run_child(connection: str, main: Callable[[Start], Coroutine[Any, Any, None]]) -> None:
    """Run `main` until it returns; then the process ends."""

    def run(link: Link) -> None:
        if sys.stderr is not None:
            faulthandler.enable()
        received: list[tuple[str, tuple[Any, ...]]] = []
        while not received:
            received = link.receive()
        (_, (packed, more)), *early = received
        # Written by the supervisor, which has started this process with the same program.
        options: Options = pickle.loads(packed)  # noqa: S301  # nosec B301
        log = settings.open_log(options)
        log.install()
        loop = new_event_loop()
        try:
            with memory.excluding():
                loop.run_until_complete(main(Start(link, options, log, more, early)))
        except ShoalError as error:  # a file or an option that cannot be used
            link.send("failed", failure.pack(error))
            raise SystemExit(1) from None
        finally:
            log.close()

    serve_link(connection, run)

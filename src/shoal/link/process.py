"""A child process at the other end of a link: its start, how it ended, and its end by force.

    ChildProcess(module) --> link: messages --> end()
                         └─> ask(question): one answer, then it ends

`module` is run by `bootstrap` in a fresh interpreter: this one, or that of another environment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shoal
from shoal.errors import Internal
from shoal.link import VERSION
from shoal.link.channel import ChannelClosed
from shoal.link.child import IGNORED_SIGNALS
from shoal.link.link import Link

logger = logging.getLogger(__name__)

START_SECS = 30.0  # for an interpreter to start on a busy machine
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
# Freed memory is kept for the next batch: new pages for the arrays of each batch, which a small
# process would take from the system, cost several times as much as copying them.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
_END_SECS = 5.0  # between closing the link and the end, on a busy machine


class Interpreter(NamedTuple):
    """The Python of a child, where it is not this one."""

    python: Path
    version: tuple[int, int]
    variables: Mapping[str, str]


class ChildProcess:
    """A process that has been started. Its methods may be called from any thread."""

    def __init__(
        self,
        module: str,
        name: str,
        *,
        interpreter: Interpreter | None = None,
        start_secs: float = START_SECS,
        longer: str = "",
        files: Sequence[int] = (),
    ) -> None:
        """Start the interpreter, which then runs `module`. Raises Internal.

        `name` completes "the process of …"; `longer` names the option that sets `start_secs`.
        `files` are open in the process, too, with the same numbers.
        """
        self.name = name
        self._start_secs = start_secs
        self._longer = longer
        ours, theirs = socket.socketpair()
        try:
            self._process = _launch(interpreter, theirs, module, files)
        except OSError as error:
            ours.close()
            raise Internal(f"cannot start a process for {name}: {error}") from None
        finally:
            theirs.close()
        self._link = Link(ours)
        # The end of the link does not imply the end of the process: programs that it has started
        # may hold the other end too.
        threading.Thread(target=self._see_off, name=f"shoal-exit-{self.pid}", daemon=True).start()

    def _see_off(self) -> None:
        self._process.wait()
        self._link.hang_up()

    @property
    def link(self) -> Link:
        """The link to it."""
        return self._link

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, kind: str, *body: Any) -> tuple[str, tuple[Any, ...]]:
        """Send one message, return the answer and end the process.

        Internal if it ends without an answer.
        """
        try:
            with contextlib.suppress(ChannelClosed):  # if it has ended, its message says why
                self._link.send(kind, *body)
            return self._hear()
        finally:
            self.end()
            self._link.close()

    def _hear(self) -> tuple[str, tuple[Any, ...]]:
        """Its first message after the hello; Internal if it ends without one."""
        late = self.end_if_silent()
        try:
            while True:
                for kind, body in self._link.receive():
                    late.cancel()
                    if kind != "hello":
                        return kind, body
                    self.check_version(*body)
        except ChannelClosed:
            raise Internal(
                f"the process of {self.name} ended before it was ready: {self.ending()}"
            ) from None
        finally:
            late.cancel()

    def end_if_silent(self) -> threading.Timer:
        """A timer that ends the process if its interpreter does not start; cancel it afterwards."""

        def give_up() -> None:
            logger.error(
                "the process of %s did not start within %g s%s",
                self.name,
                self._start_secs,
                f" (set another time with {self._longer})" if self._longer else "",
            )
            self._process.kill()

        timer = threading.Timer(self._start_secs, give_up)
        timer.daemon = True
        timer.start()
        return timer

    def check_version(self, version: int) -> None:
        """Check the version in its hello. Internal, and the process is ended, for another one."""
        if version != VERSION:
            self._process.kill()
            raise Internal(
                f"the process of {self.name} speaks version {version} of the link between "
                f"processes, this server version {VERSION}: Shoal's files were replaced while it "
                "runs. Restart the server"
            )

    def ending(self) -> str:
        """How the process ended; waits briefly for its end."""
        try:
            status = self._process.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            return "it hung up and goes on running"
        if status >= 0:
            return f"it exited with status {status}"
        what = None
        with contextlib.suppress(ValueError):
            what = signal.strsignal(-status)
        return f"signal {-status} ({(what or 'unknown').lower()})"

    def kill(self) -> None:
        """Kill it; the reading thread will notice."""
        self._process.kill()

    def end(self, within_secs: float = 0.0) -> None:
        """Make sure that it ends: by itself within that time, else by force."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_secs)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._link.hang_up()


def _launch(
    interpreter: Interpreter | None, connection: socket.socket, module: str, files: Sequence[int]
) -> subprocess.Popen[bytes]:
    python = sys.executable if interpreter is None else str(interpreter.python)
    variables = {**_MALLOC, **(os.environ if interpreter is None else interpreter.variables)}
    shoal_folder = Path(shoal.__file__).resolve().parent.parent
    numpy_folder = str(Path(np.__file__).resolve().parent.parent)
    if interpreter is not None and interpreter.version != sys.version_info[:2]:
        numpy_folder = ""  # it was built for another Python
    command = [python, str(_BOOTSTRAP), str(shoal_folder), numpy_folder]
    if sys.platform == "win32":
        process = subprocess.Popen(  # noqa: S603 - as below
            [*command, "stdin", module], stdin=subprocess.PIPE, env=variables
        )
        assert process.stdin is not None
        process.stdin.write(connection.share(process.pid))
        process.stdin.close()
        return process
    # Signals for all processes of a terminal or a service wait until the child ignores them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        return subprocess.Popen(  # noqa: S603 - the interpreter that the operator chose
            [*command, str(connection.fileno()), module],
            pass_fds=(connection.fileno(), *files),
            stdin=subprocess.DEVNULL,
            env=variables,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

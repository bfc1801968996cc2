"""Starting and ending the process of a model.

ChildProcess --> complete(config)        one call, then it ends
             └─> start(model)            it serves; see `parent.ModelProcess`
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.backends.python.environment import Environment
from shoal.backends.python.process.channel import ChannelClosed
from shoal.backends.python.process.link import Link
from shoal.errors import Internal

logger = logging.getLogger(__name__)

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_END_SECS = 5.0  # between closing the pipe and the end, on a busy machine


class ChildProcess:
    """A process that has been started. Its methods may be called from any thread."""

    def __init__(
        self, environment: Environment | None, start_secs: float, name: str = "a Python model"
    ) -> None:
        """Start the interpreter; nothing of the model is imported yet. Raises Internal."""
        self.name = name
        self._start_secs = start_secs
        ours, theirs = socket.socketpair()
        try:
            self._process = _launch(environment, theirs)
        except OSError as error:
            ours.close()
            raise Internal(f"cannot start a process for {name}: {error}") from None
        finally:
            theirs.close()
        self._link = Link(ours)
        # The end of the pipe does not imply the end of the process: programs that the model has
        # started may hold the other end too.
        threading.Thread(target=self._see_off, name=f"shoal-exit-{self.pid}", daemon=True).start()

    def _see_off(self) -> None:
        self._process.wait()
        self._link.hang_up()

    # ---- before it serves

    def complete(self, file: Path, config: str) -> str:
        """Let the model complete its config (JSON) and end; Internal with its exception."""
        try:
            with contextlib.suppress(ChannelClosed):  # if it has ended, its message says why
                self._link.send("complete", str(file), config)
            kind, body = self._hear()
        finally:
            self.end()
            self._link.close()
        if kind != "completed":
            raise Internal(str(body[0]))
        return str(body[0])

    def start(
        self, file: Path, arguments: dict[str, str], names: Sequence[str], *, decoupled: bool
    ) -> None:
        """Send it the model to serve; `ModelProcess` waits for the outcome."""
        with contextlib.suppress(ChannelClosed):  # as above
            self._link.send("serve", str(file), arguments, list(names), decoupled)

    def _hear(self) -> tuple[str, tuple[Any, ...]]:
        """Its first message; Internal if it ends without one."""
        late = self.end_if_silent()
        try:
            while True:
                for kind, body in self._link.receive():
                    late.cancel()
                    if kind != "hello":
                        return kind, body
        except ChannelClosed:
            raise Internal(
                f"the process of {self.name} ended before it was ready: {self.epitaph()}"
            ) from None
        finally:
            late.cancel()

    def end_if_silent(self) -> threading.Timer:
        """A timer that ends the process if its interpreter does not start; cancel it afterwards."""

        def give_up() -> None:
            logger.error(
                "the process of %s did not start within %g s (set another time with "
                "--backend-config=python,stub-timeout-seconds)",
                self.name,
                self._start_secs,
            )
            self._process.kill()

        timer = threading.Timer(self._start_secs, give_up)
        timer.daemon = True
        timer.start()
        return timer

    @property
    def link(self) -> Link:
        """The pipe to it."""
        return self._link

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def epitaph(self) -> str:
        """How the process ended; waits briefly for its end."""
        try:
            status = self._process.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            return "it hung up and goes on running"
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"it was ended by signal {-status} ({signal.Signals(-status).name})"
        return f"it exited with status {status}"

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


def _launch(environment: Environment | None, connection: socket.socket) -> subprocess.Popen[bytes]:
    python = sys.executable if environment is None else str(environment.python)
    variables = dict(os.environ) if environment is None else environment.variables(os.environ)
    shoal_folder = Path(shoal.__file__).resolve().parent.parent
    numpy_folder = Path(np.__file__).resolve().parent.parent
    if environment is not None and environment.version != sys.version_info[:2]:
        numpy_folder = Path()  # it was built for another Python
    command = [python, str(_BOOTSTRAP), str(shoal_folder)]
    command.append(str(numpy_folder) if numpy_folder.is_absolute() else "")
    if sys.platform == "win32":
        process = subprocess.Popen(  # noqa: S603 - as below
            [*command, "stdin"], stdin=subprocess.PIPE, env=variables
        )
        assert process.stdin is not None
        process.stdin.write(connection.share(process.pid))
        process.stdin.close()
        return process
    return subprocess.Popen(  # noqa: S603 - the interpreter that the operator chose
        [*command, str(connection.fileno())],
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        env=variables,
    )

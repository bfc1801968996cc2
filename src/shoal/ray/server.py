"""One `shoal serve` that a replica starts, watches and stops.

    ServerProcess.start --> child process: log lines --> "Started HTTPService at 0.0.0.0:41213"
                                                    stdin <-- held open while the replica lives

The server is a process of its own, so that Ray's threads in the replica do not compete with its
event loop. It chooses its ports itself. It stops as after SIGTERM, in order, when its standard
input ends. If the replica is killed, Ray kills this process, too: what it had is lost.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.errors import Unavailable

_STARTED = re.compile(r"Started (GRPCInferenceService|HTTPService|Metrics Service) at \S+?:(\d+)")
_LINES_OF_ERROR = 20
_KILL_SECS = 10.0  # after the server's own exit timeout
_CALL_SECS = 5.0
_PORT_OPTIONS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


class ServerProcess:
    """A server on ports of its own, in a child process."""

    def __init__(
        self,
        repositories: Sequence[str],
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        exit_timeout_secs: int = 30,
        drain_secs: float = 0.0,
    ) -> None:
        """Starts nothing yet. `options` are those of `shoal serve`."""
        self._words = [
            sys.executable,
            "-m",
            "shoal.cli.child",
            "serve",
            *repositories,
            *_PORT_OPTIONS,
            f"--exit-timeout-secs={exit_timeout_secs}",
            f"--drain-secs={drain_secs:g}",
            *options,
        ]
        self._environment = {**os.environ, **(environment or {})}
        self._stop_secs = drain_secs + exit_timeout_secs + _KILL_SECS
        self._ports: dict[str, int] = {}
        self._last_lines: deque[str] = deque(maxlen=_LINES_OF_ERROR)
        self._changed = threading.Condition()  # guards _ports, _last_lines and _ended
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self.on_end: Callable[[], None] = lambda: None  # called on a thread, unless `stop` ended it
        self._stopping = False

    # ---- ports

    @property
    def http_port(self) -> int:
        """0 if it has none."""
        return self._ports.get("HTTPService", 0)

    @property
    def grpc_port(self) -> int:
        """0 if it has none."""
        return self._ports.get("GRPCInferenceService", 0)

    @property
    def metrics_port(self) -> int:
        """0 if it has none."""
        return self._ports.get("Metrics Service", 0)

    # ---- life

    def start(self, timeout_secs: float) -> None:
        """Start it and return when it is ready.

        Raises Unavailable, with its last log lines, if it ends or takes longer; nothing of it is
        left then.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            self._words, env=self._environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        threading.Thread(target=self._read_log, name="shoal-server-log", daemon=True).start()
        deadline = time.monotonic() + timeout_secs
        try:
            with self._changed:
                while len(self._ports) < len(_PORT_OPTIONS) and not self._ended:
                    if not self._changed.wait(deadline - time.monotonic()):
                        break
            while not self._ended and time.monotonic() < deadline:
                if self.http_port and self.is_ready():
                    return
                time.sleep(0.05)
            raise self._failure(timeout_secs)
        except BaseException:
            self.kill()
            raise

    def _failure(self, timeout_secs: float) -> Unavailable:
        lines = "\n".join(self._last_lines)
        if self._ended:
            return Unavailable(f"the server has ended while it started; its last lines:\n{lines}")
        return Unavailable(
            f"the server was not ready after {timeout_secs:g} s; give it more time with "
            f"start_timeout_secs, or see its last lines:\n{lines}"
        )

    def stop(self) -> int:
        """Have it finish its requests and end; killed if it takes longer than it may.

        Returns its exit code.
        """
        if self._process is None:
            return 0
        self._stopping = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(self._stop_secs)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End it at once; what it has not answered is lost."""
        self._stopping = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process, 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    # ---- questions

    def is_ready(self) -> bool:
        """Whether it serves all its models."""
        return self._status("/v2/health/ready") == 200

    def is_live(self) -> bool:
        """Whether it answers at all."""
        return self._status("/v2/health/live") == 200

    def metrics(self) -> str:
        """The text for Prometheus. Raises OSError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=_CALL_SECS)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def _status(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_CALL_SECS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    # ---- its log

    def _read_log(self) -> None:
        """Pass the log on to this process's own, and find the ports in it."""
        process = self._process
        assert process is not None  # `start` made it
        assert process.stdin is not None
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode("utf-8", "replace").rstrip("\n")
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
            found = _STARTED.search(text)
            with self._changed:
                self._last_lines.append(text)
                if found:
                    self._ports[found[1]] = int(found[2])
                    self._changed.notify_all()
        process.wait()
        process.stdin.close()
        process.stderr.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if not self._stopping:
            self.on_end()

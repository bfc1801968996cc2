"""A Redis server of a test's own: started on a free port, with nothing left on disk.

with running_redis() as redis:
    settings = redis.settings()          for --cache-config
    redis.stop(); redis.start()          it dies, and comes back on the same port
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from shoal.config.options import NamedSetting
from shoal.testing import WAIT_SECS

_LOOK_SECS = 0.005


class RunningRedis:
    """One redis-server process on 127.0.0.1."""

    def __init__(self, folder: str, more: Sequence[str] = (), *, tls: bool = False) -> None:
        self.port = _free_port()
        self._tls = tls
        ports = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        self._command = [
            *("redis-server", "--bind", "127.0.0.1", *ports),
            *("--save", "", "--appendonly", "no", "--dir", folder, *more),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self, **more: str) -> tuple[NamedSetting, ...]:
        """What `cache_config` has to be to use it."""
        values = {"host": "127.0.0.1", "port": str(self.port), **more}
        return tuple(NamedSetting("redis", key, value) for key, value in values.items())

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WAIT_SECS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError("redis-server did not start")
            time.sleep(_LOOK_SECS)

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def pause(self) -> None:
        """Let it stand still: it is there and does not answer."""
        assert self._process is not None
        self._process.send_signal(19)  # SIGSTOP

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(18)  # SIGCONT

    def stop(self) -> None:
        """End it at once, with all it keeps."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_SECS)
            self._process = None


@contextlib.contextmanager
def running_redis(*more: str, tls: bool = False) -> Iterator[RunningRedis]:
    """A Redis that is gone when the block ends. `more` are words of its command line."""
    with tempfile.TemporaryDirectory(prefix="shoal-redis-") as folder:
        redis = RunningRedis(folder, more, tls=tls)
        redis.start()
        try:
            yield redis
        finally:
            redis.stop()


def _free_port() -> int:
    """A port below those that systems give to clients: none of them takes it before Redis does, or
    while it is gone."""
    while True:
        port = random.randint(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port

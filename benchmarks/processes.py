"""The processes of one server: found, measured and terminated together.

    start --token in the environment--> server --inherits--> workers, stubs, daemons

A child that detaches itself (as Ray's daemons do) is still found by the inherited token, so the CPU
time of a server includes all its processes, and none of them is left running.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

TOKEN = "SHOAL_BENCHMARK_TOKEN"  # noqa: S105  the name of a variable
END_WITHIN_SECS = 5.0
KILL_WITHIN_SECS = 5.0
LOOK_EVERY_SECS = 0.05


class Family:
    """A server's process and everything it started."""

    def __init__(
        self, line: list[str], environment: dict[str, str], folder: Path, log: Path
    ) -> None:
        """Start `line` in `folder`; what it prints goes to `log`."""
        self.token = secrets.token_hex(8)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self.head = subprocess.Popen(
                line,
                cwd=folder,
                env={**os.environ, **environment, TOKEN: self.token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is ours to pass on
            )

    def members(self) -> list[psutil.Process]:
        """All of its running processes."""
        mark = f"{TOKEN}={self.token}".encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(pid))
        return found

    def cpu_secs(self) -> float:
        """User and system time so far, including that of children that have ended."""
        total = 0.0
        for one in self.members():
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def memory_bytes(self) -> tuple[int, int]:
        """Resident memory: with shared pages counted once, and as the plain sum."""
        shared_once = plain = 0
        for one in self.members():
            with contextlib.suppress(psutil.Error):
                info = one.memory_full_info()
                shared_once += info.pss
                plain += info.rss
        return shared_once, plain

    def last_words(self, count: int = 15) -> str:
        """The end of its output."""
        if not self.log.exists():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-count:])

    def end(self) -> None:
        """Terminate the first process, then the rest. No process of the family is left."""
        if self.head.poll() is None:
            self.head.send_signal(signal.SIGTERM)
        self._wait(END_WITHIN_SECS)
        for one in self.members():
            with contextlib.suppress(psutil.Error):
                one.kill()
        self._wait(KILL_WITHIN_SECS)

    def _wait(self, within_secs: float) -> None:
        """Wait until no process is left, reaping the first."""
        until = time.monotonic() + within_secs
        while time.monotonic() < until:
            ended = self.head.poll() is not None
            left = self.members()
            if ended and not left:
                return
            if ended and all(one.status() == psutil.STATUS_ZOMBIE for one in left if _lives(one)):
                return
            time.sleep(LOOK_EVERY_SECS)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running())
    except psutil.Error:
        return False


@dataclass
class Usage:
    """CPU time during a load, by whom it was used."""

    server_secs: float = 0.0
    load_cores: float = 0.0
    others_cores: float = 0.0


@contextlib.contextmanager
def metered(family: Family | None = None) -> Iterator[Usage]:
    """Fill in the CPU use during the block: of the server, of the load, of all other processes.

    The load is what this process started and waited for; a server is waited for after its block.
    """
    usage = Usage()
    before = _meters(family)
    yield usage
    after = _meters(family)
    wall, busy, load, server = (late - early for late, early in zip(after, before, strict=True))
    usage.server_secs = server
    usage.load_cores = load / wall
    usage.others_cores = max(busy - load - server, 0.0) / wall


def _meters(family: Family | None) -> tuple[float, float, float, float]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.perf_counter(),
        machine_busy_secs(),
        used.ru_utime + used.ru_stime,
        family.cpu_secs() if family else 0.0,
    )


def machine_busy_secs() -> float:
    """CPU time of the whole machine since it started."""
    times = psutil.cpu_times()
    # Guests are part of `user` already; stolen time was nobody's work here.
    counted = ("user", "nice", "system", "irq", "softirq")
    return float(sum(getattr(times, name, 0.0) for name in counted))

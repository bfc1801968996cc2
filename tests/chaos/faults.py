"""Faults: small functions that take something away from a running server, and give it back."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path

import psutil

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS

_LINGER_NONE = struct.pack("ii", 1, 0)


def model_processes(server):
    """The pids of the server's model processes, once there are any."""

    def running():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            children = server.children()
            return [one.pid for one in children if one.status() != psutil.STATUS_ZOMBIE]

    return wait_until(running, "the server has model processes")


def server_processes(server, kind):
    """The pids of the "frontend" processes of a server that has several, or of the "engine"."""
    found = []
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
            if f"shoal.processes.{kind}" in child.cmdline():
                found.append(child.pid)
    return sorted(found)


def replace(server, kind, pid):
    """Kill one of these processes, and wait until another one is in its place."""
    before = set(server_processes(server, kind))
    kill(pid)
    wait_until(
        lambda: len(set(server_processes(server, kind)) - {pid}) == len(before),
        "another process is in its place",
    )


def kill(pid):
    """End a process at once. It may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def paused(*pids):
    """Stop processes during the block; what they own stays open."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def limited(server, kind, limit):
    """Lower a resource limit of the server's process during the block."""
    pid = server.process.pid
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def descriptors(server):
    """The numbers of the server's open files."""
    return {int(file.name) for file in Path(f"/proc/{server.process.pid}/fd").iterdir()}


def no_descriptors_left(server):
    """During the block the server can open nothing: accept, open and pipe fail with EMFILE."""
    used = descriptors(server)
    lowest_free = next(number for number in range(len(used) + 1) if number not in used)
    return limited(server, resource.RLIMIT_NOFILE, lowest_free)


@contextlib.contextmanager
def descriptors_used_up(server):
    """Connections take all the descriptors that the server may open, and more wait for one."""
    highest = max(descriptors(server))
    with contextlib.ExitStack() as open_lines, limited(server, resource.RLIMIT_NOFILE, highest + 1):
        for _ in range(highest + 20):
            open_lines.enter_context(connect(server.http_port))
        yield


def address_space_left(server, more_bytes):
    """During the block the server can allocate only so much more memory."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    return limited(server, resource.RLIMIT_AS, pages * resource.getpagesize() + more_bytes)


@contextlib.contextmanager
def small_disk(folder, size_bytes):
    """A file system of so many bytes, mounted at `folder`. Raises PermissionError."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "shoal-chaos", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        raise PermissionError("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder):
    """Fill a disk to its last byte during the block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            if file.write(b"0" * 4096) < 4096:
                continue  # the rest of the last page
    try:
        yield
    finally:
        filler.unlink()


def connect(port):
    """A connection that waits no longer than a test does."""
    return socket.create_connection((ADDRESS, port), WAIT_SECS)


def reset(line):
    """Close a connection with RST: the other side loses what it has not read."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    line.close()

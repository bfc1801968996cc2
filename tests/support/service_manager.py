"""The socket of a service manager, for servers that are started with its `environment`."""

from __future__ import annotations

import queue
import secrets
import socket
import threading

from shoal.testing import WAIT_SECS

PING = "WATCHDOG=1"


class FakeServiceManager:
    """Receives what a server tells systemd."""

    def __init__(self, watchdog_secs: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"shoal-test-{secrets.token_hex(8)}"
        self._socket.bind(f"\0{name}")  # an abstract address, as systemd's containers have
        self._messages: queue.Queue[list[str]] = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.environment = {
            "NOTIFY_SOCKET": f"@{name}",
            "WATCHDOG_USEC": str(int(watchdog_secs * 1e6)),
        }

    def _read(self) -> None:
        while message := self._socket.recv(4096):
            self._messages.put(message.decode().split("\n"))

    def wait_for(self, field: str) -> list[list[str]]:
        """All messages up to the first one with `field`."""
        found: list[list[str]] = []
        while not found or field not in found[-1]:
            found.append(self._messages.get(timeout=WAIT_SECS))
        return found

    def receives_nothing(self, secs: float) -> bool:
        """Whether no message arrives for so long, after those that have arrived."""
        while not self._messages.empty():
            self._messages.get()
        try:
            self._messages.get(timeout=secs)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

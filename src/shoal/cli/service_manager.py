"""Tells systemd how the server is: loading, ready, stopping, alive (the protocol of sd_notify).

    NOTIFY_SOCKET --> STATUS=…, READY=1, STOPPING=1      WATCHDOG_USEC --> WATCHDOG=1, periodically

The watchdog's message is sent by the event loop: if the loop hangs, systemd restarts the server.
Without these variables nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping

logger = logging.getLogger(__name__)

Responds = Callable[[], Awaitable[None]]
_SEND_SECS = 1.0  # for a manager that reads slowly
_MARGIN_SECS = 15.0  # for the end of a stop that took its whole time: processes, memory, log files


class ServiceManager:
    """The manager of this process, if there is one. It belongs to the thread of the event loop."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Takes its variables out of `environment`: a model's process must not speak for the
        server."""
        address = environment.pop("NOTIFY_SOCKET", "")
        usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = self._address and usec.isdecimal() and pid in ("", str(os.getpid()))
        self.ping_secs = int(usec) / 2 / 1e6 if mine else 0.0  # 0 without a watchdog
        self._pinging: asyncio.Task[None] | None = None

    def starting(self, responds: Responds | None = None) -> None:
        """The server begins to load. `responds` waits until its other processes have answered."""
        self._send("STATUS=loading models")
        if self.ping_secs:
            self._pinging = asyncio.get_running_loop().create_task(self._ping(responds))

    def ready(self) -> None:
        """Models have been loaded or tried."""
        self._send("READY=1", "STATUS=serving")

    def stopping(self, drain_secs: float, exit_timeout_secs: float) -> None:
        """The server stops, and may take as long as these options say."""
        secs = drain_secs + exit_timeout_secs
        self._send(
            "STOPPING=1",
            f"STATUS=stopping: requests in flight have {secs:g} s",
            f"EXTEND_TIMEOUT_USEC={int((secs + _MARGIN_SECS) * 1e6)}",
        )

    async def _ping(self, responds: Responds | None) -> None:
        while True:
            if responds is not None:
                await responds()
            self._send("WATCHDOG=1", wait_secs=0.0)
            await asyncio.sleep(self.ping_secs)

    def _send(self, *fields: str, wait_secs: float = _SEND_SECS) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(wait_secs)
                line.sendto("\n".join(fields).encode(), self._address)
        except (OSError, ValueError) as error:
            logger.warning("the service manager was not told %s: %s", fields[0], error)

"""What the connections of one HTTP listener share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from shoal.frontends.access_log import AccessLog
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.head import CheckedHeads, CheckHead, HeadCache, RewriteHead
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import date_line

if TYPE_CHECKING:
    from shoal.frontends.http.fast_path import HttpFastPath
    from shoal.frontends.http.protocol import HttpConnection

Handler: TypeAlias = Callable[[ConnectionExchange], None]

SCRATCH_BYTES = 64 * 1024
_HEAD_BYTES = 4 * 1024


class ListenerState:
    """What the connections of one listener share."""

    __slots__ = (
        "access_log",
        "clients",
        "connections",
        "date_line",
        "defer",
        "draining",
        "fast_path",
        "handle",
        "head_scratch",
        "heads",
        "limits",
        "linger_until",
        "memory",
        "on_empty",
        "scratch",
    )

    def __init__(
        self,
        handle: Handler,
        limits: HttpLimits,
        fast_path: HttpFastPath | None = None,
        clients: ClientLimits | None = None,
        check_head: CheckHead | None = None,
        access_log: AccessLog | None = None,
        rewrite: RewriteHead | None = None,
    ) -> None:
        """`clients` may be shared with other listeners."""
        self.handle = handle
        self.access_log = access_log
        self.limits = limits
        clients = clients or ClientLimits.of(limits.max_buffered_bytes)
        self.memory = clients.memory
        self.clients = clients.connections
        self.fast_path = fast_path
        if fast_path is not None:
            fast_path.limits = limits
        self.heads = HeadCache(rewrite) if check_head is None else CheckedHeads(check_head, rewrite)
        self.defer: Callable[[Callable[[], None]], object] = _call_soon
        self.connections: set[HttpConnection] = set()
        self.draining = False  # whether each response is the last one of its connection
        self.linger_until = -math.inf  # while it drains: until then idle connections stay open
        self.date_line = date_line(time.time())
        self.on_empty: Callable[[], None] | None = None  # called after the last connection
        # One for all: between get_buffer and buffer_updated no other connection is read,
        # and buffer_updated empties it before it does anything else. Idle clients hold nothing.
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        # The beginning of it, for clients that send large bodies: what is read with a head is
        # copied, the rest of a body is received straight into its memory.
        self.head_scratch = self.scratch[:_HEAD_BYTES]

    @property
    def lingers(self) -> bool:
        """While it drains: whether requests that arrive on idle connections are expected."""
        return time.monotonic() < self.linger_until

    def linger(self, secs: float) -> None:
        """Leave idle connections open for `secs`, from now on."""
        self.linger_until = time.monotonic() + secs


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)

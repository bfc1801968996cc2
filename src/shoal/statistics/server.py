"""What the whole server reports about itself: readiness, connections, memory of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerReading:
    """One reading of the server."""

    ready: bool
    warnings: int  # problems with which it is ready nevertheless
    connections: Mapping[str, int]  # that are open, by protocol
    connections_refused: int
    max_connections: int  # 0: no limit
    buffered_bytes: int  # of large requests and of responses that clients do not read
    max_buffered_bytes: int
    # Connections by process, where there are several.
    by_process: Mapping[str, int] = field(default_factory=dict)

"""What one HTTP client may use: sizes in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields

_SLOWEST_SWEEP_SECS = 1.0
_FASTEST_SWEEP_SECS = 0.02


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one listener. A time of 0 means that this clock never runs out."""

    max_head_bytes: int = 65_536  # request line and headers together; more is 431
    max_target_bytes: int = 8_192  # what stands between method and version; more is 414
    max_headers: int = 256  # more is 431
    max_body_bytes: int | None = 2 << 30  # None: as much as memory holds; more is 413
    max_buffered_bytes: int = 4 << 30  # of large bodies and unread responses, in all; then 503
    max_chunks: int = 65_536  # non-empty chunks in one chunked body; more is 400
    head_timeout_secs: float = 30.0  # from a head's first byte to its last; then 408
    body_idle_timeout_secs: float = 60.0  # between two reads of a body; then 408
    body_total_secs: float = 3600.0  # from a body's first byte to its last; then 408
    min_rate: float = 500.0  # bytes a second of a body or a response, after the idle time; 0: any
    keepalive_idle_secs: float = 600.0  # without a request; then the connection is closed
    write_stall_secs: float = 60.0  # a client that stopped reading; then the connection is cut
    linger_secs: float = 5.0  # after a refusal, so that the client gets to read why
    linger_bytes: int = 16 << 20  # what a refused client may still send meanwhile

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 0:
                raise ValueError(f"{field.name} is {value}, but a limit cannot be negative")

    @property
    def sweep_secs(self) -> float:
        """How often to check the time-outs so that none is late by more than about a quarter."""
        clocks = (
            self.head_timeout_secs,
            self.body_idle_timeout_secs,
            self.body_total_secs,
            self.keepalive_idle_secs,
            self.write_stall_secs,
            self.linger_secs,
        )
        shortest = min((secs for secs in clocks if secs), default=_SLOWEST_SWEEP_SECS)
        return min(max(shortest / 4, _FASTEST_SWEEP_SECS), _SLOWEST_SWEEP_SECS)

"""What one gRPC listener grants its clients: sizes in bytes, times in the units of their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields

from shoal.wire.http2_frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    LARGEST_FRAME_BYTES,
    MAX_WINDOW,
)

_SLOWEST_SWEEP_SECS = 1.0
_FASTEST_SWEEP_SECS = 0.01


class CompressionLevel(enum.Enum):
    """How hard to compress responses, for clients that accept it."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Triton's keepalive options, with its names and defaults, in milliseconds."""

    time_ms: int = 7_200_000  # a peer that is silent for so long is pinged
    timeout_ms: int = 20_000  # how long to wait for that sign
    permit_without_calls: bool = False  # also ping, and be pinged, while no call is open
    max_pings_without_data: int = 2  # our pings between two frames of ours with data; 0: no limit
    min_recv_ping_interval_ms: int = 300_000  # a client's ping sooner than that is a strike
    max_ping_strikes: int = 2  # one strike more and the connection is closed; 0: never
    max_connection_age_ms: int = 0  # 0: no limit
    max_connection_age_grace_ms: int = 0  # for open calls after that; 0: as long as they take

    def __post_init__(self) -> None:
        _refuse_negative(self)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one client may use. For times, 0 means no limit."""

    max_concurrent_streams: int = 1_024
    max_header_list_bytes: int = 16_384  # as gRPC counts: each field is 32 more than its text
    max_frame_bytes: int = 4 << 20
    stream_window_bytes: int = 4 << 20  # a known message length extends it at once
    connection_window_bytes: int = 64 << 20
    max_receive_message_bytes: int = 2**31 - 1
    max_inflated_bytes: int = 64 << 20  # of a compressed message, once it is decompressed
    max_send_message_bytes: int = 2**31 - 1
    max_buffered_bytes: int = 4 << 30  # of large messages in both directions, in all
    send_high_bytes: int = 1 << 20  # above this a call is not `writable`
    send_low_bytes: int = 256 << 10  # below this it is again
    max_queued_bytes: int = 256 << 20  # unsent responses of a connection; above: no new calls,
    queued_share: float = 0.25  # and above this part of `max_buffered_bytes` no more responses
    max_idle_frames: int = 2_000  # frames in a row that move nothing
    max_resets: int = 2_000  # streams cancelled at once ...
    resets_per_sec: int = 500  # ... and lastingly
    handshake_secs: float = 20.0  # from connecting to the first SETTINGS
    stalled_request_secs: float = 60.0  # a unary request that stopped arriving
    write_stall_secs: float = 120.0  # a socket or stream that takes nothing of what waits for it
    linger_secs: float = 2.0  # after GOAWAY, so that the client gets to read why

    def __post_init__(self) -> None:
        _refuse_negative(self)
        _refuse_outside(self, "max_frame_bytes", DEFAULT_FRAME_BYTES, LARGEST_FRAME_BYTES)
        _refuse_outside(self, "stream_window_bytes", DEFAULT_WINDOW, MAX_WINDOW)
        _refuse_outside(self, "connection_window_bytes", DEFAULT_WINDOW, MAX_WINDOW)
        _refuse_outside(self, "max_header_list_bytes", 1_024, 1 << 20)
        _refuse_outside(self, "max_receive_message_bytes", 0, 2**31 - 1)
        _refuse_outside(self, "max_send_message_bytes", 0, 2**32 - 1)

    @property
    def max_header_block_bytes(self) -> int:
        """Header blocks beyond this are not even decoded: the connection is closed."""
        return 2 * self.max_header_list_bytes


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """The settings of a listener."""

    limits: GrpcLimits = field(default_factory=GrpcLimits)
    keepalive: KeepAlive = field(default_factory=KeepAlive)
    compression: CompressionLevel = CompressionLevel.NONE

    @property
    def sweep_secs(self) -> float:
        """How often to check the timers so that none is late by more than about a quarter."""
        clocks = (
            self.limits.handshake_secs,
            self.limits.stalled_request_secs,
            self.limits.write_stall_secs,
            self.limits.linger_secs,
            self.keepalive.time_ms / 1e3,
            self.keepalive.timeout_ms / 1e3,
            self.keepalive.max_connection_age_ms / 1e3,
            self.keepalive.max_connection_age_grace_ms / 1e3,
        )
        shortest = min((secs for secs in clocks if secs), default=_SLOWEST_SWEEP_SECS)
        return min(max(shortest / 4, _FASTEST_SWEEP_SECS), _SLOWEST_SWEEP_SECS)


def _refuse_negative(values: KeepAlive | GrpcLimits) -> None:
    for each in fields(values):
        value = getattr(values, each.name)
        if value < 0:
            raise ValueError(f"{each.name} is {value}, but a limit cannot be negative")


def _refuse_outside(values: GrpcLimits, name: str, least: int, most: int) -> None:
    value = getattr(values, name)
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; give a number from {least} to {most}")

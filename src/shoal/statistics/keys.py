"""Counts of the requests that came with a key, by its name."""

from __future__ import annotations

from dataclasses import dataclass, field

# Why a request was refused, as the label of the metric.
NO_KEY, UNKNOWN_KEY, EXPIRED = "no_key", "unknown_key", "expired"
API, MODEL = "api", "model"
RATE, BYTES, IN_FLIGHT = "rate", "bytes", "in_flight"


@dataclass(slots=True, eq=False)
class KeyCounts:
    """One key's use of the server. Written by the event loop's thread, read by any."""

    name: str  # empty: requests without a valid key
    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    in_flight: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by reason

    def refuse(self, reason: str) -> None:
        """Count a request that was refused."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

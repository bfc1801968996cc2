"""Which replicas there are: what the ingress knows from their heartbeats.

    heartbeat --> JOINING --> SERVING --> leave --> LEAVING --> forgotten
                     |           |
                     +-----------+--> no heartbeat for a while --> LOST --> forgotten

A new ingress knows every replica after one interval, so it stores nothing. Whether a replica that
is not heard of answers requests is for HAProxy's health checks to find out: only those that are
forgotten get no requests any more, and the last one of a group is not forgotten.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_PER_SECOND = 200.0  # heartbeats that the ingress should have to take
_MISSED = 5.0  # intervals without a heartbeat, after which a replica is lost


class State(enum.Enum):
    """Of a replica, as the ingress sees it."""

    JOINING = "joining"  # it has not had all control calls yet
    SERVING = "serving"
    LEAVING = "leaving"
    LOST = "lost"


class ReplicaAddress(NamedTuple):
    """Where a replica is."""

    id: str
    group: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int


@dataclass
class Entry:
    """One replica."""

    address: ReplicaAddress
    state: State
    seen_secs: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0  # the number of the last control call that it has had
    open: bool = False  # whether its server is known to need no key
    key: str = ""  # that its server takes from us


class Directory:
    """All replicas of an application. Not for several threads."""

    def __init__(self, clock: Callable[[], float], interval_secs: float = 1.0) -> None:
        self._clock = clock
        self._least_secs = interval_secs
        self._entries: dict[str, Entry] = {}
        self.version = 0  # counts the changes of addresses and states

    @property
    def interval_secs(self) -> float:
        """How often a replica should be heard of."""
        return max(self._least_secs, len(self._entries) / _PER_SECOND)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, id_: str) -> Entry | None:
        """The replica with an id."""
        return self._entries.get(id_)

    def heartbeat(
        self, address: ReplicaAddress, metrics: Mapping[str, float], calls: int = 0, key: str = ""
    ) -> bool:
        """Note a replica; True if it has to join: it is new, was lost, or has other ports.

        `calls` is the number of the last control call that it knows to have had, `key` one that its
        server takes for any call.
        """
        entry = self._entries.get(address.id)
        if entry is not None and entry.state is State.LEAVING:
            return False  # it was sent before the replica left
        if entry is None or entry.state is State.LOST or entry.address != address:
            for id_, other in list(self._entries.items()):
                if _place(other.address) == _place(address):  # that one has ended
                    del self._entries[id_]
            entry = Entry(address, State.JOINING, self._clock(), metrics, calls, key=key)
            self._entries[address.id] = entry
            self.version += 1
            return True
        entry.seen_secs, entry.metrics = self._clock(), metrics
        return False

    def joined(self, id_: str, calls: int = 0) -> None:
        """It has had all control calls up to this number and may have requests."""
        entry = self._entries.get(id_)
        if entry is not None and entry.state is State.JOINING:
            entry.calls = calls
            self._change(id_, State.SERVING)

    def leave(self, id_: str) -> None:
        """It is to have no new requests."""
        self._change(id_, State.LEAVING)

    def forget(self, id_: str) -> None:
        """It is gone."""
        if self._entries.pop(id_, None) is not None:
            self.version += 1

    def find_lost(self) -> list[str]:
        """Mark those that have not been heard of as lost; returns their ids.

        Those for which that goes on for as long again are forgotten if others of the group serve.
        """
        allowed = _MISSED * self.interval_secs
        lost = []
        for id_, entry in list(self._entries.items()):
            silent = self._clock() - entry.seen_secs
            if silent > 2 * allowed and (
                entry.state is State.LEAVING
                or (entry.state is State.LOST and self.serving(entry.address.group))
            ):
                self.forget(id_)
            elif silent > allowed and entry.state in (State.JOINING, State.SERVING):
                self._change(id_, State.LOST)
                lost.append(id_)
        return lost

    def serving(self, group: str | None = None) -> list[ReplicaAddress]:
        """The addresses that may have requests and control calls, in the order of their ids."""
        found = self.in_state(State.SERVING)
        return [one for one in found if group in (None, one.group)]

    def in_state(self, *states: State) -> list[ReplicaAddress]:
        """The addresses of replicas in these states, in the order of their ids."""
        return sorted(entry.address for entry in self._entries.values() if entry.state in states)

    def _change(self, id_: str, state: State) -> None:
        entry = self._entries.get(id_)
        if entry is not None and entry.state is not state:
            entry.state = state
            self.version += 1


def _place(address: ReplicaAddress) -> tuple[str, int]:
    return address.host, address.http_port

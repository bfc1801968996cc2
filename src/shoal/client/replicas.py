"""The replicas of an application, and the choice among them. No sockets.

    GET /v2/replicas --read_list--> Balancer.update
    Target --Attempt.take--> Replica --its transport--> response --Attempt.release-->

A call goes to the replica with the fewest calls in flight from this client, among those that serve
its model. Another one gets it only if there was no connection, so nothing runs twice.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from shoal.client import http_responses
from shoal.client.address import GRPC, HTTP, Address, parse
from shoal.client.codec import Parameter, RawResponse, Target
from shoal.client.connecting import Limits
from shoal.client.errors import (
    UNAVAILABLE,
    ClientError,
    ConnectionFailed,
    ProtocolError,
    ServerError,
    Unavailable,
)
from shoal.client.steps import RoundTrip
from shoal.wire import json_text

T = TypeVar("T")

LIST_SECS = 5.0  # the time-out of a list
_INTERVAL_SECS = 1.0  # between lists while calls are made
_PER_SECOND = 200.0  # replicas in the lists that a client reads: long lists are read less often
_SOON_SECS = 0.1  # between lists after a failure
_IDLE_SECS = 10.0  # a list older than this is read again before it is used
_KEPT_SECS = 10.0  # a replica that is not listed any more: a new ingress may not know it yet
_AVOIDED_SECS = 5.0  # a replica without a connection; then one call tries it again
_CONNECT_SECS = 2.0  # at most, for a replica
_MOST_SEQUENCES = 65_536
_MOST_MODELS = 1_024
_SERVING = "serving"
_JOINING = "joining"
_LOST = "lost"
_UNAVAILABLE_CODES = {HTTP: 503, GRPC: 14}
_ANSWERED = (200, 0)  # over HTTP and gRPC


class Listed(NamedTuple):
    """A replica in the ingress's list."""

    id: str
    group: str
    address: Address
    models: frozenset[str] | None  # None: all that no other group lists
    state: str


def ingress_of(address: Address) -> Address:
    """Where the ingress answers."""
    return replace(address, protocol=HTTP, balanced=False, name="ingress")


def limits_of_replicas(limits: Limits) -> Limits:
    """Another replica is a better choice than a long wait for a connection."""
    longest = _CONNECT_SECS if limits.connect_secs is None else limits.connect_secs
    return Limits(min(longest, _CONNECT_SECS), limits.connections)


def read_list(response: RawResponse, address: Address) -> list[Listed]:
    """The response to GET /v2/replicas. Raises ProtocolError, and ServerError for an error."""
    what = f"what answers at {address.authority} is not an ingress of 'shoal ray'"
    if response.status == 404:
        raise ProtocolError(
            f"{what}: it has no /v2/replicas; for one server write '{HTTP}://{address.authority}'"
        )
    try:
        entries = http_responses.document(response)["replicas"]
        return [_listed(entry, address.protocol) for entry in entries]
    except ServerError:
        raise
    except (ClientError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__} {error}"
        raise ProtocolError(f"{what}: its /v2/replicas cannot be read ({reason})") from None


def _listed(entry: Any, protocol: str) -> Listed:
    id_ = str(entry["id"])
    address = replace(parse(entry[protocol], protocol), name=f"replica {id_}")
    models = entry["models"]
    known = None if models is None else frozenset(map(str, models))
    return Listed(id_, str(entry["group"]), address, known, str(entry["state"]))


def as_response(protocol: str, error: Unavailable) -> RawResponse:
    """The response of an ingress that knows no replica for a call."""
    status = _UNAVAILABLE_CODES[protocol]
    if protocol == GRPC:
        return RawResponse(status, {}, b"", error.message)
    return RawResponse(status, {}, json_text.dumps({"error": error.message}))


class Replica(Generic[T]):
    """A replica: its transport, and the calls that it has from this client."""

    __slots__ = (
        "calls",
        "gone",
        "group",
        "models",
        "refusals",
        "seen_secs",
        "serving",
        "shown",
        "state",
        "transport",
    )

    def __init__(self, listed: Listed, transport: T) -> None:
        self.transport = transport
        self.shown = listed.address.shown
        self.group = listed.group
        self.models = listed.models
        self.state = listed.state
        self.serving = False
        self.calls = 0
        self.refusals = 0  # since the last list: quick refusals must not look like idleness
        self.seen_secs = 0.0  # in a list
        self.gone = False  # its transport is closed after its last call


class Balancer(Generic[T]):
    """The replicas of one application. Thread-safe."""

    def __init__(
        self,
        address: Address,
        connect: Callable[[Address], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect` makes a transport, which opens no connection yet."""
        self.address = address
        self.clock = clock
        self.lists = 0  # how many were asked for
        self._connect = connect
        self._lock = threading.Lock()  # guards everything below
        self._replicas: dict[tuple[str, Address], Replica[T]] = {}
        self._serving: dict[str, list[Replica[T]]] = {}  # by model, as far as asked for
        self._avoided: dict[Replica[T], float] = {}  # until when
        self._sequences: dict[tuple[str, Parameter], Replica[T]] = {}  # the last used is last
        self._asked_secs = -math.inf
        self._loaded = False
        self._error: ClientError | None = None  # of the last list
        self._soon = False

    # ---- the list

    @property
    def must_wait(self) -> bool:
        """Whether calls need a new list: there is none, or it was not used for long."""
        if not self._loaded:
            return True
        return self._error is None and self.clock() - self._asked_secs >= _IDLE_SECS

    @property
    def due(self) -> bool:
        """Whether a list should be read beside the calls."""
        interval_secs = max(_INTERVAL_SECS, len(self._replicas) / _PER_SECOND)
        limit_secs = _SOON_SECS if self._soon else interval_secs
        return self.clock() - self._asked_secs >= limit_secs

    def update(self, listed: Sequence[Listed]) -> list[T]:
        """Take over a new list; returns the transports to close."""
        with self._lock:
            now = self._note_list(None)
            self._loaded = True
            groups = {one.group for one in listed if one.state == _SERVING}
            for one in listed:
                replica = self._replicas.get((one.id, one.address))
                if replica is None:
                    replica = Replica(one, self._connect(one.address))
                    self._replicas[one.id, one.address] = replica
                replica.models, replica.state, replica.seen_secs = one.models, one.state, now
                replica.serving = one.state == _SERVING or (
                    one.group not in groups
                    # Without heartbeats all are lost, and to a new ingress all are new: they may
                    # serve nevertheless. Connections will tell.
                    and (one.state == _LOST or (one.state == _JOINING and replica.serving))
                )
            closed = []
            for key, replica in list(self._replicas.items()):
                if replica.seen_secs == now:
                    continue
                replica.serving = replica.serving and replica.group not in groups
                if now - replica.seen_secs >= _KEPT_SECS:
                    del self._replicas[key]
                    self._avoided.pop(replica, None)
                    replica.serving, replica.gone = False, True
                    if not replica.calls:
                        closed.append(replica.transport)
            self._serving.clear()
            return closed

    def list_failed(self, error: ClientError) -> None:
        """There is no new list; the replicas of the last one are used further."""
        with self._lock:
            self._note_list(error)

    def check(self) -> None:
        """Raise the last error if there has never been a list."""
        if not self._loaded and self._error is not None:
            raise self._error

    def transports(self) -> list[T]:
        """Of all replicas."""
        with self._lock:
            return [replica.transport for replica in self._replicas.values()]

    def _note_list(self, error: ClientError | None) -> float:
        self.lists += 1
        self._asked_secs = now = self.clock()
        self._error = error
        self._soon = False
        for replica in self._replicas.values():
            replica.refusals = 0
        return now

    # ---- for attempts

    def choose(self, target: Target, tried: Sequence[Replica[T]]) -> Replica[T] | None:
        """The replica for a call, which is counted; None if there is none left.

        Raises ConnectionFailed for a sequence whose replica is lost.
        """
        with self._lock:
            replica: Replica[T] | None = None
            if target.sequence is not None and not target.start:
                replica = self._sequences.get((target.model, target.sequence))
            if replica is None:
                replica = self._least_loaded(self._serving_model(target.model), tried)
            elif replica.gone:
                raise lost_sequence(target, replica, "it has ended")
            if replica is None:
                return None
            if target.sequence is not None:
                self._sequences.pop((target.model, target.sequence), None)
                self._sequences[target.model, target.sequence] = replica
                if len(self._sequences) > _MOST_SEQUENCES:
                    del self._sequences[next(iter(self._sequences))]
            replica.calls += 1
            return replica

    def release(self, replica: Replica[T]) -> T | None:
        """A call has ended; returns the transport if it is to be closed."""
        with self._lock:
            replica.calls -= 1
            return replica.transport if replica.gone and not replica.calls else None

    def answered(self, replica: Replica[T], target: Target, status: int) -> None:
        """A replica has answered."""
        if status in _ANSWERED and not target.end and not self._avoided:
            return
        with self._lock:
            self._avoided.pop(replica, None)
            if status == _UNAVAILABLE_CODES[self.address.protocol]:
                replica.refusals += 1
            elif target.end and target.sequence is not None and status in _ANSWERED:
                self._sequences.pop((target.model, target.sequence), None)

    def connection_failed(self, replica: Replica[T], error: ClientError) -> None:
        """A connection failed or was lost: read the list soon, avoid the replica for a while."""
        with self._lock:
            self._soon = True
            if error.not_connected and not replica.gone:
                self._avoided[replica] = self.clock() + _AVOIDED_SECS

    def nothing(self, target: Target) -> Unavailable:
        """The error when no replica serves a model."""
        with self._lock:
            states = Counter(replica.state for replica in self._owners(target.model))
        listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        what = f"model '{target.model}'" if target.model else "this"
        return Unavailable(
            f"no replica of {self.address.url} serves {what} now ({listed or 'there is none'}); "
            f"try again later",
            UNAVAILABLE,
            _UNAVAILABLE_CODES[self.address.protocol],
        )

    def _owners(self, model: str) -> list[Replica[T]]:
        """The replicas of the group that serves a model; all if there is no such group."""
        replicas = list(self._replicas.values())
        owners = [one for one in replicas if one.models is not None and model in one.models]
        return owners or [one for one in replicas if one.models is None] or replicas

    def _serving_model(self, model: str) -> list[Replica[T]]:
        serving = self._serving.get(model)
        if serving is None:
            serving = [replica for replica in self._owners(model) if replica.serving]
            if len(self._serving) >= _MOST_MODELS:
                self._serving.clear()
            self._serving[model] = serving
        return serving

    def _least_loaded(
        self, serving: list[Replica[T]], tried: Sequence[Replica[T]]
    ) -> Replica[T] | None:
        if tried:
            serving = [replica for replica in serving if replica not in tried]
        if self._avoided:
            now = self.clock()
            for replica in serving:
                if self._avoided.get(replica, math.inf) <= now:
                    self._avoided[replica] = now + _AVOIDED_SECS  # one call tries it
                    return replica
            serving = [one for one in serving if one not in self._avoided] or serving
        return least_loaded(serving) if serving else None


def least_loaded(replicas: Sequence[Replica[T]]) -> Replica[T]:
    """One with the fewest calls; at random where several have as few."""
    for _ in range(2):  # most of many replicas are idle
        replica = random.choice(replicas)  # noqa: S311 - no secret
        if not replica.calls + replica.refusals:
            return replica
    least = min(replica.calls + replica.refusals for replica in replicas)
    same = [replica for replica in replicas if replica.calls + replica.refusals == least]
    return random.choice(same)  # noqa: S311


def lost_sequence(target: Target, replica: Replica[T], reason: object) -> ConnectionFailed:
    """The error of a sequence that cannot go on."""
    return ConnectionFailed(
        f"the sequence {target.sequence!r} of model '{target.model}' is lost with its replica at "
        f"{replica.shown}: {reason}; begin a new sequence"
    )


class Attempt(Generic[T]):
    """The replicas that one call tries."""

    def __init__(self, balancer: Balancer[T], target: Target) -> None:
        self._balancer = balancer
        self._target = target
        self._tried: list[Replica[T]] = []
        self._error: ClientError | None = None
        self._began_secs = balancer.clock()

    def take(self) -> Replica[T] | None:
        """The next replica; None if there is none left. Raises ConnectionFailed for a sequence."""
        return self._balancer.choose(self._target, self._tried)

    def nothing(self) -> ClientError:
        """The error when no replica is left."""
        if self._error is None:
            return self._balancer.nothing(self._target)
        error = ConnectionFailed(
            f"none of the replicas of {self._balancer.address.url} that serve model "
            f"'{self._target.model}' can be connected to; the last one: {self._error}"
        )
        error.not_connected = True
        return error

    def limited(self, step: RoundTrip) -> RoundTrip:
        """The step with the time that is left. Raises ConnectionFailed if there is none."""
        if self._error is None or step.timeout_secs is None:
            return step
        now = self._balancer.clock()
        left = step.timeout_secs - (now - self._began_secs)
        self._began_secs = now
        if left <= 0:
            raise self.nothing()
        return step._replace(timeout_secs=left)

    def answered(self, replica: Replica[T], status: int) -> None:
        """The replica has answered."""
        self._balancer.answered(replica, self._target, status)

    def failed(self, replica: Replica[T], error: ClientError) -> None:
        """The call failed. Raises the error unless another replica may have the call."""
        lost = isinstance(error, ConnectionFailed) or error.not_connected
        if lost:
            self._balancer.connection_failed(replica, error)
        target = self._target
        goes_on = target.sequence is not None and not target.start
        if lost and (goes_on or (target.sequence is not None and not error.not_connected)):
            raise lost_sequence(target, replica, error) from None
        if not error.not_connected:
            raise error
        self._tried.append(replica)
        self._error = error

"""Asking the cache before a request joins its model's queue, and keeping the answer afterwards.

    accept --enqueue--> CacheDoor --found--> reply
                            │ not found
                            └--> the model's queue ... --> KeepingReply --> reply, and the cache

A lookup that is quick happens at once. One that waits (Redis), or that has much to hash while the
event loop stands still, happens on a thread of the cache's. Equal requests that are under way at
the same time all go to the model: nobody waits for somebody else's answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from shoal.cache.entry import CachedResponse
from shoal.cache.key import input_bytes, request_key
from shoal.cache.store import CacheStore
from shoal.core.reply import Reply
from shoal.core.request import Request, State
from shoal.core.response import Response
from shoal.errors import Internal, QueueRejected, ShoalError
from shoal.scheduler.batcher import BatcherClosed
from shoal.scheduler.order import OrderKeeper
from shoal.statistics.model import FailureReason, ModelStatistics

logger = logging.getLogger(__name__)

# Hashing goes at about a gigabyte per second; beyond this others would wait too long for the loop.
_HASH_ON_LOOP_BYTES = 64 * 1024


class Loop(Protocol):
    """The event loop, where there is one."""

    def here(self) -> bool:
        """Whether this is its thread."""

    def call_soon(self, callback: Callable[[], None]) -> bool:
        """Have the loop call `callback` soon; false when there is no loop any more."""


class CacheDoor:
    """The way into one version of a model whose answers are cached."""

    def __init__(
        self,
        store: CacheStore,
        identity: Callable[[], bytes],
        enqueue: Callable[[Request], None],
        statistics: ModelStatistics,
        *,
        loop: Loop | None = None,
        preserve_ordering: bool = False,
    ) -> None:
        """`identity` stands for what would answer a request now; `enqueue` queues one.

        With `preserve_ordering` answers leave in the order of the requests, wherever they come
        from; then the queue behind this need not see to it.
        """
        self._store = store
        self._identity = identity
        self._queue = enqueue
        self._statistics = statistics
        self._loop = loop
        self._order = OrderKeeper() if preserve_ordering else None
        self._changed = threading.Condition()  # guards the two below, and the order of arrival
        self._asking = 0  # requests that are neither answered nor queued
        self._closed = False
        statistics.cached = True

    @property
    def asking(self) -> int:
        """Requests that the cache is being asked about."""
        return self._asking

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""
        with self._changed:
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "model is unloading")
            self._asking += 1
            if self._order is not None:
                self._order.join(request)
        if request.correlation_id or request.flags:  # part of a sequence: its past matters too
            self._pass_on(request, request.reply)
            return
        request.queued_ns = time.monotonic_ns()
        if not self._store.worth_asking():
            self._pass_on(request, request.reply, _MissedReply(self, request))
        elif not self._should_hand_over(request):
            self._ask(request)
        elif not self._store.submit(lambda: self._ask_alone(request)):
            self._pass_on(request, request.reply, _MissedReply(self, request))

    def _should_hand_over(self, request: Request) -> bool:
        if self._store.waits:
            return True
        loop = self._loop
        return loop is not None and loop.here() and input_bytes(request) > _HASH_ON_LOOP_BYTES

    def _ask_alone(self, request: Request) -> None:
        """Ask on a thread of the cache's, where nobody is left to raise to."""
        reply = request.reply
        try:
            self._ask(request)
        except ShoalError as error:
            self._refuse(request, reply, error)
        except Exception as error:  # a fault of ours must not leave the client waiting
            logger.exception("asking the response cache failed")
            self._refuse(request, reply, Internal(f"{type(error).__name__}: {error}"))

    def _ask(self, request: Request) -> None:
        """Answer from the cache or queue. Raises where queueing does."""
        store = self._store
        start_ns = time.monotonic_ns()
        reply = request.reply
        try:
            identity = self._identity()
            key = request_key(identity, request)
            entry = store.lookup(key)
        except BaseException:
            self._done_asking()
            raise
        lookup_ns = time.monotonic_ns() - start_ns
        if entry is not None:
            self._answer(request, entry, start_ns, lookup_ns)
        else:
            self._pass_on(request, reply, _KeepingReply(self, request, identity, key, lookup_ns))

    def _answer(
        self, request: Request, entry: CachedResponse, start_ns: int, lookup_ns: int
    ) -> None:
        statistics = self._statistics
        response = entry.response(request, statistics.name, statistics.version)
        request.state = State.DONE
        statistics.cache_hit(request, start_ns, lookup_ns)
        self._done_asking()
        loop = self._loop
        # On the loop the caller is a frontend that does not expect the answer before it has
        # finished asking.
        if loop is None or not loop.here() or not loop.call_soon(lambda: _send(request, response)):
            request.reply.send(response)

    def _pass_on(self, request: Request, reply: Reply, instead: Reply | None = None) -> None:
        """Queue the request, with its answer going through `instead`. Raises where queueing does,
        unless the request has a place in the order of answers already."""
        if instead is not None:
            request.reply = instead
        try:
            self._queue(request)
        except ShoalError as error:
            request.reply = reply
            if self._order is None:
                raise
            self._refuse(request, reply, error)
        finally:
            self._done_asking()

    def _refuse(self, request: Request, reply: Reply, error: ShoalError) -> None:
        """Answer a request that could not be queued."""
        request.reply = reply
        request.state = State.DONE
        if isinstance(error, QueueRejected):
            self._statistics.failed(request, FailureReason.REJECTED, time.monotonic_ns())
        request.fail(error, self._statistics.version)

    def _done_asking(self) -> None:
        with self._changed:
            self._asking -= 1
            if self._closed:
                self._changed.notify_all()

    # ---- the way back

    def keep(self, key: bytes, identity: bytes, response: Response, lookup_ns: int) -> None:
        """Keep a model's answer, now or, where that waits, in a moment; counts the miss."""
        start_ns = time.monotonic_ns()
        if self._identity() != identity:  # a model it is made of was replaced meanwhile
            self._statistics.cache_missed(lookup_ns)
            return
        entry = CachedResponse.of(response)
        if self._store.waits:
            self._statistics.cache_missed(lookup_ns)
            self._store.submit(lambda: self._keep_later(key, entry))
            return
        self._store.insert(key, entry)
        insert_ns = time.monotonic_ns() - start_ns
        self._statistics.cache_missed(lookup_ns + insert_ns, insert_ns)

    def _keep_later(self, key: bytes, entry: CachedResponse) -> None:
        start_ns = time.monotonic_ns()
        self._store.insert(key, entry)
        self._statistics.cache_kept(time.monotonic_ns() - start_ns)

    def missed(self) -> None:
        """Count an answer that the cache was not even asked for."""
        self._statistics.cache_missed(0)

    def close(self) -> None:
        """Refuse new requests and wait until those at hand are answered or queued. Blocks."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._asking)


class _MissedReply:
    """Stands in for a request's reply where the cache could not be asked: counts the miss."""

    __slots__ = ("_door", "_reply")

    def __init__(self, door: CacheDoor, request: Request) -> None:
        self._door = door
        self._reply = request.reply

    def send(self, response: Response) -> None:
        """Count and pass on."""
        if response.final and response.error is None:
            self._door.missed()
        self._reply.send(response)


class _KeepingReply:
    """Stands in for a request's reply until its answer is kept. Errors are not."""

    __slots__ = ("_door", "_identity", "_key", "_lookup_ns", "_only", "_reply")

    def __init__(
        self, door: CacheDoor, request: Request, identity: bytes, key: bytes, lookup_ns: int
    ) -> None:
        self._door = door
        self._reply = request.reply
        self._identity = identity
        self._key = key
        self._lookup_ns = lookup_ns
        self._only = True  # whether no response came before

    def send(self, response: Response) -> None:
        """Keep the answer if it is the whole one, then pass it on."""
        if response.final and response.error is None:
            if self._only:
                try:
                    self._door.keep(self._key, self._identity, response, self._lookup_ns)
                except Exception:  # the client gets its answer, kept or not
                    logger.exception("an answer could not be kept in the response cache")
            else:
                self._door.missed()
        self._only = False
        self._reply.send(response)


def _send(request: Request, response: Response) -> None:
    request.reply.send(response)

"""Looks requests up in the cache before they are queued, and stores responses of misses.

    accept --enqueue--> CachingScheduler --hit--> reply
                            │ miss
                            └--> the model's queue ... --> StoringReply --> reply, and the cache

A quick lookup happens at once. One that blocks (Redis), or that would hash much on the event loop,
happens on a thread of the cache. Equal requests that are in flight at the same time all go to the
model: none waits for the response of another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from shoal.cache.entry import CachedResponse
from shoal.cache.key import input_bytes, request_key
from shoal.cache.store import CacheStore
from shoal.core.reply import Reply
from shoal.core.request import Request, State
from shoal.core.response import Response
from shoal.errors import Internal, QueueRejected, ShoalError
from shoal.scheduler.base import BatcherClosed, EventLoop
from shoal.scheduler.order import OrderKeeper
from shoal.statistics.model import FailureReason, ModelStatistics

logger = logging.getLogger(__name__)

# Hashing takes about 1 ns per byte; more would block the event loop for too long.
_HASH_ON_LOOP_BYTES = 64 * 1024


class CachingScheduler:
    """Looks up and queues requests for one version of a model whose responses are cached."""

    def __init__(
        self,
        store: CacheStore,
        identity: Callable[[], bytes],
        enqueue: Callable[[Request], None],
        statistics: ModelStatistics,
        *,
        loop: EventLoop | None = None,
        preserve_ordering: bool = False,
    ) -> None:
        """`identity` identifies the model (and those it runs) in keys; `enqueue` queues a request.

        With `preserve_ordering`, hits and misses are answered in the order of the requests; the
        queue itself need not preserve the order then.
        """
        self._store = store
        self._identity = identity
        self._queue = enqueue
        self._statistics = statistics
        self._loop = loop
        self._order = OrderKeeper() if preserve_ordering else None
        self._changed = threading.Condition()  # guards the two below, and the order of arrival
        self._pending = 0  # requests that are neither answered nor queued
        self._closed = False
        statistics.cached = True

    @property
    def pending(self) -> int:
        """Requests that are being looked up."""
        return self._pending

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""
        with self._changed:
            if self._closed:
                raise BatcherClosed(request.log_prefix() + "model is unloading")
            self._pending += 1
            if self._order is not None:
                self._order.join(request)
        if request.correlation_id or request.flags:  # of a sequence: earlier requests matter, too
            self._enqueue_miss(request, request.reply)
            return
        request.queued_ns = time.monotonic_ns()
        if not self._store.is_available():
            self._enqueue_miss(request, request.reply, _MissedReply(self, request))
        elif not self._needs_thread(request):
            self._look_up(request)
        elif not self._store.submit(lambda: self._look_up_on_thread(request)):
            self._enqueue_miss(request, request.reply, _MissedReply(self, request))

    def _needs_thread(self, request: Request) -> bool:
        if self._store.waits:
            return True
        loop = self._loop
        return loop is not None and loop.here() and input_bytes(request) > _HASH_ON_LOOP_BYTES

    def _look_up_on_thread(self, request: Request) -> None:
        """Look up on a thread of the cache: errors answer the request."""
        reply = request.reply
        try:
            self._look_up(request)
        except ShoalError as error:
            self._refuse(request, reply, error)
        except Exception as error:  # a bug of ours must not leave the client waiting
            logger.exception("the lookup in the response cache failed")
            self._refuse(request, reply, Internal(f"{type(error).__name__}: {error}"))

    def _look_up(self, request: Request) -> None:
        """Answer from the cache, or queue. Raises where queueing does."""
        store = self._store
        start_ns = time.monotonic_ns()
        reply = request.reply
        try:
            identity = self._identity()
            key = request_key(identity, request)
            entry = store.lookup(key)
        except BaseException:
            self._lookup_ended()
            raise
        lookup_ns = time.monotonic_ns() - start_ns
        if entry is not None:
            self._answer(request, entry, start_ns, lookup_ns)
        else:
            self._enqueue_miss(
                request, reply, _StoringReply(self, request, identity, key, lookup_ns)
            )

    def _answer(
        self, request: Request, entry: CachedResponse, start_ns: int, lookup_ns: int
    ) -> None:
        statistics = self._statistics
        response = entry.response(request, statistics.name, statistics.version)
        request.state = State.DONE
        statistics.cache_hit(request, start_ns, lookup_ns)
        self._lookup_ended()
        loop = self._loop
        # On the loop the caller is a frontend, which does not expect the response before this
        # call returns.
        if loop is None or not loop.here() or not loop.call_soon(lambda: _send(request, response)):
            request.reply.send(response)

    def _enqueue_miss(self, request: Request, reply: Reply, instead: Reply | None = None) -> None:
        """Queue the request with the reply `instead`. Raises where queueing does, unless the
        request has its position in the order of responses already."""
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
            self._lookup_ended()

    def _refuse(self, request: Request, reply: Reply, error: ShoalError) -> None:
        """Answer a request that could not be queued."""
        request.reply = reply
        request.state = State.DONE
        if isinstance(error, QueueRejected):
            self._statistics.failed(request, FailureReason.REJECTED, time.monotonic_ns())
        request.fail(error, self._statistics.version)

    def _lookup_ended(self) -> None:
        with self._changed:
            self._pending -= 1
            if self._closed:
                self._changed.notify_all()

    # ---- the way back

    def keep(self, key: bytes, identity: bytes, response: Response, lookup_ns: int) -> None:
        """Store a model's response, on a thread if that blocks; counts the miss."""
        start_ns = time.monotonic_ns()
        if self._identity() != identity:  # one of an ensemble's models was replaced meanwhile
            self._statistics.cache_missed(lookup_ns)
            return
        entry = CachedResponse.of(response)
        if self._store.waits:
            self._statistics.cache_missed(lookup_ns)
            self._store.submit(lambda: self._store_later(key, entry))
            return
        self._store.insert(key, entry)
        insert_ns = time.monotonic_ns() - start_ns
        self._statistics.cache_missed(lookup_ns + insert_ns, insert_ns)

    def _store_later(self, key: bytes, entry: CachedResponse) -> None:
        start_ns = time.monotonic_ns()
        self._store.insert(key, entry)
        self._statistics.cache_stored(time.monotonic_ns() - start_ns)

    def missed(self) -> None:
        """Count a miss without a lookup."""
        self._statistics.cache_missed(0)

    def close(self) -> None:
        """Refuse new requests and wait until all others are answered or queued. Blocks."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._pending)


class _MissedReply:
    """Replaces a request's reply where the cache is not available: counts the miss."""

    __slots__ = ("_reply", "_scheduler")

    def __init__(self, scheduler: CachingScheduler, request: Request) -> None:
        self._scheduler = scheduler
        self._reply = request.reply

    def send(self, response: Response) -> None:
        """Count and pass on."""
        if response.final and response.error is None:
            self._scheduler.missed()
        self._reply.send(response)


class _StoringReply:
    """Replaces a request's reply until its response is stored. Errors are not stored."""

    __slots__ = ("_identity", "_key", "_lookup_ns", "_only", "_reply", "_scheduler")

    def __init__(
        self,
        scheduler: CachingScheduler,
        request: Request,
        identity: bytes,
        key: bytes,
        lookup_ns: int,
    ) -> None:
        self._scheduler = scheduler
        self._reply = request.reply
        self._identity = identity
        self._key = key
        self._lookup_ns = lookup_ns
        self._only = True  # whether there was no response before

    def send(self, response: Response) -> None:
        """Store the response if it is the only one, then pass it on."""
        if response.final and response.error is None:
            if self._only:
                try:
                    self._scheduler.keep(self._key, self._identity, response, self._lookup_ns)
                except Exception:  # the client gets its response, stored or not
                    logger.exception("a response could not be stored in the response cache")
            else:
                self._scheduler.missed()
        self._only = False
        self._reply.send(response)


def _send(request: Request, response: Response) -> None:
    request.reply.send(response)

"""One loaded version of a model or an ensemble, as the engine and the repository use it.

engine --accept--> response cache, if the config enables it --> scheduler
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cache.caching_scheduler import CachingScheduler
from shoal.core.interface import FunctionInterface
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.readiness import Problem
from shoal.core.request import DONE, Request
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.core.validate import validate
from shoal.errors import QueueRejected, ShoalError, Unavailable
from shoal.instance.execution_placement import ExecutionPlacement
from shoal.models.replicas import ModelReplicas
from shoal.models.spec import ModelSpec
from shoal.scheduler.admission import Expectation
from shoal.scheduler.base import BatcherClosed
from shoal.scheduler.policy import Reason
from shoal.statistics.model import FailureReason
from shoal.tasks.endpoint import TaskEndpoint, open_endpoint

if TYPE_CHECKING:
    from shoal.tasks.images.plan import PhotoPlan


class ServedModel(ABC):
    """A loaded version. Its public attributes do not change, except by `resize`."""

    execution_placement: ExecutionPlacement

    __slots__ = ("__dict__", "__weakref__", "_cache")  # what each request reads, next to the object

    def __init__(self, spec: ModelSpec, version: int, signature: Signature) -> None:
        """Subclasses call `_use_scheduler`, then `_open_task` when they can take requests."""
        self.spec = spec
        self.name = spec.name
        self.version = version
        self.config = spec.config
        self.signature = signature
        self.statistics = spec.new_statistics(version)
        self.statistics.time_to_drain_ns = self._drain_with_task_ns
        self.task: TaskEndpoint | None = None
        self.replicas: ModelReplicas | None = None  # in front-end processes, once they load any
        self.interface: FunctionInterface | None = None
        self._cache: CachingScheduler | None = None
        self._own_identity = b""

    def _use_scheduler(
        self,
        enqueue: Callable[[Request], None],
        *,
        version_folder: Path | None = None,
        preserve_ordering: bool = False,
    ) -> None:
        """Queue requests with `enqueue`, after a lookup in the cache if the config enables it."""
        spec, store = self.spec, self.spec.context.cache
        self._enqueue = enqueue
        if store is None:
            return
        folder = spec.folder
        self._own_identity = store.identity(self.version, spec.config, folder, version_folder)
        if spec.caches_responses:
            self._cache = CachingScheduler(
                store,
                lambda: self.cache_identity,
                enqueue,
                self.statistics,
                loop=spec.context.loop,
                preserve_ordering=preserve_ordering,
            )
            self._enqueue = self._cache.enqueue

    def _open_task(self) -> None:
        self.task = open_endpoint(self, self.spec.folder, self.spec.context.task_workers)
        if self.task is not None:
            self.statistics.task = self.task.statistics
            pending, context = self.statistics.pending, self.task.context
            self.statistics.pending = lambda: pending() + context.waiting()

    @property
    def cache_identity(self) -> bytes:
        """Identifies it in the keys of cached responses."""
        return self._own_identity

    @property
    @abstractmethod
    def decoupled(self) -> bool:
        """Whether it may send any number of responses to a request."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folder, and that of the version if it has one."""
        own = self.spec.version_folders.get(self.version)
        return (self.spec.folder,) if own is None else (self.spec.folder, own)

    @property
    def loaded_ms(self) -> int:
        """When it was loaded, in milliseconds since the epoch."""
        return self.statistics.loaded_ms

    @property
    def takes_device_tensors(self) -> bool:
        """Whether other steps of an ensemble may pass it tensors on a device."""
        return False

    @property
    def asks_readiness(self) -> bool:
        """Whether `ready` calls the model itself, which may block."""
        return False

    def ready(self) -> bool:
        """Whether it is ready. May block where it `asks_readiness`."""
        return True

    def is_healthy(self) -> bool:
        """Whether its instances take requests; if not, a load makes a new model of it."""
        return True

    def problems(self) -> Sequence[Problem]:
        """What is wrong with it while it serves, for the readiness of the server. Never blocks."""
        return ()

    def accept(self, request: Request) -> None:
        """Check the request and queue it. If this raises, it is still the caller's to answer."""
        validate(request, self.signature)
        self.accept_checked(request)

    def accept_checked(self, request: Request) -> None:
        """Queue a request known to be valid for this model. Raises as `accept` does."""
        request.served_by = self
        try:
            self._enqueue(request)
        except QueueRejected:
            self.statistics.failed(request, FailureReason.REJECTED, time.monotonic_ns())
            raise

    def refusal(self, requests: Sequence[Request] = ()) -> QueueRejected | None:  # noqa: ARG002
        """The error for all of the requests, which are alike, if none of them would be accepted
        now; they are counted then. Without any: for a request that is not decoded yet."""
        return None

    def accept_group(self, requests: Sequence[PlannedRequest]) -> int:  # noqa: ARG002
        """Queue valid requests of one template that arrived at the same moment, from the first on;
        returns how many.

        Pass the others to `accept_rest`. Never raises. The requests' `served_by` is this model
        already.
        """
        return 0

    def accept_rest(self, requests: Sequence[PlannedRequest]) -> Sequence[PlannedRequest]:
        """Queue valid requests of one template one by one; those that are refused are answered,
        together if all of them are. Returns those it did not take because it is being replaced."""
        refusal = self.refusal(requests)
        if refusal is not None:
            template = requests[0].template
            assert template is not None  # of all of them
            for request in requests:
                request.state = DONE
            template.replies.refuse_all(refusal, requests)
            return ()
        replaced: list[PlannedRequest] = []
        for request in requests:
            try:
                self.accept_checked(request)
            except BatcherClosed:
                replaced.append(request)
            except ShoalError as error:
                request.state = DONE
                request.fail(error)
        return replaced

    def check_room(self) -> None:
        """See `Engine`."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal.prefixed("[request id: <id_unknown>] ")

    @property
    def classifies_photos(self) -> bool:
        """Whether its instances decode and classify photos themselves."""
        return False

    def offer_photos(self, plan: PhotoPlan) -> bool:  # noqa: ARG002
        """Whether instances that are made from now on classify photos themselves, by `plan`."""
        return False

    def accept_photos(self, requests: Sequence[PlannedRequest]) -> None:
        """Queue or answer requests of a photo template, if it `classifies_photos`."""
        for request in requests:
            request.served_by = self
        taken = self.accept_group(requests)
        rest = () if taken == len(requests) else self.accept_rest(requests[taken:])
        for request in rest:
            request.state = DONE
            request.fail(Unavailable("model is unloading"))

    def joins_rows(self) -> int:
        """How many requests of an ensemble's step it can run at the same time, each with the rows
        of several clients' requests; 0 where every client's request must be one of its own."""
        return 0

    def run_block(
        self,
        template: RequestTemplate,  # noqa: ARG002
        columns: Sequence[Buffer],  # noqa: ARG002
        started: list[int],  # noqa: ARG002
    ) -> PlannedResponses | None:
        """Run valid requests of one template at once, on the loop's thread, without an object for
        each: `columns` are the bytes of each input, those of all requests, which began at `started`
        in rising order. None, with nothing done, where they have to be queued."""
        return None

    @property
    def limits_latency(self) -> bool:
        """Whether it may refuse requests because of a target latency."""
        return self.spec.target_latency_ns > 0

    def expectation(self, request: Request) -> Expectation:  # noqa: ARG002
        """Whether such a request would be admitted now, and how long it would take."""
        return Expectation()

    def _drain_with_task_ns(self) -> float | None:
        """With the work that its task does before the model."""
        own_ns = self.time_to_drain_ns()
        if own_ns is None or self.task is None:
            return own_ns
        return own_ns + self.task.context.time_to_drain_ns()

    @abstractmethod
    def time_to_drain_ns(self) -> float | None:
        """How long what waits and runs now is expected to take; None while that is not known."""

    def resize(self, spec: ModelSpec) -> None:
        """Take the instance groups of `spec`, in place. On failure the old ones stay."""
        self.spec = spec
        self.config = spec.config

    def in_flight(self) -> int:
        """Requests accepted and not yet answered, except for those being submitted right now."""
        pending = self._cache.pending if self._cache is not None else 0
        return pending + (self.task.calls if self.task is not None else 0) + self._scheduled()

    @abstractmethod
    def _scheduled(self) -> int:
        """Requests that wait in the scheduler or are being executed."""

    def idle(self) -> bool:
        """Whether it is unused: no request, no pending response, no open sequence."""
        return not self.in_flight()

    def execution_report(self) -> dict[str, str]:
        """Where it runs and why."""
        elsewhere = None if self.replicas is None else self.replicas.execution()
        return elsewhere or self.execution_placement.report()

    def recent_cuts(self) -> Sequence[tuple[Reason, int]]:
        """Of the last batches, the oldest first: why each was closed, and its rows."""
        return ()

    def counters(self) -> Mapping[str, object]:
        """The additional counters of its backend."""
        return {}

    def memory_bytes(self) -> int:
        """Its estimated memory, in this process and in others of its own."""
        return 0

    def begin_exit(self) -> None:
        """The server exits: sequences that have begun may continue, no new one begins."""
        return

    def close(self) -> None:
        """Refuse new requests, serve the queued ones, then release everything. Blocks."""
        if self.task is not None:
            self.task.finish()
        if self._cache is not None:
            self._cache.close()
        self._close()

    @abstractmethod
    def _close(self) -> None:
        """As `close`, for the scheduler and what is behind it."""

"""One instance: accepts requests while there is room, and generates their texts as one batch.

    worker thread --execute: read, prepare photo, wait for room--> [ arrived ]
    own thread    encode those that arrived, join, step, step, …

While there is no room `execute` blocks, so that requests wait in the model's queue, with the
time-outs, priorities and cancellation of any other model.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from shoal.backends.base import PendingRequest, RequestExecutor
from shoal.backends.generation.counts import Counts
from shoal.backends.generation.job import RequestJob
from shoal.backends.generation.request import GenerationRequestReader
from shoal.errors import Cancelled, ShoalError
from shoal.generation.batch import ContinuousBatch
from shoal.generation.decoder import RowsFactory

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """What makes the further inputs of the decoder."""

    overlaps: bool  # whether `start` has an effect

    def staged(self, features: np.ndarray) -> Any:
        """A photo, or window of sound, as `run` takes it. Any thread may call this."""

    def start(self, features: Sequence[Any]) -> None:
        """Prepare for `run` with the same, which follows after a step of the decoder: a device
        may begin while that step is computed, or its results are processed."""

    def run(self, features: Sequence[Any]) -> Sequence[Any]:
        """The inputs for each photo, or window of sound, as rows take them; valid until the
        next call."""


class GenerationExecutor(RequestExecutor):
    """One instance. Its sessions are shared; the states of its texts are its own."""

    answers_later = True

    def __init__(
        self,
        name: str,
        reader: GenerationRequestReader,
        encoder: Encoder | None,
        make_rows: RowsFactory,
        max_rows: int,
        encoder_batch: int,
        counts: Counts,
    ) -> None:
        """At most `max_rows` texts are in progress, each beam counting as one. Between two steps at
        most `encoder_batch` photos are encoded, while texts in progress wait."""
        self._reader = reader
        self._encoder = encoder
        self._counts = counts
        self._batch = ContinuousBatch(make_rows, max_rows, counts.decoded)
        self._max_rows = max_rows
        self._encoder_batch = encoder_batch
        self._changed = threading.Condition()  # guards what follows
        self._arrived: deque[RequestJob] = deque()
        self._rows = 0  # in use, or reserved for those that arrived
        self._texts = 0  # that are to be answered
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=f"shoal-{name}", daemon=True)
        self._thread.start()

    @property
    def texts(self) -> int:
        """How many requests have no final response yet."""
        return self._texts

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Accept requests, waiting for room. An invalid one is answered here."""
        for pending in batch:
            try:
                wanted = self._reader(pending.request)
                job = RequestJob(pending, wanted, self._reader.writing, self._text_ended)
                if self._encoder is not None and wanted.features is not None:
                    job.features = self._encoder.staged(wanted.features)
            except ShoalError as error:
                pending.send(error=error)
                continue
            self._submit(job, pending)

    def _submit(self, job: RequestJob, pending: PendingRequest) -> None:
        width = job.options.num_beams
        request = pending.request
        request.on_cancel = self._wake
        with self._changed:
            self._changed.wait_for(
                lambda: request.cancelled or self._rows + width <= self._max_rows
            )
            if not request.cancelled:
                self._arrived.append(job)
                self._rows += width
                self._texts += 1
                self._changed.notify_all()
                self._counts.texts_changed()
                return
        pending.send(error=Cancelled(f"{request.log_prefix()}the client cancelled the request"))

    def _text_ended(self) -> None:
        with self._changed:
            self._texts -= 1
            self._counts.texts_changed()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Finish the texts in progress, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # ---- on the thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived or self._batch.rows or self._closing)
                if not self._arrived and not self._batch.rows:
                    return
                count = min(len(self._arrived), self._encoder_batch)
                joining = [self._arrived.popleft() for _ in range(count)]
            try:
                self._advance(joining)
            except Exception as error:
                # Jobs are notified of their own errors; this one is ours.
                logger.exception("generating texts failed")
                self._batch.fail_all(error)
                for job in joining:
                    if not job.over:
                        job.on_error(error)
            with self._changed:
                waiting = sum(job.options.num_beams for job in self._arrived)
                self._rows = self._batch.rows + waiting
                self._changed.notify_all()

    def _advance(self, joining: Sequence[RequestJob]) -> None:
        """A step of the texts in progress, and of those that join, if they are encoded before."""
        for job in joining:
            if job.cancelled:
                job.on_cancelled()
        jobs = [job for job in joining if not job.over]
        encoder = self._encoder
        overlaps = encoder is not None and encoder.overlaps and self._batch.rows and jobs
        if encoder is not None and overlaps:
            encoder.start([job.features for job in jobs])
            self._batch.step()
        for kept, contexts in self._encoded(jobs):
            self._batch.join(kept, contexts)
        if not overlaps:
            self._batch.step()

    def _encoded(
        self, jobs: Sequence[RequestJob]
    ) -> Iterator[tuple[Sequence[RequestJob], Sequence[Any]]]:
        """Jobs with their encoded photos; if a photo fails the batch, each is encoded alone."""
        if self._encoder is None or not jobs:
            yield jobs, [()] * len(jobs)
            return
        try:
            contexts = self._encoder.run([job.features for job in jobs])
        except Exception as error:  # noqa: BLE001 - reported to the requests
            if len(jobs) == 1:
                jobs[0].on_error(error)
                return
            for job in jobs:
                yield from self._encoded([job])
            return
        self._counts.encoded(len(jobs))
        for job in jobs:
            job.features = None
        yield jobs, contexts

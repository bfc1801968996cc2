"""Sends the photos of a task to its model, which decodes them itself, on a GPU.

classify(photo), of all calls --one group for each loop iteration--> the model's queue
         <------------- labels, one wake-up for each batch -------------'
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.core.inbox import LoopInbox
from shoal.core.photos import FRAME, NOT_FINITE, UNREADABLE, photo_template
from shoal.core.planned import PlannedRequest, PlannedResponses
from shoal.core.response import Response
from shoal.core.tensor import Buffer
from shoal.errors import Internal, QueueRejected, ShoalError
from shoal.tasks.context import TaskContext, was_admitted
from shoal.tasks.images.jpeg import JpegFrame
from shoal.tasks.images.plan import PhotoPlan


class BestLabels(NamedTuple):
    """Of one photo, the best first."""

    indexes: list[int]
    scores: list[float]


class _PhotoReply:
    """Where the labels of one photo go, or an error."""

    __slots__ = ("labels", "requests")

    def __init__(self, requests: PhotoRequests, labels: asyncio.Future[BestLabels]) -> None:
        self.requests = requests
        self.labels = labels

    def send(self, response: Response) -> None:
        """Fail with the error of a response; labels come in batches."""
        error = response.error or Internal("a photo was answered without labels")
        self.requests.post_errors([(self.labels, error)])


class PhotoRequests:
    """The photos of one model. For the loop's thread, except for the replies."""

    reply_types: tuple[type, ...] = (_PhotoReply,)

    def __init__(self, context: TaskContext, plan: PhotoPlan) -> None:
        self.most_labels = plan.labels
        self._output = plan.output
        self._accept = context.accept_photos
        self._template = photo_template(context.model_name, context.model_version, self)
        self._inbox: LoopInbox | None = None
        self._waiting: list[PlannedRequest] = []  # of this iteration

    async def classify(self, photo: Buffer, frame: JpegFrame) -> BestLabels | None:
        """The best labels; None if the photo has to be prepared on the CPU.

        Raises the model's error. Cancelling this cancels the request.
        """
        loop = asyncio.get_running_loop()
        if self._inbox is None:
            self._inbox = LoopInbox(loop)
        labels: asyncio.Future[BestLabels] = loop.create_future()
        request = PlannedRequest(
            self._template,
            (photo, FRAME.pack(*frame)),
            (0, 1),
            "",
            _PhotoReply(self, labels),
            None,
            time.monotonic_ns(),
        )
        if was_admitted.get():
            request.admitted = True
        was_admitted.set(True)
        if not self._waiting:
            loop.call_soon(self._submit)
        self._waiting.append(request)
        try:
            best = await labels
        except asyncio.CancelledError:
            request.cancel()
            raise
        if best.indexes[0] == UNREADABLE:
            return None
        if best.indexes[0] == NOT_FINITE:
            raise Internal(
                f"the model's output '{self._output}' contains scores that are not finite"
            )
        return best

    def _submit(self) -> None:
        """Send the photos of an iteration whose clients have not left."""
        requests = [request for request in self._waiting if not request.cancelled]
        self._waiting = []
        if not requests:
            return
        try:
            self._accept(requests)
        except Exception as raised:  # noqa: BLE001 - becomes the response
            error = raised if isinstance(raised, ShoalError) else Internal(f"{raised!r}")
            self.post_errors([(request.reply.labels, error) for request in requests])  # type: ignore[attr-defined]

    # ---- replies, from any thread

    def send_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        assert self._inbox is not None
        self._inbox.post(_settle, (responses, requests))

    def refuse_all(self, error: QueueRejected, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        self.post_errors(
            [(one.reply.labels, error.prefixed(one.log_prefix())) for one in requests]  # type: ignore[attr-defined]
        )

    def post_errors(self, errors: Sequence[tuple[asyncio.Future[BestLabels], ShoalError]]) -> None:
        """Fail photos."""
        assert self._inbox is not None
        self._inbox.post(_fail, errors)


def _settle(answered: tuple[PlannedResponses, Sequence[PlannedRequest]]) -> None:
    responses, requests = answered
    indexes, scores = responses.contents
    found = np.frombuffer(indexes, np.int32).reshape(len(requests), -1).tolist()
    values = np.frombuffer(scores, np.float32).reshape(len(requests), -1).tolist()
    for request, best, score in zip(requests, found, values, strict=True):
        labels: asyncio.Future[BestLabels] = request.reply.labels  # type: ignore[attr-defined]
        if not labels.done():
            labels.set_result(BestLabels(best, score))


def _fail(errors: Sequence[tuple[asyncio.Future[BestLabels], ShoalError]]) -> None:
    for labels, error in errors:
        if not labels.done():
            labels.set_exception(error)

"""Admission of requests to sequences: which one a request belongs to, or why it is refused.

Messages are Triton's, because clients match on them. No lock and no clock: the batcher guards it.
"""

from __future__ import annotations

import logging

from shoal.core.request import Request
from shoal.errors import InvalidArgument, Unavailable
from shoal.scheduler.sequence_table import SequenceRun, SequenceTable
from shoal.scheduler.sequence_turn import SequenceSetup

logger = logging.getLogger(__name__)


def check(request: Request, setup: SequenceSetup) -> None:
    """InvalidArgument for a request that cannot be of a sequence of this model."""
    if request.rows > 1:
        raise InvalidArgument(
            f"inference request to model '{setup.model_name}' must specify batch-size 1 due to "
            "requirements of sequence batcher"
        )
    if setup.iterative and not request.correlation_id:
        return  # the server generates an id
    setup.controls.check_id(request)
    if not request.correlation_id:
        raise InvalidArgument(
            f"inference request to model '{setup.model_name}' must specify a non-zero or "
            "non-empty correlation ID"
        )


class SequenceAdmission:
    """Assigns each request to its sequence."""

    def __init__(self, setup: SequenceSetup, table: SequenceTable) -> None:
        self._setup = setup
        self._table = table
        self._next_id = 1
        self.refuses_new = False  # sequences that have begun may continue, none begins

    def admit(self, request: Request) -> SequenceRun:
        """The sequence of a request that was checked, begun if the request starts one.

        Raises InvalidArgument or Unavailable; then nothing has begun.
        """
        named = bool(request.correlation_id)
        if not named:
            self._make_sequence_of(request)
        correlation_id = request.correlation_id
        starts = bool(request.flags & Request.SEQUENCE_START)
        # A request that is a sequence by itself, or part of an accepted one, ends before the exit.
        if starts and self.refuses_new and named and not request.admitted:
            raise Unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference "
                "requests"
            )
        run = self._table.find(correlation_id)
        if run is None:
            if not starts:
                raise InvalidArgument(
                    f"inference request for sequence {correlation_id} to model "
                    f"'{self._setup.model_name}' must specify the START flag on the first request "
                    "of the sequence"
                )
            return self._table.start(correlation_id)
        if starts:  # requests that wait are served, then the START begins another sequence
            logger.warning(
                "sequence %s of model '%s' starts again without having ended; the earlier one "
                "ends here",
                correlation_id,
                self._setup.model_name,
            )
        return run

    def _make_sequence_of(self, request: Request) -> None:
        """Iterative: the request is a sequence by itself, with an unused id."""
        while self._table.find(self._next_id) is not None:
            self._next_id += 1
        request.correlation_id = self._next_id
        request.flags = Request.SEQUENCE_START
        self._next_id += 1

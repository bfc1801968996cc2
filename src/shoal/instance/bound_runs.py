"""Small batches of one template, run from bytes to bytes.

    first such batch --bind--> BoundRun --run--> responses, written as a whole

An executor may bind the inputs and outputs of a batch: then the bytes of its requests become the
bytes of its responses without arrays in between. What is bound is kept for each executor, template
and number of requests. Whatever fails here runs again without it, which defines the result.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import FunctionType
from typing import Any, TypeAlias, cast

import numpy as np

from shoal.backends.base import ArrayForm, BoundRun, Executor, RequestExecutor
from shoal.core.named_frame import named_frame
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate, ResponseLayout
from shoal.core.request import DONE, Request
from shoal.instance.own_time import SHORT_NS, ComputeTime, own_ns, thread_cpu_ns
from shoal.scheduler.batch import PlannedOutputs, shared_template
from shoal.statistics.model import ModelStatistics, ledger

logger = logging.getLogger(__name__)

_MOST_REQUESTS = 64  # in a batch: for larger ones it saves little
_FEW_REQUESTS = 4  # more have a limit for all models together, because there are many sizes
_MOST_BATCHES = 1024  # of more than a few requests, about 15 KB each
_MOST_BYTES = 16 * 1024  # of inputs: larger ones take longer to copy than it saves

_AnyExecutor: TypeAlias = Executor | RequestExecutor
# Template, executor and places of the inputs; the part of a message with all inputs, what is bound,
# and the account of the ledger.
_LoneRun: TypeAlias = tuple[
    RequestTemplate,
    _AnyExecutor,
    tuple[Any, ...],
    slice | None,
    BoundRun,
    ResponseLayout,
    int | None,
]
_Key: TypeAlias = tuple[_AnyExecutor, RequestTemplate | None, int]

_bound_batches: weakref.WeakSet[BoundRun] = weakref.WeakSet()  # of more than a few requests


class BoundRuns:
    """What one model's executors have bound. Threads of several instances may use it: each has its
    own executor, and losing an entry costs time only."""

    __slots__ = (
        "_last",
        "_last_alone",
        "_running",
        "_statistics",
        "_unbindable",
        "_was_long",
        "known",
    )

    def __init__(self, statistics: ModelStatistics, running: str = "") -> None:
        """`running` is what the frame of a bound run is called, see `named_frame`."""
        self._statistics = statistics
        self._running = running
        # By executor, template and number of requests. Empty if there is nothing to run.
        self.known: dict[_Key, tuple[BoundRun, ResponseLayout]] = {}
        self._unbindable: set[_Key] = set()
        # The last one that ran: template, executor, number of requests, and what is bound.
        self._last: tuple[RequestTemplate, _AnyExecutor, int, BoundRun, ResponseLayout] | None = (
            None
        )
        # The same for requests that are alone in their batch.
        self._last_alone: _LoneRun | None = None
        self._was_long = False  # the last run

    def run(
        self, executor: _AnyExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime | None:
        """Execute `batch` and answer its requests; None, with nothing done, where nothing is bound
        for such a batch, or where it fails."""
        count = len(batch)
        if count == 1:
            return self.run_alone(executor, batch[0], start_ns)
        if count > _MOST_REQUESTS:
            return None
        template = shared_template(batch)
        last = self._last
        if last is not None and last[0] is template and last[1] is executor and last[2] == count:
            _, _, _, run, layout = last
        else:
            bound = self.known.get((executor, template, count))
            if template is None or bound is None:
                return None
            run, layout = bound
            self._last = (template, executor, count, run, layout)
        requests: Sequence[PlannedRequest] = batch  # type: ignore[assignment]
        contents = _join(requests)
        # Reading the CPU time is a tenth of such a run. After a long one, the next is measured.
        reads_cpu_time = self._was_long
        cpu_ns = thread_cpu_ns() if reads_cpu_time else 0
        input_end_ns = time.monotonic_ns()
        try:
            results = run(contents)
        except Exception:  # noqa: BLE001 - what happens without it counts
            self._last = None
            return None
        end_ns = time.monotonic_ns()
        elapsed_ns = end_ns - input_end_ns
        self._was_long = elapsed_ns > SHORT_NS
        model_ns = own_ns(elapsed_ns, cpu_ns) if reads_cpu_time else min(elapsed_ns, SHORT_NS)
        moments = (start_ns, input_end_ns, end_ns, end_ns)
        rows = template.rows * count
        self._statistics.executed(requests, rows, moments, end_ns=end_ns)
        for request in requests:
            request.state = DONE
            request.moments = moments
        responses = PlannedResponses(layout, layout.split(results, count))
        template.replies.send_all(responses, requests)
        return rows, model_ns, elapsed_ns

    def run_alone(
        self, executor: _AnyExecutor, request: Request, start_ns: int
    ) -> ComputeTime | None:
        """As `run`, for one request. Where requests go to many models, this is what each costs."""
        if not isinstance(request, PlannedRequest):
            return None
        template = request.template
        places = request.places
        last = self._last_alone
        if (
            last is None
            or last[0] is not template
            or last[1] is not executor
            or last[2] is not places
        ):
            bound = self.known.get((executor, template, 1))
            if template is None or bound is None:
                return None
            account = self._statistics.account(template.rows)
            last = (template, executor, places, _span(places), *bound, account)
            self._last_alone = last
        template, _, _, span, run, layout, account = last
        replies = template.replies
        if type(request.reply) not in replies.reply_types:
            return None
        contents = _join((request,)) if span is None else request.message[span]
        reads_cpu_time = self._was_long
        cpu_ns = thread_cpu_ns() if reads_cpu_time else 0
        input_end_ns = time.monotonic_ns()
        try:
            results = run(contents)
        except Exception:  # noqa: BLE001 - what happens without it counts
            self._last_alone = None
            return None
        end_ns = time.monotonic_ns()
        model_ns = elapsed_ns = end_ns - input_end_ns
        if reads_cpu_time or elapsed_ns > SHORT_NS:
            self._was_long = elapsed_ns > SHORT_NS
            model_ns = own_ns(elapsed_ns, cpu_ns) if reads_cpu_time else SHORT_NS
        request.state = DONE
        request.moments = moments = (start_ns, input_end_ns, end_ns, end_ns)
        if account is not None:
            ledger.add(account, request.start_ns, request.queued_ns, moments, end_ns)
        else:
            self._statistics.executed((request,), template.rows, moments, end_ns=end_ns)
        replies.send_all(PlannedResponses(layout, (), (results,)), (request,))
        return template.rows, model_ns, elapsed_ns

    def run_one_by_one(
        self, executor: _AnyExecutor, requests: Sequence[Request]
    ) -> tuple[int, ComputeTime] | None:
        """Execute the first of `requests`, each alone, and answer them together. Returns how many,
        and the times of the longest execution; None, with nothing done, as `run`."""
        template = shared_template(requests)
        bound = self.known.get((executor, template, 1))
        # A long execution ends a series: each of them is to be judged by its own CPU time.
        if template is None or bound is None or self._was_long:
            return None
        run, layout = bound
        results: list[bytes] = []
        all_moments: list[tuple[int, int, int, int]] = []
        longest_ns = 0
        end_ns = time.monotonic_ns()
        planned = cast("Sequence[PlannedRequest]", requests)
        places = planned[0].places
        span = _span(places)
        for request in planned:
            start_ns = end_ns
            if span is None or request.places is not places:
                contents = _join((request,))
            else:
                contents = request.message[span]
            input_end_ns = time.monotonic_ns()
            try:
                results.append(run(contents))
            except Exception:  # noqa: BLE001 - what happens without it counts
                break
            end_ns = time.monotonic_ns()
            request.state = DONE
            request.moments = moments = (start_ns, input_end_ns, end_ns, end_ns)
            all_moments.append(moments)
            longest_ns = max(longest_ns, end_ns - input_end_ns)
            if longest_ns > SHORT_NS:
                self._was_long = True
                break
        count = len(results)
        if not count:
            return None
        answered = planned[:count]
        self._statistics.executed_one_by_one(answered, all_moments)
        template.replies.send_all(PlannedResponses(layout, (), results), answered)
        return count, (template.rows, min(longest_ns, SHORT_NS), longest_ns)

    def bind(
        self,
        executor: Executor,
        template: RequestTemplate,
        count: int,
        inputs: Mapping[str, np.ndarray],
        outputs: PlannedOutputs,
    ) -> None:
        """Bind batches such as one of `count` requests that has just run with `inputs` and has
        given `outputs`, if that is possible."""
        if count > _MOST_REQUESTS:
            return
        key = executor, template, count
        if key in self._unbindable:
            return
        has_failed = self.known.pop(key, None) is not None  # a bound run, and only that
        bound = None if has_failed else _bind(executor, inputs, outputs, count)
        if bound is None:
            self._unbindable.add(key)
            return
        run, layout = bound
        if self._running and isinstance(run, FunctionType):
            run = named_frame(run, self._running)
        if count > _FEW_REQUESTS:
            _bound_batches.add(run)
        self.known[key] = run, layout

    def forget_all(self) -> None:
        """Let everything that was bound go."""
        self.known = {}
        self._unbindable = set()
        self._last = self._last_alone = None

    def forget(self, executor: _AnyExecutor) -> None:
        """Let go what this executor has bound."""
        known, unbindable = self.known.copy(), self._unbindable.copy()
        self.known = {key: bound for key, bound in known.items() if key[0] is not executor}
        self._unbindable = {key for key in unbindable if key[0] is not executor}
        self._last = self._last_alone = None


def _join(requests: Sequence[PlannedRequest]) -> bytes:
    """The bytes of all inputs, one behind the other, each with those of all requests."""
    inputs = range(len(requests[0].places))
    return b"".join(
        [request.message[request.places[index]] for index in inputs for request in requests]
    )


def _span(places: tuple[Any, ...]) -> slice | None:
    """The part of a message that has all inputs, if they are there one behind the other."""
    if not all(isinstance(place, slice) for place in places):
        return None  # each is a buffer
    if any(one.stop != other.start for one, other in pairwise(places)):
        return None
    return slice(places[0].start, places[-1].stop) if places else None


def _bind(
    executor: Executor,
    inputs: Mapping[str, np.ndarray],
    outputs: PlannedOutputs,
    count: int,
) -> tuple[BoundRun, ResponseLayout] | None:
    form = outputs.last_form(count)
    if form is None or sum([array.nbytes for array in inputs.values()]) > _MOST_BYTES:
        return None
    if count > _FEW_REQUESTS and len(_bound_batches) >= _MOST_BATCHES:
        return None
    layout, arrays = form
    try:
        run = executor.bind(
            [ArrayForm(name, array.shape, array.dtype) for name, array in inputs.items()],
            [ArrayForm(*array) for array in arrays],
        )
    except Exception:
        logger.exception("binding the inputs and outputs of a batch failed")
        return None
    return None if run is None else (run, layout)

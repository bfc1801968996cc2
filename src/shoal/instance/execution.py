"""Running one batch: join, run, split, count, answer.

Every request handed in is answered exactly once, whatever happens. When a batch of several fails,
its requests run again one by one, so that only the one that caused it fails; not when the model's
process has ended, because that would end it again.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from shoal.backends.base import (
    ArrayForm,
    BoundRun,
    DeviceExecutor,
    Executor,
    PhotoExecutor,
    RequestExecutor,
    RowsRefused,
)
from shoal.core.named_frame import named_frame
from shoal.core.photos import PHOTO, PHOTOS, UNREADABLE, frames_of, labels_layout
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.request import DONE, Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import BackendFailure, Internal, ProcessEnded, ShoalError
from shoal.instance import on_device
from shoal.instance.own_time import SHORT_NS, own_ns, thread_cpu_ns
from shoal.instance.pending_request import InstancePendingRequest
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.batch import (
    PlannedOutputs,
    first_rows,
    group_by_template,
    join,
    join_mixed,
    join_planned,
    joined_contents,
    rows_at,
    shared_template,
    split,
    split_at,
    wanted_outputs,
    whole_outputs,
)
from shoal.scheduler.sequence_state import keep_outputs
from shoal.scheduler.sequence_turn import is_filler, one_by_one
from shoal.statistics.model import CountedRequest, ModelStatistics, Moments

logger = logging.getLogger(__name__)

_MOST_TEMPLATES = 64  # whose outputs are cached
_MOST_BOUND_REQUESTS = 64  # in a batch: for larger ones it saves little
_FEW_REQUESTS = 4  # more have a limit for all models together, because there are many sizes
_MOST_BOUND_BATCHES = 1024  # of more than a few requests, about 15 KB each
_MOST_BOUND_BYTES = 16 * 1024  # of inputs: larger ones take longer to copy than it saves

# The groups of a batch, each with its responses as a whole or with the outputs of each request.
_GroupResponses: TypeAlias = list[tuple[Sequence[Request], list[list[Tensor]] | PlannedResponses]]
_Computed: TypeAlias = tuple[_GroupResponses, Moments, int]  # with the model's own nanoseconds

_bound_batches: weakref.WeakSet[BoundRun] = weakref.WeakSet()  # of more than a few requests

# Rows of a batch, the nanoseconds that the model computed, and the same by the clock.
ComputeTime: TypeAlias = tuple[int, int, int]


class ExecutionAbandoned(BaseException):
    """Ends a thread whose execution took too long, once it returns: another one has answered.

    `on_return`, if any, is to be called at the end of that thread.
    """

    def __init__(self, on_return: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.on_return = on_return


class Execution:
    """What an instance needs to know of its model in order to run a batch."""

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = ("__dict__", "_bound", "_bound_run_was_long", "_last_bound", "_statistics")

    def __init__(
        self,
        signature: Signature,
        version: int,
        statistics: ModelStatistics,
        *,
        decoupled: bool = False,
        assembly: Assembly | None = None,
        takes_device_tensors: bool = False,
    ) -> None:
        """`decoupled` models may respond after `execute` has returned, any number of times.

        `assembly` joins and splits batches that are not plain rows. Executors of a model that
        `takes_device_tensors` may be DeviceExecutors.
        """
        self._decoupled = decoupled
        self._signature = signature
        self._version = version
        self._statistics = statistics
        self._assembly = assembly
        self._planned_outputs: dict[RequestTemplate, PlannedOutputs] = {}
        self._label_layouts: dict[int, ResponseLayout] = {}  # of photos, by the number of labels
        # By executor, template and number of requests; None where an executor cannot bind it.
        self._bound: dict[
            tuple[Executor | RequestExecutor, RequestTemplate | None, int],
            tuple[BoundRun, ResponseLayout] | None,
        ] = {}
        # The last one that ran: template, executor, number of requests, and what is bound.
        self._last_bound: (
            tuple[RequestTemplate, Executor | RequestExecutor, int, BoundRun, ResponseLayout] | None
        ) = None
        self._bound_run_was_long = False
        # Padding, ragged batches and states are made on the CPU.
        self._plain = assembly is None and not signature.state_outputs
        self._on_device = takes_device_tensors and self._plain
        # If native code crashes, the traceback has a line with the model's name.
        running = f"model '{signature.model_name}' version {version} was running"
        self.run = named_frame(Execution.run, running).__get__(self)  # type: ignore[method-assign]
        self.run_one_by_one = named_frame(Execution.run_one_by_one, running).__get__(self)  # type: ignore[method-assign]
        self.run_block = named_frame(Execution.run_block, running).__get__(self)  # type: ignore[method-assign]
        self.run_several = named_frame(Execution.run_several, running).__get__(self)  # type: ignore[method-assign]

    def run(self, executor: Executor | RequestExecutor, batch: Sequence[Request]) -> ComputeTime:
        """Execute `batch` and answer every request in it; returns what computing took.

        Never raises, except for ExecutionAbandoned. There is a copy for each model: it is short, so
        that the code of many models does not fill the processor's caches.
        """
        return self._run(executor, batch)

    def _run(self, executor: Executor | RequestExecutor, batch: Sequence[Request]) -> ComputeTime:
        start_ns = time.monotonic_ns()
        if self._bound:
            took = self._run_bound(executor, batch, start_ns)
            if took is not None:
                return took
        if isinstance(executor, RequestExecutor):
            return self._run_requests(executor, batch, start_ns)
        try:
            responses, moments, model_ns = self._compute(executor, batch, start_ns)
        except ExecutionAbandoned:
            raise
        except BaseException as failure:  # noqa: BLE001 - a model's sys.exit() is an error, too
            pending = _without_fillers(batch)
            if isinstance(failure, RowsRefused) and self._plain and len(pending) == len(batch) > 1:
                self._run_without(failure.rows, executor, batch, start_ns)
            elif len(pending) > 1 and not isinstance(failure, ProcessEnded):
                for alone in one_by_one(batch):
                    self.run(executor, alone)
            else:
                self._fail(pending, start_ns, failure)
            elapsed_ns = time.monotonic_ns() - start_ns
            return sum(request.rows for request in batch), elapsed_ns, elapsed_ns
        rows = sum([request.rows for request in batch])
        served = _without_fillers(batch)
        if len(responses) == 1 and isinstance(responses[0][1], PlannedResponses):
            self._statistics.executed(served, rows, moments)
        else:
            self._statistics.executed(_counted(served), rows, moments)
        name = self._signature.model_name
        for requests, response in responses:
            if isinstance(response, PlannedResponses):
                for request in requests:
                    request.state = DONE
                    request.moments = moments
                planned = cast("Sequence[PlannedRequest]", requests)
                template = planned[0].template
                assert template is not None
                template.replies.send_all(response, planned)
            else:
                for request, outputs in zip(requests, response, strict=True):
                    request.state = DONE
                    request.moments = moments
                    request.reply.send(Response(name, self._version, request.id, outputs))
        return rows, model_ns, moments.output_start_ns - moments.input_end_ns

    def _run_without(
        self,
        rows: Mapping[int, ShoalError],
        executor: Executor,
        batch: Sequence[Request],
        start_ns: int,
    ) -> None:
        """Fail the requests that have one of `rows`, and run the others."""
        valid: list[Request] = []
        first = 0
        for request in batch:
            numbers = range(first, first + request.rows)
            first = numbers.stop
            error = next((rows[number] for number in numbers if number in rows), None)
            if error is None:
                valid.append(request)
            else:
                self._fail([request], start_ns, error)
        for requests in [valid] if len(valid) < len(batch) else one_by_one(batch):
            if requests:
                self.run(executor, requests)

    def _run_bound(
        self, executor: Executor | RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime | None:
        """As `run`, from bytes to bytes; None, with nothing done, where nothing is bound for such a
        batch, or where it fails."""
        count = len(batch)
        if count > _MOST_BOUND_REQUESTS:
            return None
        template = shared_template(batch)
        last = self._last_bound
        if last is not None and last[0] is template and last[1] is executor and last[2] == count:
            _, _, _, run, layout = last
        else:
            bound = self._bound.get((executor, template, count))
            if template is None or bound is None:
                return None
            run, layout = bound
            self._last_bound = (template, executor, count, run, layout)
        requests: Sequence[PlannedRequest] = batch  # type: ignore[assignment]
        contents = joined_contents(requests)
        # Reading the CPU time is a tenth of such a run. After a long one, the next is measured.
        reads_cpu_time = self._bound_run_was_long
        cpu_ns = thread_cpu_ns() if reads_cpu_time else 0
        input_end_ns = time.monotonic_ns()
        try:
            results = run(contents)
        except Exception:  # noqa: BLE001 - what happens without it counts
            self._last_bound = None
            return None
        end_ns = time.monotonic_ns()
        elapsed_ns = end_ns - input_end_ns
        self._bound_run_was_long = elapsed_ns > SHORT_NS
        model_ns = own_ns(elapsed_ns, cpu_ns) if reads_cpu_time else min(elapsed_ns, SHORT_NS)
        moments = Moments(start_ns, input_end_ns, end_ns, end_ns)
        rows = template.rows * len(requests)
        self._statistics.executed(requests, rows, moments)
        for request in requests:
            request.state = DONE
            request.moments = moments
        template.replies.send_all(PlannedResponses(layout, results), requests)
        return rows, model_ns, elapsed_ns

    def run_one_by_one(
        self, executor: Executor | RequestExecutor, requests: Sequence[Request]
    ) -> tuple[int, ComputeTime]:
        """Execute the first of `requests`, each alone, and answer them as `run` does; returns how
        many, at least one, and the times of the longest execution."""
        return self._run_one_by_one(executor, requests)

    def _run_one_by_one(
        self, executor: Executor | RequestExecutor, requests: Sequence[Request]
    ) -> tuple[int, ComputeTime]:
        template = shared_template(requests)
        bound = self._bound.get((executor, template, 1))
        # A long execution ends a series: each of them is to be judged by its own CPU time.
        if template is None or bound is None or self._bound_run_was_long:
            return 1, self.run(executor, requests[:1])
        run, layout = bound
        results: list[Sequence[bytes]] = []
        all_moments: list[tuple[int, int, int, int]] = []
        longest_ns = 0
        end_ns = time.monotonic_ns()
        planned = cast("Sequence[PlannedRequest]", requests)
        for request in planned:
            start_ns = end_ns
            message = request.message
            contents = [message[place] for place in request.places]
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
                self._bound_run_was_long = True
                break
        count = len(results)
        if not count:
            return 1, self.run(executor, requests[:1])
        answered = planned[:count]
        self._statistics.executed_one_by_one(answered, all_moments)
        columns = [b"".join(column) for column in zip(*results, strict=True)]
        template.replies.send_all(PlannedResponses(layout, columns), answered)
        return count, (template.rows, min(longest_ns, SHORT_NS), longest_ns)

    def run_block(
        self,
        executor: Executor,
        template: RequestTemplate,
        columns: Sequence[Buffer],
        started: list[int],
        queued_ns: int,
    ) -> tuple[PlannedResponses, ComputeTime] | None:
        """Execute requests of one template for which there are no objects: `columns` are the bytes
        of each input, those of all requests, which began at `started`, in rising order.

        None, with nothing counted, where they have to be executed as a batch of requests: before
        the first such batch, where outputs are not small and plain, or where this fails.
        """
        count = len(started)
        outputs = self._planned_outputs.get(template)
        if outputs is None or not self._plain or outputs.last_form(count) is None:
            return None
        start_ns = time.monotonic_ns()
        inputs = {
            name: np.ndarray((count * one[0], *one[1:]), datatype.numpy, column)
            for (name, datatype, one), column in zip(template.inputs, columns, strict=True)
        }
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        try:
            arrays = executor.run(inputs, outputs.names)
            output_start_ns = time.monotonic_ns()
            responses = outputs.split(count, arrays)
        except Exception:  # noqa: BLE001 - each request gets its own error then
            return None
        if responses is None:
            return None
        elapsed_ns = output_start_ns - input_end_ns
        model_ns = own_ns(elapsed_ns, cpu_ns, executor.blocked_ns)
        rows = template.rows * count
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        self._statistics.executed_block(started, queued_ns, template.rows, rows, moments)
        return responses, (rows, model_ns, elapsed_ns)

    def _compute(self, executor: Executor, batch: Sequence[Request], start_ns: int) -> _Computed:
        if batch[0].batch_key is PHOTOS:
            return self._compute_photos(executor, batch, start_ns)
        if self._plain:
            template = shared_template(batch)
            if template is not None:
                return self._compute_planned(
                    executor, cast("Sequence[PlannedRequest]", batch), template, start_ns
                )
            groups = group_by_template(batch)
            if len(groups) > 1:
                return self._compute_mixed(executor, batch, groups, start_ns)
            if self._on_device and isinstance(executor, DeviceExecutor):
                return self._compute_on_device(executor, batch, start_ns)
        names = wanted_outputs(batch, self._signature)
        assembly = self._assembly
        inputs = join(batch, executor.input_memory) if assembly is None else assembly.join(batch)
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        arrays = executor.run(inputs, names)
        output_start_ns = time.monotonic_ns()
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns, executor.blocked_ns)
        if assembly is None:
            responses = split(batch, names, arrays, self._signature)
        else:
            responses = assembly.split(batch, names, arrays)
        if self._signature.state_outputs:
            self._keep_states(batch, dict(zip(names, arrays, strict=True)))
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        return [(batch, responses)], moments, model_ns

    def _compute_planned(
        self,
        executor: Executor,
        batch: Sequence[PlannedRequest],
        template: RequestTemplate,
        start_ns: int,
    ) -> _Computed:
        """The same for requests made from one template: what holds for one holds for all."""
        outputs = self._planned_outputs.get(template) or self._outputs_of(template)
        names = outputs.names
        inputs = join_planned(batch, template, executor.input_memory)
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        arrays = executor.run(inputs, names)
        output_start_ns = time.monotonic_ns()
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns, executor.blocked_ns)
        response: list[list[Tensor]] | PlannedResponses | None = outputs.split(len(batch), arrays)
        if response is None:
            response = split(batch, names, arrays, self._signature)
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        if len(batch) <= _MOST_BOUND_REQUESTS:
            key = executor, template, len(batch)
            if key not in self._bound:
                self._bound[key] = _bind(
                    executor, inputs, outputs.last_form(len(batch)), few=len(batch) <= _FEW_REQUESTS
                )
            elif self._bound[key] is not None:  # a bound run has failed, and only that
                self._bound[key] = None
        return [(batch, response)], moments, model_ns

    def _compute_mixed(
        self,
        executor: Executor,
        batch: Sequence[Request],
        groups: Mapping[RequestTemplate | None, Sequence[int]],
        start_ns: int,
    ) -> _Computed:
        """The same for planned and full requests: those of each template become a group.

        Planned requests have no tensors on a device and want none, so this is not for devices.
        """
        names = wanted_outputs(batch, self._signature)
        inputs = join_mixed(batch, groups, executor.input_memory)
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        arrays = executor.run(inputs, names)
        output_start_ns = time.monotonic_ns()
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns, executor.blocked_ns)
        starts = first_rows(batch)
        total = starts[-1] + batch[-1].rows
        whole = whole_outputs(names, arrays, self._signature, total)
        responses: _GroupResponses = []
        for template, positions in groups.items():
            requests = [batch[position] for position in positions]
            own = [starts[position] for position in positions]
            response: list[list[Tensor]] | PlannedResponses | None = None
            if template is not None:
                outputs = self._planned_outputs.get(template) or self._outputs_of(template)
                index = rows_at(own, template.rows)
                response = outputs.split(
                    len(own), [whole[name].array[index] for name in outputs.names]
                )
            if response is None:
                response = split_at(own, requests, whole, self._signature)
            responses.append((requests, response))
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        return responses, moments, model_ns

    def _compute_photos(
        self, executor: Executor, batch: Sequence[Request], start_ns: int
    ) -> _Computed:
        """Have an instance decode and classify photos. One that cannot, such as a new one on the
        CPU, leaves them to those who have sent them."""
        planned = cast("Sequence[PlannedRequest]", batch)
        photos = [request.message[PHOTO] for request in planned]
        frames = frames_of(planned)
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        if isinstance(executor, PhotoExecutor):
            indexes, scores = executor.classify(photos, frames)
        else:
            indexes = np.full((len(batch), 1), UNREADABLE, np.int32)
            scores = np.zeros((len(batch), 1), np.float32)
        output_start_ns = time.monotonic_ns()
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns)
        labels = indexes.shape[1]
        layout = self._label_layouts.get(labels)
        if layout is None:
            name = self._signature.model_name
            layout = self._label_layouts[labels] = labels_layout(name, self._version, labels)
        responses = PlannedResponses(layout, [indexes.tobytes(), scores.tobytes()])
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        return [(batch, responses)], moments, model_ns

    def _outputs_of(self, template: RequestTemplate) -> PlannedOutputs:
        # Threads of several instances may do this at once; losing an entry costs time only.
        outputs = PlannedOutputs(template, self._signature, self._version)
        self._planned_outputs[template] = outputs
        for oldest in list(self._planned_outputs)[:-_MOST_TEMPLATES]:
            self._planned_outputs.pop(oldest, None)
            self._bound = {}  # all at once: this is rare
            self._last_bound = None
        return outputs

    def close(self, executor: Executor | RequestExecutor) -> None:
        """Close an executor, which has no batch, and what was bound to it."""
        self._bound = {key: bound for key, bound in self._bound.items() if key[0] is not executor}
        self._last_bound = None
        executor.close()

    def _compute_on_device(
        self,
        executor: DeviceExecutor,
        batch: Sequence[Request],
        start_ns: int,
    ) -> _Computed:
        names = wanted_outputs(batch, self._signature)
        inputs = on_device.join(batch)
        cpu_ns = thread_cpu_ns()
        input_end_ns = time.monotonic_ns()
        results = executor.run_on_device(inputs, names, on_device.kept(batch))
        output_start_ns = time.monotonic_ns()
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns, executor.blocked_ns)
        responses = on_device.split(batch, names, results, self._signature)
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        return [(batch, responses)], moments, model_ns

    def _keep_states(self, batch: Sequence[Request], arrays: Mapping[str, np.ndarray]) -> None:
        """Store the states for the next requests of this batch's sequences."""
        signature = self._signature
        keep_outputs(
            [request.turn.states for request in batch],
            {name: arrays[name] for name in signature.state_outputs},
            model_name=signature.model_name,
            batches=signature.max_batch_size > 0,
        )

    def run_several(self, executor: RequestExecutor, batches: Sequence[Sequence[Request]]) -> None:
        """Execute batches one after the other and answer every request in them; raises as `run`."""
        start_ns = time.monotonic_ns()
        later = executor.answers_later
        pending = [self._pending(batch, start_ns, later) for batch in batches]
        failure: ShoalError | None = None
        took_ns: Sequence[int] = ()
        try:
            took_ns = executor.execute_several(pending)
        except ExecutionAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - as above
            failure = self._as_error(raised)
        if failure is not None or len(took_ns) != len(batches):
            took_ns = [(time.monotonic_ns() - start_ns) // len(batches)] * len(batches)
        for own, batch, ns in zip(pending, batches, took_ns, strict=True):
            moments = Moments(start_ns, start_ns, start_ns + ns, start_ns + ns)
            self._settle(own, batch, moments, failure, later)
            start_ns += ns

    def _run_requests(
        self, executor: RequestExecutor, batch: Sequence[Request], start_ns: int
    ) -> ComputeTime:
        """Have the executor answer the requests."""
        cpu_ns = thread_cpu_ns()
        later = executor.answers_later
        pending = self._pending(batch, start_ns, later)
        failure: ShoalError | None = None
        try:
            executor.execute(pending)
        except ExecutionAbandoned:
            raise
        except BaseException as raised:  # noqa: BLE001 - as above
            failure = self._as_error(raised, [one.request for one in pending if not one.closed])
        end_ns = time.monotonic_ns()
        model_ns = own_ns(end_ns - start_ns, cpu_ns)
        self._settle(pending, batch, Moments(start_ns, start_ns, end_ns, end_ns), failure, later)
        return sum([request.rows for request in batch]), model_ns, end_ns - start_ns

    def _pending(
        self, batch: Sequence[Request], start_ns: int, later: bool
    ) -> list[InstancePendingRequest]:
        begun = Moments(start_ns, start_ns, 0, 0)  # a response may come before the end is known
        for request in batch:
            request.moments = begun
        name = self._signature.model_name
        return [
            InstancePendingRequest(
                request, name, self._version, self._statistics, counts_itself=later
            )
            for request in batch
        ]

    def _settle(
        self,
        pending: Sequence[InstancePendingRequest],
        batch: Sequence[Request],
        moments: Moments,
        failure: ShoalError | None,
        later: bool,
    ) -> None:
        """Count an execution, unless that happens `later`, and answer the rest."""
        if not later:
            for request in batch:
                request.moments = moments
            self._count(pending, moments, failure)
        self._answer_rest(pending, failure)

    def _count(
        self,
        pending: Sequence[InstancePendingRequest],
        moments: Moments,
        failure: ShoalError | None,
    ) -> None:
        """Count an execution of requests that were answered, or will be."""
        done = [t for t in pending if not t.failed and not t.rescheduled]
        if failure is not None:
            done = [t for t in done if t.closed]
        served = [t.request for t in done if not is_filler(t.request)]
        rows = sum([t.request.rows for t in pending])
        self._statistics.executed(served, rows, moments, answered_before=True)

    def _answer_rest(
        self, pending: Sequence[InstancePendingRequest], failure: ShoalError | None
    ) -> None:
        name = self._signature.model_name
        for one in pending:
            if one.closed or one.deferred:
                continue
            if failure is not None or not self._decoupled:
                error = failure or Internal(f"model '{name}' did not answer the request")
                with contextlib.suppress(Internal):  # it was answered this very moment
                    one.send(error=error)

    def give_up(
        self,
        batch: Sequence[Request],
        pending: Sequence[InstancePendingRequest],
        start_ns: int,
        error: ShoalError,
        *,
        later: bool = False,
    ) -> None:
        """Answer what is left of a batch whose execution took too long, and count it.

        `pending` are its requests where the executor answers them itself; with `later` they count
        themselves. The moments of requests stay as they are: when it ends is not known.
        """
        now_ns = time.monotonic_ns()
        moments = Moments(start_ns, start_ns, now_ns, now_ns)
        if pending:
            self._answer_rest(pending, error)
            if not later:
                self._count(pending, moments, error)
            return
        rest = [request for request in _without_fillers(batch) if request.state is not DONE]
        self._statistics.batch_failed(rest, sum(request.rows for request in rest), moments)
        for request in rest:
            request.state = DONE
            request.fail(error, self._version)

    def _fail(self, batch: Sequence[Request], start_ns: int, failure: BaseException) -> None:
        end_ns = time.monotonic_ns()
        moments = Moments(start_ns, start_ns, end_ns, end_ns)
        self._statistics.batch_failed(batch, sum(request.rows for request in batch), moments)
        error = self._as_error(failure, batch)
        for request in batch:
            request.state = DONE
            request.moments = moments
            request.fail(error, self._version)

    def _as_error(self, failure: BaseException, requests: Sequence[Request] = ()) -> ShoalError:
        """The error that answers an exception; its traceback goes to the log, with the ids of
        `requests`."""
        ids = ", ".join([request.id for request in requests if request.id])
        shown = f" (request id: {ids})" if ids else ""
        name, version = self._signature.model_name, self._version
        if isinstance(failure, ShoalError):
            if ids and isinstance(failure, BackendFailure):  # its traceback was logged, if any
                logger.error("model '%s' version %d failed%s: %s", name, version, shown, failure)
            return failure
        logger.error(
            "model '%s' version %d failed%s: %s", name, version, shown, failure, exc_info=failure
        )
        return BackendFailure(f"{type(failure).__name__}: {failure}")


def _bind(
    executor: Executor,
    inputs: Mapping[str, np.ndarray],
    form: tuple[ResponseLayout, Sequence[tuple[str, tuple[int, ...], np.dtype]]] | None,
    *,
    few: bool,
) -> tuple[BoundRun, ResponseLayout] | None:
    """Bind batches with such inputs and outputs, of `few` requests or more, if that is possible."""
    if form is None or sum([array.nbytes for array in inputs.values()]) > _MOST_BOUND_BYTES:
        return None
    if not few and len(_bound_batches) >= _MOST_BOUND_BATCHES:
        return None
    layout, outputs = form
    try:
        run = executor.bind(
            [ArrayForm(name, array.shape, array.dtype) for name, array in inputs.items()],
            [ArrayForm(*output) for output in outputs],
        )
    except Exception:
        logger.exception("binding the inputs and outputs of a batch failed")
        return None
    if run is None:
        return None
    if not few:
        _bound_batches.add(run)
    return run, layout


class _Member(NamedTuple):
    """One of the requests that a request of an ensemble stands for, as statistics count it."""

    start_ns: int
    queued_ns: int
    rows: int


def _counted(batch: Sequence[Request]) -> Sequence[CountedRequest]:
    """The requests as statistics count them: each as often as it has members."""
    if all([request.members == 1 for request in batch]):  # noqa: C419 - faster
        return batch
    counted: list[CountedRequest] = []
    for request in batch:
        count = request.members
        rows = request.rows // count
        counted += [_Member(request.start_ns, request.queued_ns, rows)] * count
    return counted


def _without_fillers(batch: Sequence[Request]) -> Sequence[Request]:
    """The requests that a client waits for."""
    if batch[0].turn is None:  # all of a batch are of sequences, or none
        return batch
    return [request for request in batch if not is_filler(request)]

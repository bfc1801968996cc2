"""Computing one batch: join its inputs, run the executor, split its outputs.

How inputs are joined depends on what the batch consists of:

    requests of one template        their bytes, as they were received
    of templates and full requests  the bytes of both; responses in a group per template
    full requests                   their tensors, on the CPU or where the executor takes them
    padded, ragged or with states   what the model's assembly makes of them
    photos                          none: the executor decodes them
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from shoal.backends.base import DeviceExecutor, Executor, PhotoExecutor
from shoal.core.photos import PHOTO, PHOTOS, UNREADABLE, frames_of, labels_layout
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate, ResponseLayout
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer, Tensor
from shoal.instance import on_device
from shoal.instance.bound_runs import BoundRuns
from shoal.instance.own_time import own_ns, thread_cpu_ns
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.batch import (
    PlannedOutputs,
    first_rows,
    group_by_template,
    join,
    join_mixed,
    join_planned,
    rows_at,
    shared_template,
    split,
    split_at,
    wanted_outputs,
    whole_outputs,
)
from shoal.scheduler.sequence_state import keep_outputs
from shoal.statistics.model import Moments

_MOST_TEMPLATES = 64  # whose outputs are cached

# The groups of a batch, each with its responses as a whole or with the outputs of each request.
GroupResponses: TypeAlias = list[tuple[Sequence[Request], list[list[Tensor]] | PlannedResponses]]
Computed: TypeAlias = tuple[GroupResponses, Moments, int]  # with the model's own nanoseconds


class BatchComputation:
    """Computes the batches of one model version, in any of its executors.

    It raises what the executor raises; requests are answered by the caller.
    """

    def __init__(
        self,
        signature: Signature,
        version: int,
        bound_runs: BoundRuns,
        *,
        assembly: Assembly | None = None,
        takes_device_tensors: bool = False,
    ) -> None:
        """`assembly` joins and splits batches that are not plain rows. Executors of a model that
        `takes_device_tensors` may be DeviceExecutors. Small batches are bound to `bound_runs`."""
        self._signature = signature
        self._version = version
        self._bound_runs = bound_runs
        self._assembly = assembly
        self._planned_outputs: dict[RequestTemplate, PlannedOutputs] = {}
        self._label_layouts: dict[int, ResponseLayout] = {}  # of photos, by the number of labels
        # Padding, ragged batches and states are made on the CPU.
        self.joins_plain_rows = assembly is None and not signature.state_outputs
        self._on_device = takes_device_tensors and self.joins_plain_rows

    def compute(self, executor: Executor, batch: Sequence[Request], start_ns: int) -> Computed:
        """The responses of a batch whose execution began at `start_ns`."""
        if batch[0].batch_key is PHOTOS:
            return self._compute_photos(executor, batch, start_ns)
        if self.joins_plain_rows:
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
    ) -> Computed:
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
        self._bound_runs.bind(executor, template, len(batch), inputs, outputs)
        return [(batch, response)], moments, model_ns

    def compute_block(
        self, executor: Executor, template: RequestTemplate, columns: Sequence[Buffer], count: int
    ) -> tuple[PlannedResponses, Moments, int] | None:
        """The same for `count` requests for which there are no objects: `columns` are the bytes of
        each input.

        None where they have to be computed as a batch of requests: before the first such batch,
        where outputs are not small and plain, or where this fails.
        """
        outputs = self._planned_outputs.get(template)
        if outputs is None or not self.joins_plain_rows or not outputs.are_small(count):
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
        model_ns = own_ns(output_start_ns - input_end_ns, cpu_ns, executor.blocked_ns)
        moments = Moments(start_ns, input_end_ns, output_start_ns, time.monotonic_ns())
        return responses, moments, model_ns

    def _compute_mixed(
        self,
        executor: Executor,
        batch: Sequence[Request],
        groups: Mapping[RequestTemplate | None, Sequence[int]],
        start_ns: int,
    ) -> Computed:
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
        responses: GroupResponses = []
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

    def _compute_on_device(
        self, executor: DeviceExecutor, batch: Sequence[Request], start_ns: int
    ) -> Computed:
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

    def _compute_photos(
        self, executor: Executor, batch: Sequence[Request], start_ns: int
    ) -> Computed:
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
            self._bound_runs.forget_all()  # all at once: this is rare
        return outputs

    def _keep_states(self, batch: Sequence[Request], arrays: Mapping[str, np.ndarray]) -> None:
        """Store the states for the next requests of this batch's sequences."""
        signature = self._signature
        keep_outputs(
            [request.turn.states for request in batch],
            {name: arrays[name] for name in signature.state_outputs},
            model_name=signature.model_name,
            batches=signature.max_batch_size > 0,
        )

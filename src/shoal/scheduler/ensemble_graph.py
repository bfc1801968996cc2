"""An ensemble's graph: which tensor feeds which step, checked against the models it is made of.

    config + signature of each model --build--> EnsembleGraph --plan(outputs)--> ExecutionPlan

Pure functions: no clock, no lock, no loaded model. What the config alone shows (cycles, tensors
without a writer or reader) `shoal.config.rules.ensemble` has checked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shoal.config.model import ModelConfig, ModelTransactionPolicy
from shoal.config.rules.fault import Fault
from shoal.config.suggest import near_match
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.core.signature import Signature, TensorSpec
from shoal.core.validate import format_dims
from shoal.errors import ConfigError

SINK = -1  # the consumer that stands for the ensemble's own outputs
_STEPS = "ensemble_scheduling.step"
_MOST_PLANS = 64  # cached at once; a client may request outputs in any order


@dataclass(frozen=True, slots=True)
class ComposingModel:
    """What an ensemble needs to know of one of its models."""

    name: str
    version: int  # as the step pins it; -1: the newest
    signature: Signature
    decoupled: bool = False
    takes_device_tensors: bool = False  # those that another step left on a device
    limits_latency: bool = False  # whether it may refuse requests because of a target latency

    @property
    def batched(self) -> bool:
        """Whether its tensors have a batch dimension in front."""
        return self.signature.max_batch_size > 0


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model with its tensors, each with the name it has in the ensemble."""

    index: int
    model: ComposingModel
    inputs: Mapping[str, str]  # the model's input -> the ensemble's tensor
    outputs: Mapping[str, str]  # the model's output -> the ensemble's tensor


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The part of a graph that the requested outputs need, without steps that feed only others."""

    outputs: tuple[str, ...]  # the ensemble's outputs, in the order they were requested
    # Who takes a tensor: step numbers, and SINK where it is a requested output.
    consumers: Mapping[str, tuple[int, ...]]
    wanted: Mapping[int, tuple[str, ...]]  # consumer -> the tensors it takes, each once
    step_outputs: Mapping[int, tuple[str, ...]]  # step -> the outputs to ask its model for
    # EnsembleStep -> those of its outputs that only steps read which can take them on a device.
    device_outputs: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class EnsembleGraph:
    """An ensemble that fits the models it is made of."""

    name: str
    file: str  # where errors point
    steps: tuple[EnsembleStep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    producers: Mapping[str, int]  # tensor -> the step that writes it
    decoupled: bool  # whether a request may have any number of responses
    max_inflight: int = 0  # for each step; 0: no limit
    _plans: dict[tuple[str, ...], ExecutionPlan] = field(
        default_factory=dict, compare=False, repr=False
    )

    def plan(self, requested: tuple[str, ...]) -> ExecutionPlan:
        """What to run for the requested outputs; none named means all of them."""
        plan = self._plans.get(requested)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[requested] = _plan(self, requested or self.outputs)
        return plan


def _plan(graph: EnsembleGraph, outputs: tuple[str, ...]) -> ExecutionPlan:
    needed: set[str] = set()
    running: set[int] = set()
    waiting = list(outputs)
    while waiting:
        tensor = waiting.pop()
        if tensor in needed:
            continue
        needed.add(tensor)
        producer = graph.producers.get(tensor)
        if producer is not None and producer not in running:
            running.add(producer)
            waiting.extend(graph.steps[producer].inputs.values())
    wanted = {
        step.index: tuple(dict.fromkeys(step.inputs.values()))
        for step in graph.steps
        if step.index in running
    }
    wanted[SINK] = tuple(dict.fromkeys(outputs))
    consumers: dict[str, tuple[int, ...]] = {}
    for consumer, tensors in wanted.items():
        for tensor in tensors:
            consumers[tensor] = (*consumers.get(tensor, ()), consumer)
    return ExecutionPlan(
        outputs=wanted[SINK],
        consumers=consumers,
        wanted=wanted,
        step_outputs={
            index: tuple(own for own, name in graph.steps[index].outputs.items() if name in needed)
            for index in running
        },
        device_outputs=_device_outputs(graph, running, consumers),
    )


def _device_outputs(
    graph: EnsembleGraph, running: set[int], consumers: Mapping[str, tuple[int, ...]]
) -> dict[int, frozenset[str]]:
    able = {step.index for step in graph.steps if step.model.takes_device_tensors}
    found = {
        index: frozenset(
            own
            for own, name in graph.steps[index].outputs.items()
            if consumers.get(name) and able.issuperset(consumers[name])
        )
        for index in running & able
    }
    return {index: outputs for index, outputs in found.items() if outputs}


# ---- from a config to a graph


def build(config: ModelConfig, models: Sequence[ComposingModel], *, file: str) -> EnsembleGraph:
    """The graph of an ensemble whose steps run `models`, one for each step in order.

    `config` has passed the rules for configs. Raises ConfigError, which names the field and what
    to write, when a step and its model do not fit, or two steps do not.
    """
    scheduling = config.ensemble_scheduling
    assert scheduling is not None
    steps = tuple(
        EnsembleStep(index, model, dict(step.input_map), dict(step.output_map))
        for index, (step, model) in enumerate(zip(scheduling.step, models, strict=True))
    )
    for fault in _faults(config, steps):
        raise ConfigError(fault.message, file=file, field=fault.field, fix=fault.fix)
    return EnsembleGraph(
        name=config.name,
        file=file,
        steps=steps,
        inputs=tuple(tensor.name for tensor in config.input),
        outputs=tuple(tensor.name for tensor in config.output),
        producers={name: step.index for step in steps for name in step.outputs.values()},
        decoupled=any(step.model.decoupled for step in steps),
        max_inflight=scheduling.max_inflight_requests,
    )


def with_transaction_policy(config: ModelConfig, graph: EnsembleGraph) -> ModelConfig:
    """The config with `decoupled` as in the graph: one decoupled step makes the ensemble so."""
    policy = config.model_transaction_policy or ModelTransactionPolicy()
    if policy.decoupled == graph.decoupled:
        return config
    return replace(config, model_transaction_policy=replace(policy, decoupled=graph.decoupled))


def with_labels(signature: Signature, graph: EnsembleGraph) -> Signature:
    """The ensemble's signature; outputs without labels of their own get those of their step."""

    def labels(output: TensorSpec) -> tuple[str, ...]:
        step = graph.steps[graph.producers[output.name]]
        own = next(own for own, name in step.outputs.items() if name == output.name)
        return step.model.signature.outputs[own].labels

    outputs = {
        name: output if output.labels else replace(output, labels=labels(output))
        for name, output in signature.outputs.items()
    }
    return replace(signature, outputs=outputs)


# ---- checks


class _DeclaredTensor(NamedTuple):
    """A tensor as one model declares it, without the batch dimension."""

    model: str
    datatype: DataType
    dims: tuple[int, ...]
    batched: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def _faults(config: ModelConfig, steps: Sequence[EnsembleStep]) -> Iterator[Fault]:
    for step in steps:
        yield from _batch_size(config, step)
        yield from _inputs(config, step)
        yield from _outputs(config, step)
    yield from _flows(config, steps)
    yield from _iterations(config, steps)


def _batch_size(config: ModelConfig, step: EnsembleStep) -> Iterator[Fault]:
    most = step.model.signature.max_batch_size
    if 0 < most < config.max_batch_size:
        yield Fault(
            "max_batch_size",
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
            f"contains model {step.model.name} which only allows maximum batch size to be {most}",
            f"Write max_batch_size: {most}, or raise it in the config of {step.model.name}",
        )


def _inputs(config: ModelConfig, step: EnsembleStep) -> Iterator[Fault]:
    at = f"{_STEPS}[{step.index}].input_map"
    known = step.model.signature.inputs
    for own, tensor in step.inputs.items():
        if own not in known:
            yield Fault(
                at,
                f"in ensemble {config.name}, ensemble tensor {tensor} is mapping to non-existing "
                f"input {own} in model {step.model.name}",
                _suggestion("input", own, known),
            )
    for own, spec in known.items():
        if own not in step.inputs and not spec.optional:
            yield Fault(
                at,
                f"in ensemble {config.name}, input {own} in model {step.model.name} is not mapped "
                "to any ensemble tensors",
                f'Write input_map: {{ key: "{own}" value: "…" }} with a tensor of the ensemble',
            )


def _outputs(config: ModelConfig, step: EnsembleStep) -> Iterator[Fault]:
    known = step.model.signature.outputs
    for own, tensor in step.outputs.items():
        if own not in known:
            yield Fault(
                f"{_STEPS}[{step.index}].output_map",
                f"in ensemble {config.name}, ensemble tensor {tensor} is mapped from non-existing "
                f"output {own} in model {step.model.name}",
                _suggestion("output", own, known),
            )


def _suggestion(kind: str, written: str, known: Mapping[str, TensorSpec]) -> str:
    close = near_match(written, list(known))
    if close is not None:
        return f'Did you mean key: "{close}"?'
    return f"Its {kind}s are: {', '.join(known)}"


def _flows(config: ModelConfig, steps: Sequence[EnsembleStep]) -> Iterator[Fault]:
    """Compares the writer of each tensor with its readers."""
    batched = config.max_batch_size > 0
    sources: dict[str, _DeclaredTensor] = {}
    for tensor in config.input:
        dims = tensor.reshape.shape if tensor.reshape is not None else tensor.dims
        datatype = dtypes.BY_CONFIG_NAME[tensor.data_type]
        sources[tensor.name] = _DeclaredTensor(config.name, datatype, tuple(dims), batched)
    for step in steps:
        for own, name in step.outputs.items():
            spec = step.model.signature.outputs.get(own)
            if spec is not None:
                sources[name] = _declared(step, spec)
    for step in steps:
        for own, name in step.inputs.items():
            spec = step.model.signature.inputs.get(own)
            if spec is not None and name in sources:
                at = f"{_STEPS}[{step.index}].input_map"
                yield from _mismatch(config, at, name, sources[name], _declared(step, spec))
    for index, output in enumerate(config.output):
        if output.name in sources:
            dims = output.reshape.shape if output.reshape is not None else output.dims
            datatype = dtypes.BY_CONFIG_NAME[output.data_type]
            own_view = _DeclaredTensor(config.name, datatype, tuple(dims), batched)
            yield from _mismatch(
                config, f"output[{index}]", output.name, sources[output.name], own_view
            )


def _declared(step: EnsembleStep, spec: TensorSpec) -> _DeclaredTensor:
    return _DeclaredTensor(step.model.name, spec.datatype, spec.dims, step.model.batched)


def _mismatch(
    config: ModelConfig, at: str, tensor: str, source: _DeclaredTensor, target: _DeclaredTensor
) -> Iterator[Fault]:
    start = f"in ensemble {config.name}, ensemble tensor {tensor}: "
    if source.datatype is not target.datatype:
        yield Fault(
            at,
            f"{start}inconsistent data type: {source.datatype.config_name} is inferred from model "
            f"{source.model} while {target.datatype.config_name} is inferred from model "
            f"{target.model}",
            "Put a step between them that converts it, or correct the data_type that is wrong",
        )
    elif not fits(source.dims, target.dims) and not fits(source.full, target.full):
        yield Fault(
            at,
            f"{start}inconsistent shape: {format_dims(source.full)} is inferred from model "
            f"{source.model} while {format_dims(target.full)} is inferred from model "
            f"{target.model}",
            "Put a step between them that changes the shape, or correct the dims that are wrong",
        )


def fits(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two shapes can be equal; -1 stands for any size."""
    return len(left) == len(right) and all(
        one == other or -1 in (one, other) for one, other in zip(left, right, strict=True)
    )


def _iterations(config: ModelConfig, steps: Sequence[EnsembleStep]) -> Iterator[Fault]:
    """All inputs of a step must arrive equally often.

    The ensemble's inputs arrive once; each response of a decoupled step starts an iteration of
    its own, which the steps after it share.
    """
    counts: dict[str, int] = {tensor.name: 0 for tensor in config.input}
    left = list(steps)
    while left:
        ready = [step for step in left if all(name in counts for name in step.inputs.values())]
        if not ready:
            return  # a cycle, which the rules for configs report
        for step in ready:
            left.remove(step)
            of_inputs = {counts[name] for name in step.inputs.values()}
            if len(of_inputs) > 1:
                yield _mixed(config, f"{_STEPS}[{step.index}].input_map", step.model.name)
                return
            count = step.index + 1 if step.model.decoupled else of_inputs.pop()
            counts.update(dict.fromkeys(step.outputs.values(), count))
    if len({counts[tensor.name] for tensor in config.output if tensor.name in counts}) > 1:
        yield _mixed(config, "output", config.name)


def _mixed(config: ModelConfig, at: str, model: str) -> Fault:
    return Fault(
        at,
        f"in ensemble {config.name}, step of model '{model}' receives inputs originated from "
        "different decoupled models",
        "Let the decoupled model pass on what is needed with each of its responses",
    )

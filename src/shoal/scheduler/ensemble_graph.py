"""An ensemble's graph: which tensor feeds which step, checked against the models it is made of.

    config + what each model takes and gives --build--> Graph --plan(outputs)--> Plan

Pure: no clock, no lock, no model that runs. What the config alone can tell (cycles, tensors that
nobody writes or reads) `shoal.config.rules.ensemble` has checked before.
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
_MOST_PLANS = 64  # kept at once; a client may ask for the outputs in any order


@dataclass(frozen=True, slots=True)
class Composing:
    """What an ensemble has to know of one of its models."""

    name: str
    version: int  # as the step pins it; -1: the newest
    signature: Signature
    decoupled: bool = False
    takes_device_tensors: bool = False  # those that another step left on a device

    @property
    def batched(self) -> bool:
        """Whether its tensors have a batch dimension in front."""
        return self.signature.max_batch_size > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One model with its tensors, each with the name it has in the ensemble."""

    index: int
    model: Composing
    inputs: Mapping[str, str]  # the model's input -> the ensemble's tensor
    outputs: Mapping[str, str]  # the model's output -> the ensemble's tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """The part of a graph that certain outputs need. Steps that only feed others are not in it."""

    outputs: tuple[str, ...]  # the ensemble's outputs, in the order they were asked for
    # Who takes a tensor: step numbers, and SINK where it is an output that was asked for.
    consumers: Mapping[str, tuple[int, ...]]
    wanted: Mapping[int, tuple[str, ...]]  # consumer -> the tensors it takes, each once
    step_outputs: Mapping[int, tuple[str, ...]]  # step -> the outputs to ask its model for
    # Step -> those of its outputs that only steps read which can take them on a device.
    device_outputs: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Graph:
    """An ensemble that fits the models it is made of."""

    name: str
    file: str  # where errors point
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    producers: Mapping[str, int]  # tensor -> the step that writes it
    decoupled: bool  # whether a request may have any number of responses
    max_inflight: int = 0  # for each step; 0: no limit
    _plans: dict[tuple[str, ...], Plan] = field(default_factory=dict, compare=False, repr=False)

    def plan(self, requested: tuple[str, ...]) -> Plan:
        """What to run for the outputs a request asks for; none named means all of them."""
        plan = self._plans.get(requested)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[requested] = _plan(self, requested or self.outputs)
        return plan


def _plan(graph: Graph, outputs: tuple[str, ...]) -> Plan:
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
    return Plan(
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
    graph: Graph, running: set[int], consumers: Mapping[str, tuple[int, ...]]
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


def build(config: ModelConfig, models: Sequence[Composing], *, file: str) -> Graph:
    """The graph of an ensemble whose steps run `models`, one for each step in order.

    `config` has passed the rules for configs. Raises ConfigError, which names the field and what
    to write, when a step and its model do not fit, or two steps do not.
    """
    scheduling = config.ensemble_scheduling
    assert scheduling is not None
    steps = tuple(
        Step(index, model, dict(step.input_map), dict(step.output_map))
        for index, (step, model) in enumerate(zip(scheduling.step, models, strict=True))
    )
    for fault in _faults(config, steps):
        raise ConfigError(fault.message, file=file, field=fault.field, fix=fault.fix)
    return Graph(
        name=config.name,
        file=file,
        steps=steps,
        inputs=tuple(tensor.name for tensor in config.input),
        outputs=tuple(tensor.name for tensor in config.output),
        producers={name: step.index for step in steps for name in step.outputs.values()},
        decoupled=any(step.model.decoupled for step in steps),
        max_inflight=scheduling.max_inflight_requests,
    )


def with_transaction_policy(config: ModelConfig, graph: Graph) -> ModelConfig:
    """The config with `decoupled` as the graph has it: one decoupled step makes it so."""
    policy = config.model_transaction_policy or ModelTransactionPolicy()
    if policy.decoupled == graph.decoupled:
        return config
    return replace(config, model_transaction_policy=replace(policy, decoupled=graph.decoupled))


def with_labels(signature: Signature, graph: Graph) -> Signature:
    """The ensemble's signature; outputs without labels of their own have those of their step."""

    def labels(output: TensorSpec) -> tuple[str, ...]:
        step = graph.steps[graph.producers[output.name]]
        own = next(own for own, name in step.outputs.items() if name == output.name)
        return step.model.signature.outputs[own].labels

    outputs = {
        name: output if output.labels else replace(output, labels=labels(output))
        for name, output in signature.outputs.items()
    }
    return replace(signature, outputs=outputs)


# ---- what can be wrong


class _Seen(NamedTuple):
    """A tensor as one model declares it, the batch dimension aside."""

    model: str
    datatype: DataType
    dims: tuple[int, ...]
    batched: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def _faults(config: ModelConfig, steps: Sequence[Step]) -> Iterator[Fault]:
    for step in steps:
        yield from _batch_size(config, step)
        yield from _inputs(config, step)
        yield from _outputs(config, step)
    yield from _flows(config, steps)
    yield from _iterations(config, steps)


def _batch_size(config: ModelConfig, step: Step) -> Iterator[Fault]:
    most = step.model.signature.max_batch_size
    if 0 < most < config.max_batch_size:
        yield Fault(
            "max_batch_size",
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
            f"contains model {step.model.name} which only allows maximum batch size to be {most}",
            f"Write max_batch_size: {most}, or raise it in the config of {step.model.name}",
        )


def _inputs(config: ModelConfig, step: Step) -> Iterator[Fault]:
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


def _outputs(config: ModelConfig, step: Step) -> Iterator[Fault]:
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


def _flows(config: ModelConfig, steps: Sequence[Step]) -> Iterator[Fault]:
    """Each tensor: what writes it against whatever reads it."""
    batched = config.max_batch_size > 0
    sources: dict[str, _Seen] = {}
    for tensor in config.input:
        dims = tensor.reshape.shape if tensor.reshape is not None else tensor.dims
        datatype = dtypes.BY_CONFIG_NAME[tensor.data_type]
        sources[tensor.name] = _Seen(config.name, datatype, tuple(dims), batched)
    for step in steps:
        for own, name in step.outputs.items():
            spec = step.model.signature.outputs.get(own)
            if spec is not None:
                sources[name] = _seen(step, spec)
    for step in steps:
        for own, name in step.inputs.items():
            spec = step.model.signature.inputs.get(own)
            if spec is not None and name in sources:
                at = f"{_STEPS}[{step.index}].input_map"
                yield from _mismatch(config, at, name, sources[name], _seen(step, spec))
    for index, output in enumerate(config.output):
        if output.name in sources:
            dims = output.reshape.shape if output.reshape is not None else output.dims
            datatype = dtypes.BY_CONFIG_NAME[output.data_type]
            own_view = _Seen(config.name, datatype, tuple(dims), batched)
            yield from _mismatch(
                config, f"output[{index}]", output.name, sources[output.name], own_view
            )


def _seen(step: Step, spec: TensorSpec) -> _Seen:
    return _Seen(step.model.name, spec.datatype, spec.dims, step.model.batched)


def _mismatch(
    config: ModelConfig, at: str, tensor: str, source: _Seen, target: _Seen
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
    """Whether two shapes can be the same; -1 stands for any size."""
    return len(left) == len(right) and all(
        one == other or -1 in (one, other) for one, other in zip(left, right, strict=True)
    )


def _iterations(config: ModelConfig, steps: Sequence[Step]) -> Iterator[Fault]:
    """Tensors that meet in a step must come equally often.

    What an ensemble is given comes once; each response of a decoupled step starts a count of its
    own, which the steps behind it share.
    """
    counts: dict[str, int] = {tensor.name: 0 for tensor in config.input}
    left = list(steps)
    while left:
        ready = [step for step in left if all(name in counts for name in step.inputs.values())]
        if not ready:
            return  # a cycle, which the rules for configs name better
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
        "Let the decoupled model hand on what is needed with each of its responses",
    )

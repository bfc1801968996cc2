"""Rules about ensembles: data flows from the inputs through every step to the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.config.model import ModelConfig, ModelEnsembling
from shoal.config.rules.fault import Fault

_PLATFORM = "ensemble"
_STEPS = "ensemble_scheduling.step"
_EXAMPLES = {
    "model_name": '"resnet"',
    "input_map": '{ key: "name in the model" value: "name in the ensemble" }',
    "output_map": '{ key: "name in the model" value: "name in the ensemble" }',
}


def ensemble(config: ModelConfig) -> Iterator[Fault]:
    """What an ensemble must have, what it may not have, and its graph."""
    scheduling = config.ensemble_scheduling
    name = config.name
    if scheduling is None:
        if config.platform == _PLATFORM:
            yield Fault(
                "ensemble_scheduling",
                f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
                "Write ensemble_scheduling: { step [ … ] }",
            )
        return
    if config.platform != _PLATFORM:
        yield Fault(
            "platform",
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            'Write platform: "ensemble"',
        )
    forbidden = {
        "instance_group": (config.instance_group, "instance group should not be"),
        "optimization": (config.optimization is not None, "optimization should not be"),
        "model_warmup": (config.model_warmup, "model_warmup can not be"),
    }
    for at, (given, text) in forbidden.items():
        if given:
            message = f"{text} specified for ensemble '{name}'"
            yield Fault(at, message, "Write it in the configs of the models it is made of")
    if not scheduling.step:
        yield Fault(
            _STEPS,
            f"must specify 'step' for ensemble '{name}'",
            'Write step [ { model_name: "…" model_version: -1 input_map … output_map … } ]',
        )
        return
    broken = list(_steps(config, scheduling))
    yield from broken
    if not broken:
        yield from _flow(config, scheduling)


def _steps(config: ModelConfig, scheduling: ModelEnsembling) -> Iterator[Fault]:
    produced: set[str] = set()
    given = {tensor.name for tensor in config.input}
    for index, step in enumerate(scheduling.step):
        for at, example in _EXAMPLES.items():
            if not getattr(step, at):
                yield Fault(
                    f"{_STEPS}[{index}].{at}",
                    f"must specify '{at}' in step {index} of ensemble '{config.name}'",
                    f"Write {at}: {example}",
                )
        for tensor in step.output_map.values():
            if tensor in produced:
                yield Fault(
                    f"{_STEPS}[{index}].output_map",
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{config.name}' step {index}",
                    "Give each step's output its own name",
                )
            elif tensor in given:
                yield Fault(
                    f"{_STEPS}[{index}].output_map",
                    f"ensemble tensor '{tensor}' is an input of ensemble '{config.name}' and is "
                    f"written by step {index} too",
                    "Give the step's output another name",
                )
            produced.add(tensor)


@dataclass(slots=True)
class _Node:
    """A tensor of the ensemble and the tensors it is computed from and into."""

    ready: bool = False
    sources: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)


def _flow(config: ModelConfig, scheduling: ModelEnsembling) -> Iterator[Fault]:
    graph = _graph(scheduling)
    for index, tensor in enumerate(config.input):
        if tensor.name not in graph:
            yield Fault(
                f"input[{index}].name",
                f"ensemble input '{tensor.name}' for ensemble '{config.name}' is not used",
                "Name it in the input_map of a step, or remove it",
            )
    _spread(graph, [tensor.name for tensor in config.input if tensor.name in graph])
    outputs = {tensor.name for tensor in config.output}
    for index, output in enumerate(config.output):
        at = f"output[{index}].name"
        node = graph.get(output.name)
        if node is None:
            yield Fault(
                at,
                f"ensemble output '{output.name}' for ensemble '{config.name}' is not used",
                "Name it in the output_map of a step, or remove it",
            )
        elif not node.ready:
            message = f"output '{output.name}' for ensemble '{config.name}' is not written"
            cause = _unconnected(graph, output.name)
            if cause != output.name:
                message += f": at least one of its depending tensors, '{cause}', is not connected"
            yield Fault(at, message, f"Let a step write '{cause}', or add it to the inputs")
    for name, node in graph.items():
        if name not in outputs and (not node.ready or not node.targets):
            yield Fault(
                _STEPS,
                f"ensemble tensor '{name}' is unused in ensemble '{config.name}'",
                "Use it in a step or as an output, or remove it from the maps",
            )


def _graph(scheduling: ModelEnsembling) -> dict[str, _Node]:
    graph: dict[str, _Node] = {}
    for step in scheduling.step:
        for source in step.input_map.values():
            graph.setdefault(source, _Node())
        for target in step.output_map.values():
            graph.setdefault(target, _Node()).sources.update(step.input_map.values())
            for source in step.input_map.values():
                graph[source].targets.add(target)
    return graph


def _spread(graph: dict[str, _Node], inputs: list[str]) -> None:
    """Mark the tensors that can be computed from the inputs."""
    waiting = list(inputs)
    for name in waiting:
        graph[name].ready = True
    while waiting:
        for target in graph[waiting.pop()].targets:
            node = graph[target]
            if not node.ready and all(graph[source].ready for source in node.sources):
                node.ready = True
                waiting.append(target)


def _unconnected(graph: dict[str, _Node], name: str) -> str:
    """Walk back from a tensor that is never computed to one that explains it."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        missing = sorted(s for s in graph[name].sources if not graph[s].ready and s not in seen)
        name = missing[0] if missing else name
    return name

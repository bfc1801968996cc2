"""Inputs and outputs of a model, from its file or from its results.

torch.export    the file has all of them
traced          the file has an example: the model is run on it, and on one row more
otherwise       the config must have the inputs; the outputs are those of a run on zeros
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from shoal.backends import graph_config
from shoal.backends.graph import Graph, GraphTensor
from shoal.backends.pytorch import names
from shoal.backends.pytorch.executor import input_types
from shoal.backends.pytorch.library import DATATYPES, TORCH_TYPES, clean_message, quiet
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import Program, flatten
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.errors import ConfigError

CPU = torch.device("cpu")
# Sizes of variable dimensions when a model is run to see its outputs: two of them, to find the
# variable dimensions of outputs. Some models need larger ones than others.
_SIZES = ((2, 3), (16, 24), (224, 256))


def describe(config: ModelConfig, program: Program, file: str) -> Graph:
    """Inputs, outputs and the largest batch of a model, under the names that `config` has.

    Raises ConfigError, with what to write, if the model does not show them.
    """
    if _is_fully_described(program):
        assert program.inputs is not None
        assert program.outputs is not None
        batched = _has_batch(program.inputs, program.outputs)
        graph = graph_of(program, config, file)
        return replace(graph, largest_batch=program.largest_batch if batched else 0)
    if not config.input:
        inputs, outputs = _from_example(config, program, file)
        graph = Graph.of(map(_tensor, inputs), map(_tensor, outputs))
        return replace(graph, largest_batch=None if _has_batch(inputs, outputs) else 0)
    # A variable first dimension need not be a batch: only the config can tell.
    return replace(_with_outputs(config, program, file), largest_batch=0)


def graph_of(program: Program, config: ModelConfig, file: str) -> Graph:
    """Inputs and outputs of a fully described program, under the names of the config."""
    assert program.inputs is not None
    assert program.outputs is not None
    made = list(graph_config.server_made_inputs(config))
    states = config.sequence_batching.state if config.sequence_batching is not None else ()
    given = [tensor.name for tensor in config.input]
    kept = [tensor.name for tensor in config.output]
    return Graph.of(
        _renamed("input", program.inputs, [*given, *made], config, file),
        _renamed(
            "output", program.outputs, [*kept, *(s.output_name for s in states)], config, file
        ),
    )


def _renamed(
    kind: str, slots: Sequence[Slot], written: Sequence[str], config: ModelConfig, file: str
) -> list[GraphTensor]:
    unique = list(dict.fromkeys(written))
    found = names.places(kind, unique, slots, model=config.name, file=file)
    own = dict(zip(found, unique, strict=True))
    tensors = [
        replace(_tensor(slot), name=own.get(i, slot.names[0])) for i, slot in enumerate(slots)
    ]
    # Values that no response can carry matter only if they are requested.
    return [t for i, t in enumerate(tensors) if kind == "input" or t.datatype or i in own]


def _tensor(slot: Slot) -> GraphTensor:
    return GraphTensor(
        slot.names[0], slot.type_name, slot.datatype, slot.dims or (), optional=not slot.required
    )


def _is_fully_described(program: Program) -> bool:
    if program.inputs is None or program.outputs is None:
        return False
    return all(slot.dims is not None for slot in program.inputs) and any(
        slot.dims is not None for slot in program.outputs
    )


def _has_batch(inputs: Sequence[Slot], outputs: Sequence[Slot]) -> bool:
    """Whether one symbol leads every shape."""
    slots = [slot for slot in (*inputs, *outputs) if slot.dims is not None]
    leading = {slot.axes[0] if slot.axes else None for slot in slots}
    return len(leading) == 1 and None not in leading


# ---- models that say less


def _from_example(
    config: ModelConfig, program: Program, file: str
) -> tuple[list[Slot], list[Slot]]:
    """Inputs and outputs of a traced model, which remembers what it was traced with."""
    slots = program.inputs or ()
    if not slots or any(slot.example is None or slot.datatype is None for slot in slots):
        raise _unknown_inputs(config, program, file)
    written = [slot.names[0] for slot in slots]
    shapes = {slot.names[0]: slot.example or () for slot in slots}
    first = _run(program, written, _zeros(slots, shapes), config, file)
    more = {name: (shape[0] + 1, *shape[1:]) for name, shape in shapes.items() if shape}
    batch = {shape[0] for shape in shapes.values() if shape}
    second = None
    if len(more) == len(shapes) and len(batch) == 1:
        try:
            second = _run(program, written, _zeros(slots, more), config, file)
        except ConfigError:  # the example's sizes are part of the model
            second = None
    follows = second is not None and _follow(first, second, batch.pop())
    inputs = [
        replace(slot, dims=_dims(slot.example or (), follows), axes=_axes(slot.example, follows))
        for slot in slots
    ]
    outputs = [
        replace(slot, dims=_dims(value.shape, follows), axes=_axes(value.shape, follows))
        for slot, value in _described(first)
    ]
    return inputs, outputs


def _follow(first: Any, second: Any, rows: int) -> bool:
    """Whether results differ in their first dimension only, and there as the inputs did."""
    pairs = list(zip(flatten(first), flatten(second), strict=True))
    return bool(pairs) and all(
        isinstance(one, torch.Tensor)
        and isinstance(two, torch.Tensor)
        and one.dim() > 0
        and tuple(two.shape) == (rows + 1, *one.shape[1:])
        and one.shape[0] == rows
        for one, two in pairs
    )


def _dims(shape: Sequence[int], follows: bool) -> tuple[int, ...]:
    return (-1, *shape[1:]) if follows else tuple(shape)


def _axes(shape: Sequence[int] | None, follows: bool) -> tuple[str | None, ...]:
    return ("batch" if follows else None, *[None for _ in (shape or ())[1:]])


def _with_outputs(config: ModelConfig, program: Program, file: str) -> Graph:
    """The config's inputs, and the outputs of the model when it is run on zeros."""
    written = list(input_types(config))
    dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
    if set(dims) != set(written):
        raise _unknown_outputs(config, program, file, "it has inputs that the server makes")
    batched = config.max_batch_size > 0
    slots = [Slot((name,), datatype=datatype) for name, datatype in input_types(config).items()]
    reason = ""
    for sizes in _SIZES:
        results: list[Any] = []
        for size, rows in zip(sizes, (2, 3), strict=True):
            head = (min(rows, config.max_batch_size),) if batched else ()
            shapes = {
                name: head + tuple(size if dim == -1 else dim for dim in own)
                for name, own in dims.items()
            }
            try:
                zeros = _zeros(slots, shapes, program.device)
                results.append(_run(program, written, zeros, config, file))
            except ConfigError as error:
                reason = str(error.__cause__)
                break
        if len(results) == 2:
            return _graph_of_results(config, results, batched)
    raise _unknown_outputs(config, program, file, reason)


def _graph_of_results(config: ModelConfig, results: Sequence[Any], batched: bool) -> Graph:
    tensors: list[GraphTensor] = []
    for (slot, one), (_, two) in zip(_described(results[0]), _described(results[1]), strict=True):
        same = len(one.shape) == len(two.shape)
        dims = tuple(a if a == b else -1 for a, b in zip(one.shape, two.shape, strict=True) if same)
        tensors.append(replace(_tensor(slot), dims=(-1, *dims[1:]) if batched else dims))
    inputs = [
        GraphTensor(
            tensor.name,
            tensor.data_type,
            dtypes.BY_CONFIG_NAME[tensor.data_type],
            ((-1,) if batched else ()) + graph_config.model_dims(tensor),
        )
        for tensor in config.input
    ]
    return Graph.of(inputs, tensors)


def _described(result: Any) -> list[tuple[Slot, Any]]:
    """Each tensor that a model gave, and what it is."""
    found: list[tuple[Slot, Any]] = []
    for index, (own, value) in enumerate(
        zip(names.walk(result, "RESULT"), flatten(result), strict=True)
    ):
        name = own[0] if not own[0].startswith("RESULT") else f"OUTPUT__{index}"
        if isinstance(value, torch.Tensor):
            kind, datatype = str(value.dtype), DATATYPES.get(value.dtype)
            found.append((Slot((name,), datatype=datatype, type_name=kind), value))
        elif isinstance(value, list):
            count = torch.empty(len(value), 1, device="meta")
            found.append((Slot((name,), datatype=dtypes.BYTES, type_name="List[str]"), count))
    return found


def _zeros(
    slots: Sequence[Slot], shapes: Mapping[str, Sequence[int]], device: torch.device = CPU
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for slot in slots:
        name = slot.names[0]
        assert slot.datatype is not None
        if slot.datatype is dtypes.BYTES:
            values[name] = [""] * int(torch.Size(shapes[name]).numel())
        else:
            kind = TORCH_TYPES[slot.datatype]
            values[name] = torch.zeros(tuple(shapes[name]), dtype=kind, device=device)
    return values


def _run(
    program: Program,
    written: Sequence[str],
    values: Mapping[str, Any],
    config: ModelConfig,
    file: str,
) -> Any:
    call = program.caller(written, model=config.name, file=file)
    try:
        with quiet, torch.inference_mode():
            return call(values)
    except Exception as error:  # noqa: BLE001 - whatever the model raises
        raise ConfigError(
            f"the outputs of model '{config.name}' cannot be determined by running it on zeros",
            file=file,
            field="output",
        ) from RuntimeError(clean_message(error))


def _unknown_inputs(config: ModelConfig, program: Program, file: str) -> ConfigError:
    listed = [slot.names[0] for slot in program.inputs or ()] or ["INPUT__0"]
    entries = " ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}' for name in listed)
    return ConfigError(
        f"the inputs of model '{config.name}' are not known: its file ({program.kind.value}) does "
        f"not contain their types (forward takes {', '.join(listed)})",
        file=file,
        field="input",
        fix=f"Write max_batch_size and input [ {entries} ] with the right types and dims, or save "
        "the model with torch.export, whose files contain them",
    )


def _unknown_outputs(config: ModelConfig, program: Program, file: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the outputs of model '{config.name}' are not known: its file ({program.kind.value}) does "
        f"not contain them, and running it on zeros failed ({reason})",
        file=file,
        field="output",
        fix='Write output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ] with the '
        "right type and dims",
    )

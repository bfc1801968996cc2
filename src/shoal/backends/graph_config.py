"""A config and the graph of its model: completing what is missing, rejecting conflicts.

    Graph + ModelConfig --complete--> ModelConfig          Graph + ModelConfig --check--> ok

Completion follows Triton's rules exactly. Checking is more lenient: a variable dimension matches
a fixed one on either side. Every error names the field, what the model has and what to write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shoal.backends.graph import Graph, GraphTensor
from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelTensorReshape,
)
from shoal.core.dtypes import BY_CONFIG_NAME
from shoal.errors import ConfigError

_log = logging.getLogger(__name__)


def is_complete(config: ModelConfig) -> bool:
    """Whether the config has inputs and outputs, so that the model file need not be read."""
    return bool(config.input or config.batch_input) and bool(config.output)


def complete(
    config: ModelConfig, graph: Graph, default_max_batch_size: int, file: str
) -> ModelConfig:
    """Fill in max_batch_size, the missing side of input and output, and dynamic batching.

    Raises ConfigError when the config has batches that the model does not support, or when an
    input is of a type that requests cannot contain.
    """
    if is_complete(config):
        return config
    limit = max(default_max_batch_size, 0)
    if graph.largest_batch is not None:
        limit = min(limit, graph.largest_batch)
    outputs = _servable_outputs(config, graph)
    tensors = [*graph.inputs.values(), *outputs]
    if all(tensor.dims[:1] == (-1,) for tensor in tensors):
        if config.max_batch_size == 0 and not _lists_whole_shapes(config, graph):
            config = replace(config, max_batch_size=limit)
        scheduled = config.dynamic_batching or config.sequence_batching
        if config.max_batch_size > 1 and not scheduled:
            config = replace(config, dynamic_batching=ModelDynamicBatching())
    elif config.max_batch_size:
        for tensor in tensors:
            _check_batch_dimension(tensor, config, file, for_completion=True)
    batching = config.max_batch_size > 0
    if not config.input and not config.batch_input:
        made = server_made_inputs(config)
        names = sorted(name for name in graph.inputs if name not in made)
        inputs = [_input(graph.inputs[name], batching, file) for name in names]
        config = replace(config, input=tuple(inputs))
    if not config.output:
        kept = {state.output_name for state in _states(config)}
        ordered = sorted(outputs, key=lambda tensor: tensor.name)
        ordered = [tensor for tensor in ordered if tensor.name not in kept] or ordered
        config = replace(config, output=tuple(_output(tensor, batching) for tensor in ordered))
    return config


def check(config: ModelConfig, graph: Graph, file: str) -> None:
    """Raise ConfigError if the model could not run requests that match the config."""
    known = {**graph.inputs, **graph.defaults}
    for index, tensor in enumerate(config.input):
        where = f"input[{index}] '{tensor.name}'"
        found = known.get(tensor.name)
        if found is None:
            raise _unexpected("input", tensor.name, known, f"{where}.name", file)
        _check_datatype(tensor, found, where, config, file)
        if tensor.allow_ragged_batch:
            _check_ragged(found, where, file)
        else:
            _check_dims(tensor, found, where, config, file)
        if tensor.optional and tensor.name in graph.required_inputs:
            _log.warning(
                "%s: %s is marked optional, but the model has no value of its own for it: "
                "requests that leave it out will fail",
                file,
                where,
            )
    scattered = {name for output in config.batch_output for name in output.target_name}
    for index, output in enumerate(config.output):
        where = f"output[{index}] '{output.name}'"
        found = graph.outputs.get(output.name)
        if found is None:
            raise _unexpected("output", output.name, graph.outputs, f"{where}.name", file)
        _check_datatype(output, found, where, config, file)
        if output.name not in scattered:  # those are split by the shapes of an input
            _check_dims(output, found, where, config, file)
    _check_server_made_tensors(config, known, graph.outputs, file)
    _check_nothing_missing(config, graph, file)


def server_made_inputs(config: ModelConfig) -> dict[str, str]:
    """Inputs that the server provides, each with the config field that declares it."""
    made = {
        name: f"batch_input[{index}].target_name"
        for index, batch_input in enumerate(config.batch_input)
        for name in batch_input.target_name
    }
    if config.sequence_batching is not None:
        for index, control in enumerate(config.sequence_batching.control_input):
            made[control.name] = f"sequence_batching.control_input[{index}].name"
    for index, state in enumerate(_states(config)):
        made[state.input_name] = f"sequence_batching.state[{index}].input_name"
    return made


def _states(config: ModelConfig) -> tuple[ModelSequenceBatching.State, ...]:
    return () if config.sequence_batching is None else config.sequence_batching.state


def model_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    """The dims the backend sees, without the batch dimension."""
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def scalar_dims(
    tensors: Sequence[ModelInput | ModelOutput], config: ModelConfig
) -> dict[str, tuple[int, ...]]:
    """The dims of tensors with one element, which a config needs where the model has a scalar.
    With a batch dimension there are no scalars."""
    if config.max_batch_size:
        return {}
    dims = {tensor.name: model_dims(tensor) for tensor in tensors}
    return {name: shape for name, shape in dims.items() if set(shape) <= {1}}


def format_dims(dims: Iterable[int]) -> str:
    """A shape as messages show it: `[-1,3]`."""
    return "[" + ",".join(map(str, dims)) + "]"


def _servable_outputs(config: ModelConfig, graph: Graph) -> list[GraphTensor]:
    """The outputs that responses can contain; others are logged."""
    servable = [tensor for tensor in graph.outputs.values() if tensor.datatype is not None]
    if not config.output:
        for tensor in graph.outputs.values():
            if tensor.datatype is None:
                _log.warning(
                    "model '%s': output '%s' is %s, which the protocol does not support; "
                    "the model is served without it",
                    config.name,
                    tensor.name,
                    tensor.type_name,
                )
    return servable


def _lists_whole_shapes(config: ModelConfig, graph: Graph) -> bool:
    """Whether the dims in the config include the batch dimension.

    Then max_batch_size is meant to be 0: another value would contradict those dims.
    """
    written: list[tuple[ModelInput | ModelOutput, GraphTensor | None]] = [
        *((tensor, graph.inputs.get(tensor.name)) for tensor in config.input),
        *((tensor, graph.outputs.get(tensor.name)) for tensor in config.output),
    ]
    return any(
        found is not None and len(model_dims(tensor)) == len(found.dims)
        for tensor, found in written
    )


def _input(tensor: GraphTensor, batching: bool, file: str) -> ModelInput:
    if tensor.datatype is None:
        raise ConfigError(
            f"the model's input '{tensor.name}' is {tensor.type_name}, which requests cannot "
            "contain",
            file=file,
            field="input",
            fix="Export the model with plain tensors as inputs",
        )
    dims, reshape = _config_dims(tensor, batching)
    return ModelInput(
        name=tensor.name,
        data_type=tensor.datatype.config_name,
        dims=dims,
        reshape=reshape,
        optional=tensor.optional,
    )


def _output(tensor: GraphTensor, batching: bool) -> ModelOutput:
    assert tensor.datatype is not None
    dims, reshape = _config_dims(tensor, batching)
    return ModelOutput(
        name=tensor.name, data_type=tensor.datatype.config_name, dims=dims, reshape=reshape
    )


def _config_dims(
    tensor: GraphTensor, batching: bool
) -> tuple[tuple[int, ...], ModelTensorReshape | None]:
    """`dims` must not be empty: a scalar has one element, which a batch removes by reshaping."""
    dims = tensor.dims[1:] if batching else tensor.dims
    if dims:
        return dims, None
    return (1,), ModelTensorReshape() if batching else None


def _check_datatype(
    tensor: ModelInput | ModelOutput, found: GraphTensor, where: str, config: ModelConfig, file: str
) -> None:
    if found.datatype is not None and BY_CONFIG_NAME.get(tensor.data_type) is found.datatype:
        return
    kind = "input" if isinstance(tensor, ModelInput) else "output"
    if found.datatype is None:
        has = f"{found.type_name}, which the protocol does not support"
        fix = f"Remove this {kind}" if kind == "output" else "Export the model with plain tensors"
    else:
        has = found.datatype.config_name
        fix = f"Write data_type: {has}"
    raise ConfigError(
        f"unable to load model '{config.name}', configuration expects datatype {tensor.data_type} "
        f"for {kind} '{tensor.name}', model provides {has}",
        file=file,
        field=f"{where}.data_type",
        fix=fix,
    )


def _check_dims(
    tensor: ModelInput | ModelOutput, found: GraphTensor, where: str, config: ModelConfig, file: str
) -> None:
    if not found.dims:  # a scalar, or no shape declared
        return
    batching = config.max_batch_size > 0
    if batching:
        _check_batch_dimension(found, config, file)
    inner = found.dims[1:] if batching else found.dims
    wanted = model_dims(tensor)
    if len(wanted) == len(inner) and all(
        want == have or -1 in (want, have) for want, have in zip(wanted, inner, strict=True)
    ):
        return
    field = f"{where}.{'dims' if tensor.reshape is None else 'reshape'}"
    key = "dims: " if tensor.reshape is None else "reshape.shape: "
    suggestion = f"Write {key}{_list(inner)}"
    given = f"{len(wanted)} dimensions (shape {format_dims(wanted)})"
    if batching:
        whole = (-1, *wanted)
        given = (
            f"{len(whole)} dimensions (an initial batch dimension because max_batch_size > 0 "
            f"followed by the explicit tensor shape, making complete shape {format_dims(whole)})"
        )
        if len(wanted) == len(found.dims):
            suggestion += ", which leaves the batch dimension out, or set max_batch_size: 0"
    raise ConfigError(
        f"the model expects {len(found.dims)} dimensions (shape {format_dims(found.dims)}) but "
        f"the model configuration specifies {given}",
        file=file,
        field=field,
        fix=suggestion,
    )


def _check_batch_dimension(
    found: GraphTensor, config: ModelConfig, file: str, *, for_completion: bool = False
) -> None:
    """A batch needs a variable first dimension; for batches of one row a 1 is enough."""
    if found.dims[:1] == (-1,) or (config.max_batch_size == 1 and found.dims[:1] == (1,)):
        return
    detail = (
        f"tensor '{found.name}': for the model to support batching the shape should have at least "
        "1 dimension and the first dimension must be -1; but shape expected by the model is "
        f"{format_dims(found.dims)}"
    )
    if for_completion:
        detail = (
            f"autofill failed for model '{config.name}': model does not support batching while "
            f"non-zero max_batch_size is specified ({detail})"
        )
    raise ConfigError(
        detail,
        file=file,
        field="max_batch_size",
        fix="Set max_batch_size: 0 and write whole shapes in dims, or export the model with a "
        "variable first dimension",
    )


def _check_ragged(found: GraphTensor, where: str, file: str) -> None:
    if found.dims != (-1,):
        raise ConfigError(
            "configuration expects model provides input with shape [-1] for ragged input "
            f"'{found.name}', model provides {format_dims(found.dims)}",
            file=file,
            field=f"{where}.allow_ragged_batch",
            fix="Remove allow_ragged_batch, or export the model with this input flattened",
        )


def _check_server_made_tensors(
    config: ModelConfig,
    inputs: Mapping[str, GraphTensor],
    outputs: Mapping[str, GraphTensor],
    file: str,
) -> None:
    for name, field in server_made_inputs(config).items():
        if name not in inputs:
            raise _unexpected("input", name, inputs, field, file)
    for index, state in enumerate(_states(config)):
        field = f"sequence_batching.state[{index}]"
        if state.output_name not in outputs:
            raise _unexpected("output", state.output_name, outputs, f"{field}.output_name", file)
        for found in (inputs[state.input_name], outputs[state.output_name]):
            _check_made_type(state.data_type, found, f"{field}.data_type", config, file)
    if config.sequence_batching is not None:
        for index, entry in enumerate(config.sequence_batching.control_input):
            for control in entry.control:
                field = f"sequence_batching.control_input[{index}].control"
                found = inputs[entry.name]
                _check_made_type(_control_type(control), found, field, config, file)


def _control_type(control: ModelSequenceBatching.Control) -> str:
    """The data type of a control tensor, from the values it takes."""
    if control.int32_false_true:
        return "TYPE_INT32"
    if control.fp32_false_true:
        return "TYPE_FP32"
    return "TYPE_BOOL" if control.bool_false_true else control.data_type


def _check_made_type(
    data_type: str, found: GraphTensor, field: str, config: ModelConfig, file: str
) -> None:
    wanted = BY_CONFIG_NAME.get(data_type)  # None: the rules report it
    if wanted is not None and wanted is not found.datatype:
        has = found.datatype.config_name if found.datatype is not None else found.type_name
        raise ConfigError(
            f"unable to load model '{config.name}', the configuration makes tensor '{found.name}' "
            f"{data_type}, the model takes {has}",
            file=file,
            field=field,
            fix=f"Write what makes it {has}",
        )


def _check_nothing_missing(config: ModelConfig, graph: Graph, file: str) -> None:
    given = {tensor.name for tensor in config.input} | set(server_made_inputs(config))
    missing = [graph.inputs[name] for name in graph.inputs if name not in given]
    missing = [tensor for tensor in missing if not tensor.optional]
    if not missing:
        return
    entries = " ".join(_entry(tensor, batching=config.max_batch_size > 0) for tensor in missing)
    names = ", ".join(f"'{tensor.name}'" for tensor in missing)
    raise ConfigError(
        f"unable to load model '{config.name}', configuration expects {len(given)} inputs, model "
        f"provides {len(graph.inputs)}: {names} missing in the configuration",
        file=file,
        field="input",
        fix=f"Add {entries}",
    )


def _entry(tensor: GraphTensor, *, batching: bool) -> str:
    """The lines to write for a tensor, on one line."""
    data_type = tensor.datatype.config_name if tensor.datatype else tensor.type_name
    dims, reshape = _config_dims(tensor, batching)
    extra = " reshape { shape: [ ] }" if reshape is not None else ""
    return f'input {{ name: "{tensor.name}" data_type: {data_type} dims: {_list(dims)}{extra} }}'


def _unexpected(
    kind: str, name: str, allowed: Mapping[str, GraphTensor], field: str, file: str
) -> ConfigError:
    names = ", ".join(allowed)
    return ConfigError(
        f"unexpected inference {kind} '{name}', allowed {kind}s are: {names}",
        file=file,
        field=field,
        fix=f"Write one of the names the model has: {names}",
    )


def _list(dims: Iterable[int]) -> str:
    """Dims as config.pbtxt has them."""
    inner = ", ".join(map(str, dims))
    return f"[ {inner} ]" if inner else "[ ]"

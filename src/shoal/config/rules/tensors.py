"""Rules about inputs and outputs: names, types, shapes and reshapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.config.model import BatchOutput, ModelConfig, ModelInput, ModelOutput
from shoal.config.rules.fault import Fault

_TENSORRT = "tensorrt_plan"
_IMAGE_RANK = 3


def tensors(config: ModelConfig) -> Iterator[Fault]:
    """Every input and output is complete and its shapes agree."""
    sides: tuple[tuple[str, Sequence[ModelInput | ModelOutput]], ...] = (
        ("input", config.input),
        ("output", config.output),
    )
    for side, entries in sides:
        seen: set[str] = set()
        for index, tensor in enumerate(entries):
            at = f"{side}[{index}]"
            yield from _tensor(config, side, at, tensor)
            if tensor.name and tensor.name in seen:
                yield Fault(
                    f"{at}.name",
                    f"model {side} '{tensor.name}' is specified more than once for {config.name}",
                    "Give each of them its own name, or remove one",
                )
            seen.add(tensor.name)


def _tensor(
    config: ModelConfig, side: str, at: str, tensor: ModelInput | ModelOutput
) -> Iterator[Fault]:
    if not tensor.name:
        yield Fault(
            f"{at}.name",
            f"model {side} must specify 'name' for {config.name}",
            f'Write name: "{side.upper()}0", the name the model file has for it',
        )
        return
    named = f"model {side} '{tensor.name}'"
    if tensor.data_type == "TYPE_INVALID":
        yield Fault(
            f"{at}.data_type",
            f"{named} must specify 'data_type' for {config.name}",
            "Write for example data_type: TYPE_FP32",
        )
    if not tensor.dims:
        yield Fault(
            f"{at}.dims",
            f"{named} must specify 'dims' for {config.name}",
            "Write for example dims: [ 3, 224, 224 ], without the batch dimension"
            if config.max_batch_size > 0
            else "Write for example dims: [ 1, 3, 224, 224 ]; a scalar is dims: [ 1 ]",
        )
    for dim in tensor.dims:
        if dim < 1 and dim != -1:
            yield Fault(
                f"{at}.dims",
                f"{named} dimension must be integer >= 1, or -1 to indicate a variable-size "
                f"dimension for {config.name}, found {dim}",
                "Write -1 for any size",
            )
    yield from _reshape(config, named, at, tensor)
    yield from _formats(config, side, at, tensor)


def _reshape(
    config: ModelConfig, named: str, at: str, tensor: ModelInput | ModelOutput
) -> Iterator[Fault]:
    if tensor.reshape is None:
        return
    dims, shape = tensor.dims, tensor.reshape.shape
    at = f"{at}.reshape"
    if not shape and config.max_batch_size == 0:
        yield Fault(
            at,
            f"{named} cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported for {config.name}",
            "Remove the reshape: dims: [ 1 ] alone serves a scalar",
        )
    for dim in shape:
        if dim < 1 and dim != -1:
            yield Fault(
                f"{at}.shape",
                f"{named} reshape dimensions must be integer >= 1, or -1 to indicate a "
                f"variable-size dimension for {config.name}, found {dim}",
                "Write -1 for each -1 that dims have, in the same order",
            )
    if not dims or any(dim < 1 and dim != -1 for dim in dims + shape):
        return
    if dims.count(-1) != shape.count(-1):
        what = "number of variable-size dimensions" if -1 in dims and -1 in shape else "size"
    elif segments(dims) != segments(shape):
        what = "size"
    else:
        return
    yield Fault(
        at,
        f"{named} has different {what} for dims and reshape for {config.name}, "
        f"found dims {list(dims)} and reshape {list(shape)}",
        "Both need as many elements between their variable-size dimensions: "
        "[ 2, 4, -1, 6 ] may become [ 8, -1, 1, 6 ]",
    )


def segments(dims: Sequence[int]) -> list[int]:
    """The element counts between the -1s: [2, 4, -1, 6] has 8 and 6."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _formats(
    config: ModelConfig, side: str, at: str, tensor: ModelInput | ModelOutput
) -> Iterator[Fault]:
    if isinstance(tensor, ModelInput) and tensor.format != "FORMAT_NONE":
        rank = len(tensor.dims)
        if rank != _IMAGE_RANK:
            yield Fault(
                f"{at}.format",
                f"model input NHWC/NCHW require 3 dims for {config.name}, "
                f"found {rank} for '{tensor.name}'",
                "Write three dims, or leave format out: it does not affect the data",
            )
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        yield Fault(
            f"{at}.is_shape_tensor",
            f"shape tensors are only supported for TensorRT platform for {config.name}",
            "Remove is_shape_tensor: other backends take shapes as ordinary inputs",
        )
    if tensor.is_non_linear_format_io:
        at = f"{at}.is_non_linear_format_io"
        if config.platform != _TENSORRT:
            yield Fault(
                at,
                "Non-linear IO format is only supported for the TensorRT platform for "
                f"{config.name}",
                "Remove is_non_linear_format_io",
            )
        elif len(tensor.dims) != _IMAGE_RANK:
            yield Fault(
                at,
                f"Non-linear IO format {side} requires 3 dims for {config.name}",
                "Write three dims",
            )


def batch_tensors(config: ModelConfig) -> Iterator[Fault]:
    """The tensors the server makes from a whole batch refer to ones that exist."""
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for index, batch_input in enumerate(config.batch_input):
        at = f"batch_input[{index}]"
        yield from _source(config, "input", at, batch_input.kind, batch_input.source_input, inputs)
        if batch_input.data_type not in ("TYPE_INT32", "TYPE_FP32"):
            yield Fault(
                f"{at}.data_type",
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}, "
                f"found {batch_input.data_type}",
                "Write data_type: TYPE_INT32 or data_type: TYPE_FP32",
            )
    for index, batch_output in enumerate(config.batch_output):
        at = f"batch_output[{index}]"
        source = batch_output.source_input
        yield from _source(config, "output", at, batch_output.kind, source, inputs)
        yield from _scattered(config, at, batch_output)
        for place, target in enumerate(batch_output.target_name):
            if target not in outputs:
                yield Fault(
                    f"{at}.target_name",
                    f"unknown target output name '{target}' for {config.name}",
                    f"Write one of the outputs: {_listed(outputs)}",
                )
            elif target in batch_output.target_name[:place]:
                yield Fault(
                    f"{at}.target_name",
                    f"target output name '{target}' can only be specified once for {config.name}",
                    "Remove one of the two",
                )


def _scattered(config: ModelConfig, at: str, batch_output: BatchOutput) -> Iterator[Fault]:
    """Each variable dimension of the outputs is one that the source has too."""
    inputs = {tensor.name: tensor for tensor in config.input}
    source = inputs.get(batch_output.source_input[0]) if batch_output.source_input else None
    if source is None:
        return
    if source.optional:
        yield Fault(
            f"{at}.source_input",
            f"batch output source input '{source.name}' must not be optional for {config.name}: "
            "its shape determines each request's part",
            "Remove optional: true from that input",
        )
    rank = len(_model_dims(source))
    for tensor in config.output:
        dims = _model_dims(tensor)
        beyond = [axis for axis, dim in enumerate(dims) if dim == -1 and axis >= rank]
        if tensor.name in batch_output.target_name and beyond:
            yield Fault(
                f"{at}.target_name",
                f"output '{tensor.name}' has a variable dimension {beyond[0]}, but its source "
                f"input '{source.name}' has only {rank} dimensions for {config.name}",
                "Write its size, or choose another source_input",
            )


def _model_dims(tensor: ModelInput | ModelOutput) -> Sequence[int]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _source(
    config: ModelConfig, side: str, at: str, kind: str, source: Sequence[str], inputs: set[str]
) -> Iterator[Fault]:
    if len(source) != 1:
        yield Fault(
            f"{at}.source_input",
            f"batch {side} kind '{kind}' expects 1 source input, got {len(source)} "
            f"for {config.name}",
            "Write source_input with the name of one input",
        )
    for name in source:
        if name not in inputs:
            yield Fault(
                f"{at}.source_input",
                f"unknown source input name '{name}' for {config.name}",
                f"Write one of the inputs: {_listed(inputs)}",
            )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "there are none"

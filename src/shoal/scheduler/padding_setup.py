"""From a config's `padding` parameters to the lengths of its tensors.

Which dimensions have the same length is read from `padding_axes`, or else from the names of
dimensions in the model file, or is obvious because there is only one. Otherwise the config is
refused: an output cut at the wrong position would be a wrong response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.config import shapes
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
from shoal.config.shapes import PaddingParameters
from shoal.core import dtypes
from shoal.core.padding import Axes, Buckets, Padding, fill_value
from shoal.core.signature import Signature
from shoal.errors import ConfigError

AxisNames = Mapping[str, Sequence[str | None]]

ONLY_LENGTH = "length"  # the name of the only length, if it has no other


def padded(signature: Signature, config: ModelConfig, axis_names: AxisNames) -> Signature:
    """The signature of a model whose batches are padded; unchanged if they are not.

    `axis_names` are the names of dimensions in the model file, including the batch dimension.
    Raises ConfigError where it is not clear how an output is to be cut.
    """
    wanted = shapes.padding_of(config)
    if wanted is None:
        return signature
    padding = _padding(config, wanted, axis_names)
    inputs = {
        name: replace(spec, optional=True) if name in padding.masks else spec
        for name, spec in signature.inputs.items()
    }
    return replace(signature, inputs=inputs, padding=padding)


def _padding(config: ModelConfig, wanted: PaddingParameters, axis_names: AxisNames) -> Padding:
    fills = wanted.fills
    if fills is None:
        variable = [t for t in config.input if -1 in t.dims and not t.allow_ragged_batch]
        fills = dict.fromkeys([tensor.name for tensor in variable], "")
    tensors: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    named = {tensor.name: _names(tensor, wanted, axis_names) for tensor in tensors}
    by_name = {tensor.name: tensor for tensor in config.input}
    inputs = _inputs([by_name[name] for name in fills], named)
    lengths = {length for axes in inputs.values() for _, length in axes}
    _check_declared(config, wanted, lengths)
    _check_left_out(config, fills, named, lengths)
    _check_masks(config, wanted, inputs)
    ahead = shapes.by_shape_of(config)
    return Padding(
        inputs=inputs,
        fills={
            name: fill_value(dtypes.BY_CONFIG_NAME[by_name[name].data_type], text)
            for name, text in fills.items()
        },
        outputs=_outputs(config, named, lengths),
        masks=frozenset(wanted.masks),
        multiple=wanted.multiple,
        buckets=None if ahead is None else Buckets(ahead.width, ahead.edges),
    )


def _names(
    tensor: ModelInput | ModelOutput, wanted: PaddingParameters, axis_names: AxisNames
) -> dict[int, str | None]:
    """The model's variable dimensions, counted with the batch dimension, and their names."""
    dims = _model_dims(tensor)
    variable = [axis for axis, dim in enumerate(dims, 1) if dim == -1]
    declared = wanted.axes.get(tensor.name)
    if declared is not None:
        return dict(zip(variable, declared, strict=True))
    known = axis_names.get(tensor.name, ())
    if len(known) != len(dims) + 1:
        return dict.fromkeys(variable)
    return {axis: known[axis] for axis in variable}


def _inputs(
    tensors: Sequence[ModelInput], named: Mapping[str, Mapping[int, str | None]]
) -> dict[str, Axes]:
    """The lengths of the padded inputs; a dimension without a name is a length of its own."""
    own = [named[tensor.name] for tensor in tensors]
    one = all(len(axes) == 1 and None in axes.values() for axes in own)
    return {
        tensor.name: tuple(
            (axis, name or (ONLY_LENGTH if one else f"{tensor.name}.{axis}"))
            for axis, name in axes.items()
        )
        for tensor, axes in zip(tensors, own, strict=True)
    }


def _outputs(
    config: ModelConfig, named: Mapping[str, Mapping[int, str | None]], lengths: set[str]
) -> dict[str, Axes]:
    """Which dimensions of the outputs follow which length."""
    scattered = {name for output in config.batch_output for name in output.target_name}
    outputs: dict[str, Axes] = {}
    for tensor in config.output:
        if tensor.name in scattered:  # those follow the shapes of an input
            continue
        axes: list[tuple[int, str]] = []
        dimensions = named[tensor.name]
        for axis, own in dimensions.items():
            only = own is None and len(lengths) == len(dimensions) == 1
            name = next(iter(lengths)) if only else own
            if name is not None and name in lengths:
                axes.append((axis, name))
            elif name != shapes.NO_LENGTH:
                raise _unclear(config, tensor, axis, name, lengths)
        outputs[tensor.name] = tuple(axes)
    return outputs


def _unclear(
    config: ModelConfig, tensor: ModelOutput, axis: int, name: str | None, lengths: set[str]
) -> ConfigError:
    known = "has no name" if name is None else f"is called '{name}'"
    example = min(lengths)
    return _wrong(
        shapes.AXES,
        f"it is not clear which length dimension {axis} of output '{tensor.name}' of "
        f"{config.name} follows: it {known}, and the padded lengths are "
        + ", ".join(f"'{length}'" for length in sorted(lengths)),
        f"Write {tensor.name}[{example}] if it is as long as that, with a name for each variable "
        f"dimension, or {tensor.name}[_] if it follows none",
    )


def _check_declared(config: ModelConfig, wanted: PaddingParameters, lengths: set[str]) -> None:
    for tensor in config.output:
        for name in wanted.axes.get(tensor.name, ()):
            if name != shapes.NO_LENGTH and name not in lengths:
                raise _wrong(
                    shapes.AXES,
                    f"output '{tensor.name}' of {config.name} cannot follow '{name}': no padded "
                    "input has a length of that name",
                    f"Write one of {', '.join(sorted(lengths))}, or _ if it follows none",
                )


def _check_left_out(
    config: ModelConfig,
    fills: Mapping[str, str],
    named: Mapping[str, Mapping[int, str | None]],
    lengths: set[str],
) -> None:
    """An input that shares a padded length must be padded with the others."""
    for tensor in config.input:
        if tensor.name in fills or tensor.allow_ragged_batch:
            continue
        shared = [name for name in named[tensor.name].values() if name in lengths]
        if shared:
            raise _wrong(
                shapes.PADDING,
                f"input '{tensor.name}' of {config.name} has the length '{shared[0]}', which is "
                "padded in others, and is not padded itself",
                f"Add {tensor.name}=0",
            )


def _check_masks(
    config: ModelConfig, wanted: PaddingParameters, inputs: Mapping[str, Axes]
) -> None:
    """The lengths of a mask that the server makes must come from inputs that are always sent."""
    sent = {
        length
        for tensor in config.input
        if tensor.name in inputs and tensor.name not in wanted.masks and not tensor.optional
        for _, length in inputs[tensor.name]
    }
    for name in wanted.masks:
        for _, length in inputs[name]:
            if length not in sent:
                raise _wrong(
                    shapes.MASK,
                    f"the length of '{name}' of {config.name} is not known where a request leaves "
                    f"it out: no other padded input that must be sent has the length '{length}'",
                    f"Write in padding_axes which input is as long as '{name}', or remove it here",
                )


def _model_dims(tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
    return tensor.dims if tensor.reshape is None else tensor.reshape.shape


def _wrong(key: str, message: str, fix: str) -> ConfigError:
    return ConfigError(message, file="config.pbtxt", field=f"parameters['{key}']", fix=fix)

"""Rules about requests of different shapes: ragged batches, padding, batches by shape."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config import shapes
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
from shoal.config.rules.fault import Fault
from shoal.config.shapes import PaddingParameters, WrongParameter
from shoal.core import dtypes
from shoal.core.padding import fill_value
from shoal.errors import ConfigError


def ragged(config: ModelConfig) -> Iterator[Fault]:
    """Ragged inputs need a batch dimension."""
    if config.max_batch_size > 0:
        return
    fields = {
        f"input[{index}].allow_ragged_batch": tensor.name
        for index, tensor in enumerate(config.input)
        if tensor.allow_ragged_batch
    }
    for index, made in enumerate(config.batch_input):
        if made.kind.startswith("BATCH_ITEM_SHAPE"):  # the shapes of rows
            fields[f"batch_input[{index}].kind"] = ", ".join(made.target_name)
    for field, name in fields.items():
        yield Fault(
            field,
            f"'{name}' needs batches of several requests, but {config.name} has no batch "
            "dimension (max_batch_size: 0)",
            "Write max_batch_size: N with the largest batch, or remove it",
        )


def by_shape(config: ModelConfig) -> Iterator[Fault]:
    """The parameters `padding…` and `batch_by_shape…` fit the model."""
    try:
        padding = shapes.padding_of(config)
        ahead = shapes.by_shape_of(config)
    except WrongParameter as wrong:
        yield Fault(wrong.field, wrong.message, wrong.fix)
        return
    except ConfigError:  # the rule about all parameters reports it
        return
    if padding is not None:
        yield from _padding(config, padding)
    if ahead is not None:
        if config.dynamic_batching is None:
            yield _fault(
                shapes.BY_SHAPE,
                f"there are no batches to put together without dynamic_batching for {config.name}",
                "Add dynamic_batching { }",
            )
        elif config.dynamic_batching.preserve_ordering:
            yield _fault(
                shapes.BY_SHAPE,
                "requests cannot overtake each other while 'preserve_ordering' is true for "
                f"{config.name}",
                "Write preserve_ordering: false, or remove batch_by_shape",
            )
        if padding is None and (ahead.width or ahead.edges):
            yield _fault(
                shapes.BUCKET,
                f"requests of different shapes share no batch unless it is padded for "
                f"{config.name}",
                'Add parameters { key: "padding" value: { string_value: "true" } }, or remove it',
            )


def _padding(config: ModelConfig, padding: PaddingParameters) -> Iterator[Fault]:
    problem = ""
    if config.ensemble_scheduling is not None:
        problem = "an ensemble runs no batches of its own: write it in the models of its steps"
    elif config.sequence_batching is not None:
        problem = "sequences are not padded"
    elif config.max_batch_size < 1:
        problem = "tensors without a batch dimension (max_batch_size: 0) are not joined"
    elif config.dynamic_batching is None and padding.multiple == 1 and not padding.masks:
        problem = "requests share no batches without dynamic_batching"
    if problem:
        yield _fault(
            shapes.PADDING,
            f"{problem}, for {config.name}",
            "Remove padding, or write what it needs",
        )
        return
    inputs = {tensor.name: tensor for tensor in config.input}
    variable = [name for name, tensor in inputs.items() if _may_be_padded(tensor)]
    if padding.fills is None and not variable:
        yield _fault(
            shapes.PADDING,
            f"no input of {config.name} has a variable dimension that could be padded",
            "Write dims with -1 where requests differ, or remove padding",
        )
    for name, text in (padding.fills or {}).items():
        yield from _padded_input(config, name, text, inputs)
    padded = variable if padding.fills is None else list(padding.fills)
    for name in padding.masks:
        if name not in padded:
            yield _fault(
                shapes.MASK,
                f"'{name}' is no padded input of {config.name}",
                f"Write one of: {', '.join(padded)}",
            )
    known: dict[str, ModelInput | ModelOutput] = {**inputs}
    known.update({tensor.name: tensor for tensor in config.output})
    for name, lengths in padding.axes.items():
        yield from _axes(config, name, lengths, known)


def _padded_input(
    config: ModelConfig, name: str, text: str, inputs: dict[str, ModelInput]
) -> Iterator[Fault]:
    tensor = inputs.get(name)
    if tensor is None:
        yield _fault(
            shapes.PADDING,
            f"{config.name} has no input '{name}'",
            f"Its inputs are: {', '.join(inputs)}",
        )
        return
    if not _may_be_padded(tensor):
        why = "is ragged" if tensor.allow_ragged_batch else "has no variable dimension"
        yield _fault(shapes.PADDING, f"input '{name}' of {config.name} {why}", "Leave it out")
    datatype = dtypes.BY_CONFIG_NAME.get(tensor.data_type)
    if datatype is None:  # the tensor rules say so
        return
    try:
        fill_value(datatype, text)
    except ValueError:
        yield _fault(
            shapes.PADDING,
            f"'{text}' is no value for the {tensor.data_type} input '{name}' of {config.name}",
            f"Write for example {name}=0",
        )


def _axes(
    config: ModelConfig,
    name: str,
    lengths: tuple[str, ...],
    known: dict[str, ModelInput | ModelOutput],
) -> Iterator[Fault]:
    tensor = known.get(name)
    if tensor is None:
        yield _fault(
            shapes.AXES,
            f"{config.name} has no input or output '{name}'",
            f"Write one of: {', '.join(known)}",
        )
        return
    count = tensor.dims.count(-1)
    if len(lengths) != count:
        yield _fault(
            shapes.AXES,
            f"'{name}' of {config.name} has {count} variable dimensions, found names for "
            f"{len(lengths)}",
            f"Write {name}[{', '.join('nmkabcd'[:count]) or 'nothing'}], a name for each",
        )
    if isinstance(tensor, ModelInput) and shapes.NO_LENGTH in lengths:
        yield _fault(
            shapes.AXES,
            f"every variable dimension of the padded input '{name}' of {config.name} is a length",
            "Give it a name",
        )


def _may_be_padded(tensor: ModelInput) -> bool:
    return -1 in tensor.dims and not tensor.allow_ragged_batch


def _fault(key: str, message: str, fix: str) -> Fault:
    return Fault(f"parameters['{key}']", message, fix)

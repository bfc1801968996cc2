"""Rules about warm-up requests: they must be requests the model would accept."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig, ModelInput, ModelWarmup
from shoal.config.rules.fault import Fault


def warmup(config: ModelConfig) -> Iterator[Fault]:
    """Batch sizes fit, and inputs are known, complete and of the right type and shape."""
    for index, sample in enumerate(config.model_warmup):
        if sample.batch_size == 0:  # skipped when it would run
            continue
        at = f"model_warmup[{index}]"
        named = f"warmup setting '{sample.name}' of model {config.name}"
        if 0 < config.max_batch_size < sample.batch_size:
            yield Fault(
                f"{at}.batch_size",
                f"{named} has batch size {sample.batch_size}, more than max_batch_size "
                f"{config.max_batch_size}",
                f"Write batch_size: {config.max_batch_size} or less",
            )
        for name, tensor in sample.inputs.items():
            yield from _input(config, f"{at}.inputs[{name}]", name, tensor)
        if not config.input:
            continue
        for known in config.input:
            if known.name not in sample.inputs and not known.optional:
                yield Fault(
                    f"{at}.inputs",
                    f"{named} has no data for input '{known.name}'",
                    f'Add inputs: {{ key: "{known.name}" value: {{ data_type: {known.data_type} '
                    f"dims: {list(known.dims)} zero_data: true }} }}",
                )


def _input(config: ModelConfig, at: str, name: str, tensor: ModelWarmup.Input) -> Iterator[Fault]:
    known = {entry.name: entry for entry in config.input}
    if tensor.data_type == "TYPE_INVALID":
        yield Fault(
            f"{at}.data_type",
            f"warmup setting expects input '{name}' to have data_type set for {config.name}",
            "Write the data_type that the input has",
        )
    if any(dim < 0 for dim in tensor.dims):
        yield Fault(
            f"{at}.dims",
            "warmup setting expects all variable-size dimensions are specified for input "
            f"'{name}' for {config.name}, found {list(tensor.dims)}",
            "Write a size that requests will have in place of -1",
        )
    sources = (tensor.zero_data, tensor.random_data, tensor.input_data_file)
    if all(source is None for source in sources):
        yield Fault(
            at,
            f"warmup setting expects input '{name}' to have input_data_type set for {config.name}",
            'Write zero_data: true, random_data: true or input_data_file: "name"',
        )
    if name in known:
        yield from _against(config, at, tensor, known[name])
    elif known and config.sequence_batching is None and not config.batch_input:
        # With those two, the server's own inputs may be given a value as well.
        yield Fault(
            at,
            f"warmup setting has unexpected input '{name}' for {config.name}",
            f"Its inputs are: {', '.join(known)}",
        )


def _against(
    config: ModelConfig, at: str, tensor: ModelWarmup.Input, known: ModelInput
) -> Iterator[Fault]:
    if tensor.data_type not in (known.data_type, "TYPE_INVALID"):
        yield Fault(
            f"{at}.data_type",
            f"warmup setting gives input '{known.name}' data_type {tensor.data_type}, but model "
            f"{config.name} expects {known.data_type}",
            f"Write data_type: {known.data_type}",
        )
    fits = len(tensor.dims) == len(known.dims) and all(
        want == -1 or got in (want, -1) for want, got in zip(known.dims, tensor.dims, strict=True)
    )
    if not fits:
        yield Fault(
            f"{at}.dims",
            f"warmup setting gives input '{known.name}' dims {list(tensor.dims)}, but model "
            f"{config.name} expects {list(known.dims)}",
            "Write the same number of dims, without the batch dimension"
            if config.max_batch_size > 0
            else "Write the same number of dims",
        )

"""How a model is compiled: device, threads and streams, from parameters, settings and cores.

Together the instances use the available cores: one stream each, and the threads divided among
them. Parameters have the old and new names of Triton's backend, and OpenVINO's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.config.parameter import COUNT
from shoal.config.parameters import Parameters


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The settings of a compiled model."""

    device: str = "CPU"
    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    extension: Path | None = None  # a library of custom operators
    fixed_batch: bool = False  # SKIP_DYNAMIC_BATCHSIZE: every execution has max_batch_size rows
    pad_batch: bool = False  # ENABLE_BATCH_PADDING: smaller batches are padded
    reshape: bool = False  # RESHAPE_IO_LAYOUTS: the config's dims replace the model's


def compile_options(parameters: Parameters, instances: int, cores: int) -> CompileOptions:
    """The options in a model's parameters; ConfigError for a wrong value."""
    device = parameters.text("TARGET_DEVICE").upper() or "CPU"
    extension = parameters.text("CPU_EXTENSION_PATH")
    padding = parameters.flag("ENABLE_BATCH_PADDING") is True
    return CompileOptions(
        device=device,
        properties=_properties(parameters, device, instances, cores),
        extension=Path(extension) if extension else None,
        fixed_batch=padding or parameters.flag("SKIP_DYNAMIC_BATCHSIZE") is True,
        pad_batch=padding,
        reshape=parameters.flag("RESHAPE_IO_LAYOUTS") is True,
    )


def _properties(
    parameters: Parameters, device: str, instances: int, cores: int
) -> dict[str, str | int | bool]:
    properties: dict[str, str | int | bool] = {}
    hint = parameters.text("PERFORMANCE_HINT")
    if hint:
        properties["PERFORMANCE_HINT"] = hint
    streams = _streams(parameters)
    if streams:
        properties["NUM_STREAMS"] = streams
    elif not hint and device == "CPU":
        properties["NUM_STREAMS"] = max(1, min(instances, cores))
    precision = parameters.text("INFERENCE_PRECISION_HINT")
    if parameters.flag("HINT_BF16"):
        precision = "bf16"
    if precision:
        properties["INFERENCE_PRECISION_HINT"] = precision
    if device == "CPU":
        threads = parameters.count("INFERENCE_NUM_THREADS")
        properties["INFERENCE_NUM_THREADS"] = threads or cores
        # Other models run too, and a container's cores need not be the machine's first ones.
        pinned = parameters.text("CPU_BIND_THREAD")
        properties["ENABLE_CPU_PINNING"] = pinned in ("YES", "NUMA")
        compiling = parameters.count("COMPILATION_NUM_THREADS")
        if compiling:
            properties["COMPILATION_NUM_THREADS"] = compiling
    return properties


def _streams(parameters: Parameters) -> str | int:
    """A number of streams, the runtime's choice, or 0 where none is set."""
    text = parameters.text("NUM_STREAMS")
    words = text.upper().removeprefix("CPU_THROUGHPUT_")
    if words in ("AUTO", "NUMA"):
        return words
    try:
        return COUNT.parse(text) if text else 0
    except ValueError:
        raise parameters.wrong("NUM_STREAMS", text) from None

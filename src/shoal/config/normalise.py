"""Fill in what a config may leave out: name, defaults, backend, instance groups.

    normalise --> infer_backend --> (backend completes) --> normalise --> resolve_instance_groups

Every function takes a config and returns a new one that keeps what the user wrote. All are
idempotent, so `normalise` also runs after the backend has determined the batch size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shoal.config.model import (
    ModelConfig,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelVersionPolicy,
)
from shoal.config.platforms import infer_backend
from shoal.errors import ConfigError

__all__ = ["infer_backend", "normalise", "resolve_instance_groups"]

_SEQUENCE_IDLE_MICROSECONDS = 1_000_000


def normalise(config: ModelConfig, *, directory_name: str, file: str) -> ModelConfig:
    """Set the name and every default that does not depend on the model file or the machine.

    ConfigError when the config's name differs from its directory's.
    """
    if config.name and config.name != directory_name:
        raise ConfigError(
            f"unexpected directory name '{directory_name}' for model '{config.name}', directory "
            "name must equal model name",
            file=file,
            field="name",
            fix=f'Write name: "{directory_name}", leave it out, or rename the directory',
        )
    config = dataclasses.replace(
        config,
        name=directory_name,
        version_policy=config.version_policy
        or ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=1)),
    )
    config = _with_batching_defaults(config)
    if config.ensemble_scheduling is not None or config.platform == "ensemble":
        return config  # an ensemble has nothing to optimise
    optimization = config.optimization or ModelOptimizationPolicy()
    pinned = ModelOptimizationPolicy.PinnedMemoryBuffer(enable=True)
    return dataclasses.replace(
        config,
        optimization=dataclasses.replace(
            optimization,
            input_pinned_memory=optimization.input_pinned_memory or pinned,
            output_pinned_memory=optimization.output_pinned_memory or pinned,
        ),
    )


def _with_batching_defaults(config: ModelConfig) -> ModelConfig:
    whole_batch = (config.max_batch_size,) if config.max_batch_size > 0 else ()
    dynamic = config.dynamic_batching
    if dynamic is not None and not dynamic.preferred_batch_size:
        dynamic = dataclasses.replace(dynamic, preferred_batch_size=whole_batch)
    sequence = config.sequence_batching
    if sequence is not None:
        oldest = sequence.oldest
        if oldest is not None and not oldest.preferred_batch_size:
            oldest = dataclasses.replace(oldest, preferred_batch_size=whole_batch)
        idle = sequence.max_sequence_idle_microseconds or _SEQUENCE_IDLE_MICROSECONDS
        sequence = dataclasses.replace(sequence, oldest=oldest, max_sequence_idle_microseconds=idle)
    return dataclasses.replace(config, dynamic_batching=dynamic, sequence_batching=sequence)


def resolve_instance_groups(
    config: ModelConfig,
    *,
    default_cpu_count: int,
    gpus: Sequence[int],
    gpu_fallback_cpu: bool,
    file: str,
) -> ModelConfig:
    """Set name, kind, count and GPUs of every instance group; by default there is one group.

    `gpus` are the devices that models may use. KIND_AUTO uses GPUs if all that it lists exist, else
    the CPU. A KIND_GPU group whose GPUs do not exist is a ConfigError; with `gpu_fallback_cpu` it
    uses those that exist, or the CPU if none does.
    """
    if config.ensemble_scheduling is not None or config.platform == "ensemble":
        return config
    groups = config.instance_group or (ModelInstanceGroup(name=config.name),)
    resolved = []
    for index, written in enumerate(groups):
        group = dataclasses.replace(written, name=written.name or f"{config.name}_{index}")
        if group.kind == "KIND_AUTO":
            group = _resolve_auto(group, gpus)
        if group.kind == "KIND_GPU":
            fault = _missing_gpus(group, gpus)
            if fault and not gpu_fallback_cpu:
                raise ConfigError(
                    f"instance group {group.name} of model {config.name} {fault}",
                    file=file,
                    field=f"instance_group[{index}]",
                    fix="Write kind: KIND_CPU, or start the server with --gpu-fallback=cpu",
                )
            group = _use_gpus(group, gpus)
        if group.count < 1:
            count = default_cpu_count if group.kind == "KIND_CPU" else 1
            group = dataclasses.replace(group, count=count)
        resolved.append(group)
    return dataclasses.replace(config, instance_group=tuple(resolved))


def _resolve_auto(group: ModelInstanceGroup, gpus: Sequence[int]) -> ModelInstanceGroup:
    if gpus and set(group.gpus) <= set(gpus):
        return dataclasses.replace(group, kind="KIND_GPU")
    return dataclasses.replace(group, kind="KIND_CPU", gpus=())


def _missing_gpus(group: ModelInstanceGroup, gpus: Sequence[int]) -> str:
    """What is wrong with a KIND_GPU group on this machine, or ""."""
    if not gpus:
        return "has kind KIND_GPU but no GPUs are available"
    for gpu in group.gpus:
        if gpu not in gpus:
            available = ", ".join(map(str, gpus))
            return (
                f"specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum "
                f"required CUDA compute compatibility of 6.000000 are: {available}"
            )
    return ""


def _use_gpus(group: ModelInstanceGroup, gpus: Sequence[int]) -> ModelInstanceGroup:
    """The group on its existing GPUs (all if it lists none), else on the CPU."""
    usable = tuple(gpu for gpu in group.gpus or gpus if gpu in gpus)
    kind = "KIND_GPU" if usable else "KIND_CPU"
    return dataclasses.replace(group, kind=kind, gpus=usable)

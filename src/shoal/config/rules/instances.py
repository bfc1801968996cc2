"""Rules about instance groups, as written or as resolved."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig, ModelInstanceGroup, ModelRateLimiter
from shoal.config.rules.fault import Fault


def instances(config: ModelConfig) -> Iterator[Fault]:
    """Counts, devices and profiles of each group, and at least one instance that is not passive."""
    groups = config.instance_group
    if config.ensemble_scheduling is not None:
        return  # its own rule refuses groups
    for index, group in enumerate(groups):
        name = group.name or f"{config.name}_{index}"
        yield from _group(config, f"instance_group[{index}]", f"instance group {name}", group)
    if groups and all(group.passive for group in groups):
        yield Fault(
            "instance_group",
            f"every instance group of model {config.name} is passive, so no request would ever run",
            "Write passive: false for at least one group",
        )


def _group(config: ModelConfig, at: str, named: str, group: ModelInstanceGroup) -> Iterator[Fault]:
    named = f"{named} of model {config.name}"
    if group.count < 0:
        yield Fault(
            f"{at}.count",
            f"{named} has count {group.count}",
            "Write count: 1, or leave it out for the default",
        )
    if group.gpus and group.kind in ("KIND_CPU", "KIND_MODEL"):
        yield Fault(
            f"{at}.gpus",
            f"{named} has kind {group.kind} but specifies one or more GPUs, "
            f"found gpus {list(group.gpus)}",
            "Remove gpus, or write kind: KIND_GPU",
        )
    for place, gpu in enumerate(group.gpus):
        if gpu < 0:
            message = f"{named} specifies invalid or unsupported gpu id {gpu}"
            yield Fault(f"{at}.gpus", message, "GPUs are numbered from 0")
        elif gpu in group.gpus[:place]:
            message = f"{named} lists gpu {gpu} twice"
            yield Fault(f"{at}.gpus", message, "Raise count for more instances on each GPU")
    yield from _resources(f"{at}.rate_limiter", named, group.rate_limiter)
    if group.profile and config.platform != "tensorrt_plan":
        yield Fault(
            f"{at}.profile",
            f"{named} and platform {config.platform} specifies profile field which is only "
            "supported for TensorRT models",
            "Remove profile",
        )
    for profile in group.profile:
        if not (profile.isascii() and profile.isdecimal()):
            yield Fault(
                f"{at}.profile",
                f"{named} and platform {config.platform} specifies invalid profile {profile}. The "
                "field should contain the string representation of a non-negative integer",
                'Write for example profile: [ "0" ]',
            )


def _resources(at: str, named: str, limiter: ModelRateLimiter | None) -> Iterator[Fault]:
    """Each resource has a name and is listed once."""
    seen: set[str] = set()
    for index, resource in enumerate(limiter.resources if limiter is not None else ()):
        where = f"{at}.resources[{index}].name"
        if not resource.name:
            message = f"a resource of {named} has no name"
            yield Fault(where, message, 'Write for example { name: "R1" count: 1 }')
        elif resource.name in seen:
            message = f"{named} lists the resource '{resource.name}' twice"
            yield Fault(where, message, "Keep one of them, with the count of both")
        seen.add(resource.name)

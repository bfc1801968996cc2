"""Rules about the fields at the top of a config."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig
from shoal.config.rules.fault import Fault


def general(config: ModelConfig) -> Iterator[Fault]:
    """Name, batch size, versions, accelerators, response cache, metrics."""
    if not config.name:
        yield Fault("name", "model configuration must specify 'name'", 'Write name: "my_model"')
    if config.max_batch_size < 0:
        yield Fault(
            "max_batch_size",
            f"'max_batch_size' must be non-negative value for {config.name}, "
            f"found {config.max_batch_size}",
            "Write 0 for a model without a batch dimension, or the largest batch it takes",
        )
    yield from _version_policy(config)
    yield from _accelerators(config)
    if config.response_cache is not None and config.response_cache.enable:
        yield from _response_cache(config)
    if config.model_metrics is not None:
        yield from _metrics(config)


def _version_policy(config: ModelConfig) -> Iterator[Fault]:
    policy = config.version_policy
    if policy is None:
        return
    if policy.latest is not None and policy.latest.num_versions < 1:
        yield Fault(
            "version_policy.latest.num_versions",
            f"version policy 'latest' of {config.name} serves no version, found num_versions 0",
            "Write version_policy: { latest: { num_versions: 1 } }",
        )
    if policy.specific is not None:
        versions = policy.specific.versions
        if not versions:
            yield Fault(
                "version_policy.specific.versions",
                f"version policy 'specific' of {config.name} lists no versions",
                "Write for example version_policy: { specific: { versions: [ 1 ] } }",
            )
        for version in versions:
            if version < 1:
                yield Fault(
                    "version_policy.specific.versions",
                    f"version policy 'specific' of {config.name} lists version {version}, "
                    "but version folders are numbered from 1",
                    "List the numbers of the version folders",
                )


def _accelerators(config: ModelConfig) -> Iterator[Fault]:
    optimization = config.optimization
    if optimization is None or optimization.execution_accelerators is None:
        return
    accelerators = optimization.execution_accelerators
    for side in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        for index, accelerator in enumerate(getattr(accelerators, side)):
            if not accelerator.name:
                yield Fault(
                    f"optimization.execution_accelerators.{side}[{index}].name",
                    f"an execution accelerator of {config.name} has no name",
                    'Write for example name: "tensorrt", or "openvino" for a CPU',
                )


def _response_cache(config: ModelConfig) -> Iterator[Fault]:
    reason = ""
    if config.sequence_batching is not None:
        reason = "sequence batching scheduler"
    elif config.model_transaction_policy is not None and config.model_transaction_policy.decoupled:
        reason = "'decoupled' transaction policy"
    if reason:
        yield Fault(
            "response_cache.enable",
            f"Response Cache does not currently support model {config.name} with {reason}. "
            "Please disable the response cache",
            "Write response_cache: { enable: false }",
        )


def _metrics(config: ModelConfig) -> Iterator[Fault]:
    assert config.model_metrics is not None
    example = (
        'Write metric_control: { metric_identifier: { family: "nv_inference_first_response_'
        'histogram_ms" } histogram_options: { buckets: [ 1, 10, 100 ] } }'
    )
    for index, control in enumerate(config.model_metrics.metric_control):
        at = f"model_metrics.metric_control[{index}]"
        if control.metric_identifier is None:
            yield Fault(at, "metric control must specify 'metric_identifier'", example)
        elif not control.metric_identifier.family:
            yield Fault(
                f"{at}.metric_identifier.family",
                "metric identifier must specify non-empty 'family'",
                example,
            )
        if control.histogram_options is None:
            yield Fault(at, "metric control must specify 'histogram_options'", example)
        elif not control.histogram_options.buckets:
            yield Fault(
                f"{at}.histogram_options.buckets",
                "histogram options must specify non-empty 'buckets'",
                example,
            )

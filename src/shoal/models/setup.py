"""Builds the scheduler and the execution placement of a model from its config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.backends.base import LoadedModel
from shoal.config import shapes
from shoal.config.model import ModelConfig, ModelQueuePolicy
from shoal.config.parameters import value_of
from shoal.core.concurrency import ExpectedConcurrency
from shoal.instance.execution_placement import ExecutionMode, ExecutionPlacement
from shoal.instance.health import ModelHealth
from shoal.models.spec import ModelSpec
from shoal.scheduler import sequence_setup
from shoal.scheduler.admission import AdmissionControl
from shoal.scheduler.admission_queue import AdmissionQueue
from shoal.scheduler.base import OnDropped, Scheduler
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.concurrency import ConcurrentExecutions
from shoal.scheduler.look_ahead import DEFAULT_WINDOW, LookAhead
from shoal.scheduler.policy import BatchPolicy, Policy, SingleRequestPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue

_NS_PER_US = 1000


def build_scheduler(
    spec: ModelSpec, on_dropped: OnDropped, expected: ExpectedConcurrency | None = None
) -> Scheduler:
    """The queue of a version; `on_dropped` answers requests that are dropped from it.

    `expected` is kept up to date with the number of executions at the same time.
    """
    config = spec.config
    target_ns = spec.target_latency_ns
    if config.sequence_batching is not None:
        return sequence_setup.build(
            config,
            spec.folder,
            on_dropped=on_dropped,
            hold_until=spec.context.hold_until,
            target_ns=target_ns,
        )
    batching = config.dynamic_batching
    # With a response cache, the caching scheduler keeps the order.
    ordered = batching is not None and batching.preserve_ordering and not spec.caches_responses
    return Batcher(
        _batch_policy(config),
        _queue_of(config, target_ns),
        on_dropped=on_dropped,
        preserve_ordering=ordered,
        hold_until=spec.context.hold_until,
        loop=spec.context.loop,
        concurrent=_concurrent(spec, expected),
    )


def _concurrent(
    spec: ModelSpec, expected: ExpectedConcurrency | None
) -> ConcurrentExecutions | None:
    """For instances that share the cores; the rate limiter decides itself which of them run."""
    config = spec.config
    if spec.limited or any(group.kind != "KIND_CPU" for group in config.instance_group):
        return None
    return ConcurrentExecutions(
        expected,
        padded=shapes.padding_of(config) is not None,
        ragged=any(tensor.allow_ragged_batch for tensor in config.input),
    )


def _batch_policy(config: ModelConfig) -> Policy:
    """The batch decision for a config: to add a policy, choose it here."""
    batching = config.dynamic_batching
    if batching is None:
        return SingleRequestPolicy()
    policy = BatchPolicy(
        max(1, config.max_batch_size),
        frozenset(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * _NS_PER_US,
    )
    ahead = shapes.by_shape_of(config)
    return policy if ahead is None else LookAhead(policy, ahead.window or DEFAULT_WINDOW)


def build_health(spec: ModelSpec) -> ModelHealth | None:
    """Watches the executions of a model with `execution_timeout_ms`; None for others."""
    limit_ms = value_of(spec.config, "execution_timeout_ms")
    if limit_ms is None:
        return None
    replacements = value_of(spec.config, "execution_timeout_replacements")
    if replacements is None:
        return ModelHealth(spec.name, limit_ms)
    return ModelHealth(spec.name, limit_ms, replacements)


def build_execution_placement(spec: ModelSpec, loaded: LoadedModel) -> ExecutionPlacement:
    """Whether the model may run on the event loop: `parameters { key: "execution" … }`."""
    text = value_of(spec.config, "execution") or spec.context.execution
    forced = None if text == "auto" else ExecutionMode(text)
    if spec.context.loop is None:
        return ExecutionPlacement(allowed=False, why="there is no event loop to run it on")
    if spec.limited:
        return ExecutionPlacement(allowed=False, why="its instances wait for the rate limiter")
    if value_of(spec.config, "execution_timeout_ms") is not None:
        return ExecutionPlacement(
            allowed=False, why="it has a time limit, which the event loop cannot keep"
        )
    config = spec.config
    batches = config.dynamic_batching is not None or config.sequence_batching is not None
    return ExecutionPlacement(
        allowed=loaded.may_run_on_loop,
        forced=forced,
        max_rows=config.max_batch_size if batches else 0,
    )


def _queue_of(config: ModelConfig, target_ns: int) -> RequestQueue:
    """The queue of a config; with a target latency, one that refuses requests."""
    batching = config.dynamic_batching
    make: Callable[..., RequestQueue] = RequestQueue
    if target_ns:
        max_rows = 0 if batching is None else config.max_batch_size
        make = partial(AdmissionQueue, AdmissionControl(target_ns, max_rows))
    if batching is None:
        return make(_policy_of_parameters(config))
    return make(
        _queue_policy(batching.default_queue_policy),
        levels=max(1, batching.priority_levels),
        default_level=max(1, batching.default_priority_level),
        level_policies={
            level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()
        },
    )


def _queue_policy(policy: ModelQueuePolicy | None) -> QueuePolicy:
    if policy is None:
        return QueuePolicy()
    return QueuePolicy(
        default_timeout_ns=policy.default_timeout_microseconds * _NS_PER_US,
        allow_override=policy.allow_timeout_override,
        delay_expired=policy.timeout_action == "DELAY",
        max_size=policy.max_queue_size,
    )


def _policy_of_parameters(config: ModelConfig) -> QueuePolicy:
    """Queue limits for a config without a `dynamic_batching` block."""
    return QueuePolicy(
        default_timeout_ns=(value_of(config, "default_timeout_microseconds") or 0) * _NS_PER_US,
        max_size=value_of(config, "max_queue_size") or 0,
        timeout_from_request=True,
    )

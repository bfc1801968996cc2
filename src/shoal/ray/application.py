"""The Ray Serve application: one deployment for each group of replicas, and the ingress.

serve deploy cluster.yaml               # import_path: shoal.ray:app, args: ClusterConfig
serve run cluster.yaml                  # the same in the foreground
shoal ray up models --max-replicas 8    # the same, without a file
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import Unsupported
from shoal.ray.config import ClusterConfig, GroupConfig, from_dict, to_dict
from shoal.ray.replica import INGRESS, Replica

_STOP_SECS = 20.0  # to tell the ingress and to end, besides the time that the server may take
_WAIT_LOOP_SECS = 0.1
_HEALTH_PERIOD_SECS = 2.0
_HEALTH_TIMEOUT_SECS = 10.0
_LOGGING = {"enable_access_log": False}  # heartbeats are calls


def app(args: Mapping[str, Any]) -> Any:
    """The application of a config, as `serve run` and `serve deploy` build it.

    Raises InvalidArgument for a config that cannot work.
    """
    try:
        from ray import serve
    except ImportError:
        raise Unsupported("Ray Serve is not installed: pip install 'shoal[ray]'") from None
    from shoal.ray.ingress import Ingress

    config = from_dict(args)
    document = to_dict(config)
    groups = [_group(serve, config, group, document) for group in config.groups]
    make: Any = serve.deployment
    ingress = make(
        Ingress,
        name=INGRESS,
        num_replicas=1,
        max_ongoing_requests=10_000,
        health_check_period_s=_HEALTH_PERIOD_SECS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECS,
        graceful_shutdown_timeout_s=_STOP_SECS,
        graceful_shutdown_wait_loop_s=_WAIT_LOOP_SECS,
        logging_config=_LOGGING,
        max_surge_percent=100,  # the new one takes over the old one's HAProxy
        ray_actor_options=_actor_options(0.5, 0.0, 0, config.ingress.node_labels, {}, {}),
    )
    return ingress.bind(document, *groups)


def _group(serve: Any, config: ClusterConfig, group: GroupConfig, document: dict[str, Any]) -> Any:
    scaling = group.scaling
    deployment = serve.deployment(
        Replica,
        name=group.name,
        health_check_period_s=_HEALTH_PERIOD_SECS,
        health_check_timeout_s=_HEALTH_TIMEOUT_SECS,
        graceful_shutdown_timeout_s=group.drain_secs + group.exit_timeout_secs + _STOP_SECS,
        graceful_shutdown_wait_loop_s=_WAIT_LOOP_SECS,
        # A new version starts before an old one stops, and all old ones go on if it cannot start.
        max_surge_percent=1,
        max_constructor_retry_count=3,
        logging_config=_LOGGING,
        ray_actor_options=_actor_options(
            group.cpus,
            group.gpus,
            group.memory_mb,
            group.labels,
            group.resources,
            group.runtime_env,
        ),
        autoscaling_config={
            "min_replicas": group.min_replicas,
            "max_replicas": group.max_replicas,
            "initial_replicas": group.min_replicas,
            "metrics_interval_s": scaling.interval_secs,
            "look_back_period_s": 2 * scaling.interval_secs,
            "upscale_delay_s": 0,  # the policy waits as its config says
            "downscale_delay_s": 0,
            "policy": {
                "policy_function": "shoal.ray.policy:Policy",
                "policy_kwargs": document["groups"][config.groups.index(group)]["scaling"],
            },
        },
    )
    return deployment.bind(document, group.name)


def _actor_options(
    cpus: float,
    gpus: float,
    memory_mb: int,
    labels: Mapping[str, str],
    resources: Mapping[str, float],
    runtime_env: Mapping[str, Any],
) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
    if memory_mb:
        options["memory"] = memory_mb << 20
    if labels:
        options["label_selector"] = dict(labels)
    if resources:
        options["resources"] = dict(resources)
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return options

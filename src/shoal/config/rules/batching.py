"""Rules about dynamic and sequence batching."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig, ModelDynamicBatching, ModelSequenceBatching
from shoal.config.rules.fault import Fault

_BOOLEAN_CONTROLS = (
    "CONTROL_SEQUENCE_START",
    "CONTROL_SEQUENCE_END",
    "CONTROL_SEQUENCE_READY",
)
_CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def dynamic_batching(config: ModelConfig) -> Iterator[Fault]:
    """Preferred sizes, priority levels, and what preserve_ordering excludes."""
    batching = config.dynamic_batching
    if batching is None:
        return
    yield from _preferred(
        config,
        "dynamic_batching.preferred_batch_size",
        "dynamic batching preferred size",
        batching.preferred_batch_size,
    )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            yield Fault(
                "dynamic_batching.default_priority_level",
                f"default priority level must be in range [1, {levels}] for {config.name}, "
                f"found {batching.default_priority_level}",
                f"Write default_priority_level: {(levels + 1) // 2}; level 1 is served first",
            )
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                yield Fault(
                    f"dynamic_batching.priority_queue_policy[{level}]",
                    f"priority queue policy must have priority level in range [1, {levels}] for "
                    f"{config.name}, found {level}",
                    f"Use keys 1 to {levels}, or raise priority_levels",
                )
    if batching.preserve_ordering:
        yield from _preserve_ordering(config, batching)


def _preserve_ordering(config: ModelConfig, batching: ModelDynamicBatching) -> Iterator[Fault]:
    if batching.priority_levels > 1:
        yield Fault(
            "dynamic_batching.priority_levels",
            "Only one priority level is allowed when 'preserve_ordering' is true for "
            f"{config.name}, found {batching.priority_levels}",
            "Write preserve_ordering: false, or remove priority_levels",
        )
    policies = dict(batching.priority_queue_policy)
    named = {f"priority_queue_policy[{level}]": policy for level, policy in policies.items()}
    if batching.default_queue_policy is not None:
        named["default_queue_policy"] = batching.default_queue_policy
    for name, policy in named.items():
        if policy.default_timeout_microseconds and policy.timeout_action == "DELAY":
            yield Fault(
                f"dynamic_batching.{name}.timeout_action",
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is "
                f"true for {config.name}",
                "Write timeout_action: REJECT, or preserve_ordering: false",
            )


def _preferred(config: ModelConfig, at: str, what: str, sizes: tuple[int, ...]) -> Iterator[Fault]:
    for size in sizes:
        if size <= 0:
            yield Fault(
                at,
                f"{what} must be positive for {config.name}, found {size}",
                "Write sizes from 1 to max_batch_size",
            )
        elif size > config.max_batch_size:
            yield Fault(
                at,
                f"{what} must be <= max batch size for {config.name}, "
                f"found {size} with max_batch_size {config.max_batch_size}",
                f"Raise max_batch_size to {size}, or remove {size} here",
            )


def sequence_batching(config: ModelConfig) -> Iterator[Fault]:
    """Control tensors and the limits of the two strategies."""
    batching = config.sequence_batching
    if batching is None:
        return
    yield from _control_names(config, batching)
    for kind in _BOOLEAN_CONTROLS:
        yield from _boolean_control(config, batching, kind)
    yield from _correlation_id(config, batching)
    if batching.oldest is not None:
        yield from _preferred(
            config,
            "sequence_batching.oldest.preferred_batch_size",
            "sequence batching preferred batch size",
            batching.oldest.preferred_batch_size,
        )
    if batching.direct is not None:
        utilization = batching.direct.minimum_slot_utilization
        if not 0.0 <= utilization <= 1.0:
            yield Fault(
                "sequence_batching.direct.minimum_slot_utilization",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for "
                f"{config.name}, found {utilization}",
                "Write for example minimum_slot_utilization: 0.5",
            )


def _control_names(config: ModelConfig, batching: ModelSequenceBatching) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, control_input in enumerate(batching.control_input):
        at = f"sequence_batching.control_input[{index}].name"
        if not control_input.name:
            yield Fault(
                at,
                f"sequence batching control tensor must have a name for {config.name}",
                'Write for example name: "START"',
            )
        elif control_input.name in seen:
            yield Fault(
                at,
                f"sequence batching control tensor '{control_input.name}' is specified for "
                f"multiple control kinds for {config.name}",
                "Use one tensor for each control",
            )
        seen.add(control_input.name)


def _controls(
    config: ModelConfig, batching: ModelSequenceBatching, kind: str
) -> Iterator[tuple[str, ModelSequenceBatching.Control | Fault]]:
    """The controls of one kind with their fields; a second one is a fault."""
    found = False
    for index, control_input in enumerate(batching.control_input):
        for place, control in enumerate(control_input.control):
            if control.kind != kind:
                continue
            at = f"sequence_batching.control_input[{index}].control[{place}]"
            if found:
                message = f"sequence batching specifies multiple {kind} tensors for {config.name}"
                yield at, Fault(at, message, "Keep one of them")
            found = True
            yield at, control


def _boolean_control(
    config: ModelConfig, batching: ModelSequenceBatching, kind: str
) -> Iterator[Fault]:
    for at, control in _controls(config, batching, kind):
        if isinstance(control, Fault):
            yield control
            continue
        values = {
            "int32_false_true": len(control.int32_false_true),
            "fp32_false_true": len(control.fp32_false_true),
            "bool_false_true": len(control.bool_false_true),
        }
        given = [name for name, count in values.items() if count]
        if not given:
            yield Fault(
                at,
                "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
                f"'bool_false_true' for {kind} for {config.name}",
                "Write for example int32_false_true: [ 0, 1 ]",
            )
        elif len(given) > 1:
            yield Fault(
                at,
                "sequence batching specifies more than one from 'int32_false_true', "
                f"'fp32_false_true' and 'bool_false_true' for {kind} for {config.name}",
                f"Keep one of {', '.join(given)}",
            )
        elif values[given[0]] != 2:
            yield Fault(
                f"{at}.{given[0]}",
                f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} "
                f"for {config.name}, found {values[given[0]]}",
                "Write the value for false, then the value for true",
            )


def _correlation_id(config: ModelConfig, batching: ModelSequenceBatching) -> Iterator[Fault]:
    kind = _CORRELATION_ID
    for at, control in _controls(config, batching, kind):
        if isinstance(control, Fault):
            yield control
            continue
        if control.int32_false_true or control.fp32_false_true or control.bool_false_true:
            yield Fault(
                at,
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' "
                f"or 'bool_false_true' for {kind} for {config.name}",
                "Write data_type: TYPE_UINT64 instead",
            )
        if control.data_type not in _CORRELATION_TYPES:
            yield Fault(
                f"{at}.data_type",
                f"unexpected data type for control {kind} for {config.name}. Allowed data types "
                "are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
                f"Write data_type: TYPE_UINT64, found {control.data_type}",
            )

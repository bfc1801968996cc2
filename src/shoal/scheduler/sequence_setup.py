"""Builds the batcher of a config's `sequence_batching` block."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.config.model import ModelConfig
from shoal.scheduler.base import OnDropped
from shoal.scheduler.policy import BatchPolicy
from shoal.scheduler.sequence import SequenceBatcher
from shoal.scheduler.sequence_controls import Controls
from shoal.scheduler.sequence_policy import DirectPolicy
from shoal.scheduler.sequence_state import StateStore
from shoal.scheduler.sequence_turn import SequenceSetup

_NS_PER_US = 1000


def read_setup(config: ModelConfig, model_folder: Path) -> SequenceSetup:
    """Everything about a model's sequences but when they run. Raises ConfigError."""
    batching = config.sequence_batching
    assert batching is not None
    states = StateStore.read(config, model_folder)
    listed = {tensor.name for tensor in config.output}
    policy = config.model_transaction_policy
    decoupled = policy is not None and policy.decoupled
    slots = max(1, config.max_batch_size)
    if batching.oldest is not None:
        slots = batching.oldest.max_candidate_sequences or slots
    return SequenceSetup(
        model_name=config.name,
        controls=Controls(config),
        states=states,
        slots=slots,
        keeps_slots=batching.oldest is None,
        iterative=batching.iterative_sequence,
        max_idle_ns=batching.max_sequence_idle_microseconds * _NS_PER_US,
        hidden_outputs=frozenset(states.outputs) - listed,
        waits_for_answers=not decoupled or bool(states.outputs),
    )


def build(
    config: ModelConfig,
    model_folder: Path,
    *,
    on_dropped: OnDropped,
    hold_until: int = 0,
    target_ns: int = 0,
) -> SequenceBatcher:
    """The batcher of a model whose config has a `sequence_batching` block. Raises ConfigError."""
    batching = config.sequence_batching
    assert batching is not None
    setup = read_setup(config, model_folder)
    policy: DirectPolicy | BatchPolicy
    if batching.oldest is not None:
        policy = BatchPolicy(
            max(1, config.max_batch_size),
            frozenset(batching.oldest.preferred_batch_size),
            batching.oldest.max_queue_delay_microseconds * _NS_PER_US,
        )
    elif batching.direct is not None:
        policy = DirectPolicy(
            setup.slots,
            batching.direct.max_queue_delay_microseconds * _NS_PER_US,
            batching.direct.minimum_slot_utilization,
        )
    else:
        policy = DirectPolicy(setup.slots)
    return SequenceBatcher(
        setup,
        policy,
        on_dropped=on_dropped,
        preserve_ordering=batching.oldest is not None and batching.oldest.preserve_ordering,
        hold_until=hold_until,
        hold_backlog_until=_held_backlog() if hold_until else 0,
        target_ns=target_ns,
    )


def _held_backlog() -> int:
    """How many requests the backlog has to collect first, in tests of batching."""
    text = os.environ.get("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "")
    return int(text) if text.isdecimal() else 0

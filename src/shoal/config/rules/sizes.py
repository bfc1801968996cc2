"""Rules about numbers that take memory or time: a config may come from a client."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.config.model import ModelConfig
from shoal.config.rules.fault import Fault

_MOST_INSTANCES = 4096  # in one group
_MOST_SLOTS = 1 << 20  # for the sequences of one instance
_MOST_ROWS = 1 << 16  # of one warm-up sample
_MOST_RUNS = 1_000_000  # of one warm-up sample
_MOST_ELEMENTS = 1 << 30  # of one warm-up sample, or of one state


def sizes(config: ModelConfig) -> Iterator[Fault]:
    """Instances, slots of sequences, warm-up samples and states that could exist."""
    for index, group in enumerate(config.instance_group):
        yield from _at_most(_MOST_INSTANCES, group.count, f"instance_group[{index}].count")
    sequences = config.sequence_batching
    if sequences is not None:
        if sequences.oldest is not None:
            candidates = sequences.oldest.max_candidate_sequences
            field = "sequence_batching.oldest.max_candidate_sequences"
            yield from _at_most(_MOST_SLOTS, candidates, field)
        else:
            yield from _at_most(_MOST_SLOTS, config.max_batch_size, "max_batch_size")
        for index, state in enumerate(sequences.state):
            field = f"sequence_batching.state[{index}]"
            yield from _at_most(_MOST_ELEMENTS, _elements(state.dims), f"{field}.dims")
            for initial in state.initial_state:
                elements = _elements(initial.dims)
                yield from _at_most(_MOST_ELEMENTS, elements, f"{field}.initial_state[0].dims")
    for index, sample in enumerate(config.model_warmup):
        field = f"model_warmup[{index}]"
        yield from _at_most(_MOST_ROWS, sample.batch_size, f"{field}.batch_size")
        yield from _at_most(_MOST_RUNS, sample.count, f"{field}.count")
        elements = sum(_elements(tensor.dims) for tensor in sample.inputs.values())
        yield from _at_most(_MOST_ELEMENTS, elements * max(1, sample.batch_size), f"{field}.inputs")


def _elements(dims: tuple[int, ...]) -> int:
    return math.prod(max(1, dim) for dim in dims)


def _at_most(most: int, found: int, field: str) -> Iterator[Fault]:
    if found > most:
        name = field.rpartition(".")[2]
        unit = " elements" if most == _MOST_ELEMENTS else ""
        yield Fault(
            field, f"{name} may have at most {most}{unit}, found {found}", f"Write {most} or less"
        )

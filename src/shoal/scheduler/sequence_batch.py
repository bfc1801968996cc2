"""Making a batch of sequences: the next request of each, with what the server adds to it.

No lock and no clock: the batcher says which sequences go.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.reply import DISCARD
from shoal.core.request import Request, State
from shoal.core.tensor import Tensor
from shoal.scheduler.sequence_policy import Head
from shoal.scheduler.sequence_table import Lane, SequenceRun
from shoal.scheduler.sequence_turn import SequenceSetup, Turn, filler


def batch_key(run: SequenceRun, setup: SequenceSetup) -> object:
    """What must be equal for the next requests of two sequences to share a batch."""
    request = run.waiting[0]
    states = setup.states
    if not states.has_variable_dims:
        return request.batch_key
    if run.states is None or request.flags & Request.SEQUENCE_START:
        return (request.batch_key, states.initial_shapes)
    return (request.batch_key, run.states.shapes)


def heads(lane: Lane, setup: SequenceSetup) -> list[Head | None]:
    """The next request of every slot, None where there is none."""
    return [
        Head(batch_key(run, setup), run.waiting[0].queued_ns)
        if run is not None and run in lane.ready
        else None
        for run in lane.slots
    ]


def take(lane: Lane, runs: Sequence[SequenceRun | None], setup: SequenceSetup) -> list[Request]:
    """The next requests of `runs`, ready to be executed, with a filler for each None.

    The lane is busy from here on. Sequences whose END is in the batch still have their slots.
    """
    taken = [None if run is None else _next(lane, run, setup) for run in runs]
    like = next(request for request in taken if request is not None)
    lane.busy = True
    return [filler(like) if request is None else request for request in taken]


def _next(lane: Lane, run: SequenceRun, setup: SequenceSetup) -> Request:
    request = run.waiting.popleft()
    del lane.ready[run]
    run.executing = True
    request.state = State.EXECUTING
    request.on_cancel = None
    if run.states is None or request.flags & Request.SEQUENCE_START:
        run.states = setup.states.begin()
    request.turn = Turn(setup, lane, run, run.states, repeated=request.turn is not None)
    request.inputs = {**request.inputs, **setup.controls.tensors(request)}
    if run.states is not None:
        request.inputs |= run.states.inputs()
    return request


def lone_inputs(setup: SequenceSetup) -> dict[str, Tensor]:
    """What the server adds to a request that is a sequence by itself, for warming up."""
    request = Request(setup.model_name, {}, DISCARD)
    request.flags = Request.SEQUENCE_START | Request.SEQUENCE_END
    states = setup.states.begin()
    added = {} if states is None else states.inputs()
    return {**setup.controls.tensors(request), **added}

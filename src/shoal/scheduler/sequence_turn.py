"""Batches of sequences: the next request of each, with the inputs that the server adds.

The scheduler attaches a `SequenceTurn` to each request of a batch: what the instance that runs it
needs to know. A request whose turn has no sequence is a filler: it keeps a slot of the batch
occupied, and no client waits for it. No lock and no clock: `choose` decides with the policy which
sequences go, and the batcher when to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.reply import DISCARD
from shoal.core.request import Request, State
from shoal.core.tensor import Tensor
from shoal.scheduler.policy import BatchPolicy, Reason
from shoal.scheduler.sequence_controls import Controls
from shoal.scheduler.sequence_policy import DirectPolicy, SlotHead
from shoal.scheduler.sequence_state import SequenceStates, StateStore
from shoal.scheduler.sequence_table import InstanceSlots, SequenceRun

_LONG_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class SequenceSetup:
    """The settings of a model's sequences, from its config."""

    model_name: str
    controls: Controls
    states: StateStore
    slots: int  # sequences an instance takes at a time
    keeps_slots: bool  # direct: a sequence's position in the batch never changes
    iterative: bool = False
    max_idle_ns: int = 0
    hidden_outputs: frozenset[str] = frozenset()  # states that are not sent to clients
    waits_for_answers: bool = True  # the next request waits for the response, however late


class SequenceTurn:
    """One request of one sequence, being executed."""

    __slots__ = (
        "again",
        "instance",
        "left_open",
        "on_answer",
        "repeated",
        "run",
        "setup",
        "states",
    )

    def __init__(
        self,
        setup: SequenceSetup,
        instance: InstanceSlots,
        run: SequenceRun | None,
        states: SequenceStates | None,
        *,
        repeated: bool = False,
    ) -> None:
        """A turn without `run` is a filler's; `repeated` when the request has run before."""
        self.setup = setup
        self.instance = instance
        self.run = run
        self.states = states
        self.repeated = repeated
        self.again = False  # the model asked for the request to run again
        # For a response that comes after the execution: a callback, and whether it is due.
        self.on_answer: Callable[[Request], None] | None = None
        self.left_open = False

    @property
    def is_filler(self) -> bool:
        """Whether no client waits for the response."""
        return self.run is None

    def may_repeat(self, request: Request) -> bool:
        """Whether the model may ask for `request`, whose turn this is, to run again."""
        return self.setup.iterative and not request.flags & Request.SEQUENCE_END

    def keep_states(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Store the new states of a response; returns the outputs for the client."""
        assert self.states is not None
        names = self.setup.states.outputs
        for tensor in outputs:
            if tensor.name in names:
                self.states.keep(tensor.name, tensor.array)
        return [tensor for tensor in outputs if tensor.name not in self.setup.hidden_outputs]


def is_filler(request: Request) -> bool:
    """Whether the request only keeps a slot of the batch occupied."""
    turn: SequenceTurn | None = request.turn
    return turn is not None and turn.is_filler


def without_fillers(batch: Sequence[Request]) -> Sequence[Request]:
    """The requests that a client waits for."""
    if batch[0].turn is None:  # all of a batch are of sequences, or none
        return batch
    return [request for request in batch if not is_filler(request)]


def filler(like: Request) -> Request:
    """A request with the shapes of `like`, which has a turn, that is marked as not ready."""
    turn: SequenceTurn = like.turn
    setup = turn.setup
    blank = {} if turn.states is None else turn.states.blank_inputs()
    made = Request(
        like.model_name,
        {**like.inputs, **setup.controls.not_ready(), **blank},
        DISCARD,
        model_version=like.model_version,
        requested_outputs=like.requested_outputs,
    )
    made.batch_key = like.batch_key
    made.state = State.EXECUTING
    made.turn = SequenceTurn(setup, turn.instance, None, None)
    return made


def one_by_one(batch: Sequence[Request]) -> list[list[Request]]:
    """Splits a batch into one for each request that a client waits for.

    Where sequences keep their slots, each request keeps its own, after fillers.
    """
    batches: list[list[Request]] = []
    for place, request in enumerate(batch):
        turn: SequenceTurn | None = request.turn
        if turn is None or not turn.setup.keeps_slots:
            batches.append([request])
        elif not turn.is_filler:
            batches.append([*(filler(request) for _ in range(place)), request])
    return batches


def batch_key(run: SequenceRun, setup: SequenceSetup) -> object:
    """What must be equal for the next requests of two sequences to share a batch."""
    request = run.waiting[0]
    states = setup.states
    if not states.has_variable_dims:
        return request.batch_key
    if run.states is None or request.flags & Request.SEQUENCE_START:
        return (request.batch_key, states.initial_shapes)
    return (request.batch_key, run.states.shapes)


class ChosenRuns(NamedTuple):
    """The sequences whose next requests are a batch, None for a slot that gets a filler. With none,
    ask again after `wait_ns` (None: when a request arrives)."""

    runs: Sequence[SequenceRun | None]
    reason: Reason
    wait_ns: int | None = None


def choose(
    instance: InstanceSlots,
    policy: DirectPolicy | BatchPolicy,
    setup: SequenceSetup,
    now_ns: int | None,
) -> ChosenRuns:
    """Which sequences of an instance that has some ready go into its next batch. With None for the
    time no more requests will come, so that nothing waits for them."""
    if isinstance(policy, DirectPolicy):
        direct = policy.cut(heads(instance, setup), _LONG_NS if now_ns is None else now_ns)
        slots = zip(instance.slots, direct.taken, strict=False)
        runs = [run if taken else None for run, taken in slots]
        return ChosenRuns(runs, direct.reason, direct.wait_ns)
    oldest_ns = next(iter(instance.ready.values()))
    waited_ns = _LONG_NS if now_ns is None else now_ns - oldest_ns
    cut = policy.cut(((1, batch_key(run, setup)) for run in instance.ready), waited_ns)
    if not cut.count:
        return ChosenRuns((), cut.reason, policy.max_delay_ns - waited_ns)
    return ChosenRuns(list(instance.ready)[: cut.count], cut.reason)


def heads(instance: InstanceSlots, setup: SequenceSetup) -> list[SlotHead | None]:
    """The next request of every slot, None where there is none."""
    return [
        SlotHead(batch_key(run, setup), run.waiting[0].queued_ns)
        if run is not None and run in instance.ready
        else None
        for run in instance.slots
    ]


def take(
    instance: InstanceSlots, runs: Sequence[SequenceRun | None], setup: SequenceSetup
) -> list[Request]:
    """The next requests of `runs`, ready to be executed, with a filler for each None.

    The instance is busy from now on. Sequences whose END is in the batch still have their slots.
    """
    taken = [None if run is None else _next(instance, run, setup) for run in runs]
    like = next(request for request in taken if request is not None)
    instance.busy = True
    return [filler(like) if request is None else request for request in taken]


def _next(instance: InstanceSlots, run: SequenceRun, setup: SequenceSetup) -> Request:
    request = run.waiting.popleft()
    del instance.ready[run]
    run.executing = True
    request.state = State.EXECUTING
    request.on_cancel = None
    if run.states is None or request.flags & Request.SEQUENCE_START:
        run.states = setup.states.begin()
    request.turn = SequenceTurn(setup, instance, run, run.states, repeated=request.turn is not None)
    request.inputs = {**request.inputs, **setup.controls.tensors(request)}
    if run.states is not None:
        request.inputs |= run.states.inputs()
    return request


def lone_inputs(setup: SequenceSetup) -> dict[str, Tensor]:
    """The inputs that the server adds to a request that is a sequence by itself, for warm-up."""
    request = Request(setup.model_name, {}, DISCARD)
    request.flags = Request.SEQUENCE_START | Request.SEQUENCE_END
    states = setup.states.begin()
    added = {} if states is None else states.inputs()
    return {**setup.controls.tensors(request), **added}

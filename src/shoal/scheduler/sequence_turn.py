"""A request's turn in its sequence: what the instance that runs it has to know.

The scheduler puts a turn on each request of a batch that it hands out. A request whose turn has
no sequence is a filler: it keeps a slot of the batch occupied and nobody waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.reply import DISCARD
from shoal.core.request import Request, State
from shoal.core.tensor import Tensor
from shoal.scheduler.sequence_controls import Controls
from shoal.scheduler.sequence_state import SequenceStates, StateBook
from shoal.scheduler.sequence_table import Lane, SequenceRun


@dataclass(frozen=True, slots=True)
class SequenceSetup:
    """What a model's config says about its sequences."""

    model_name: str
    controls: Controls
    states: StateBook
    slots: int  # sequences an instance takes at a time
    keeps_slots: bool  # direct: a sequence's place in the batch never changes
    iterative: bool = False
    max_idle_ns: int = 0
    hidden_outputs: frozenset[str] = frozenset()  # states that clients do not get to see
    waits_for_answers: bool = True  # no next request before the answer, however late that comes


class Turn:
    """One request of one sequence, being executed."""

    __slots__ = (
        "again",
        "lane",
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
        lane: Lane,
        run: SequenceRun | None,
        states: SequenceStates | None,
        *,
        repeated: bool = False,
    ) -> None:
        """A turn without `run` is a filler's; `repeated` when the request has run before."""
        self.setup = setup
        self.lane = lane
        self.run = run
        self.states = states
        self.repeated = repeated
        self.again = False  # the model wants the request once more
        # For an answer that comes after the execution: who is told, and whether he waits for it.
        self.on_answer: Callable[[Request], None] | None = None
        self.left_open = False

    @property
    def is_filler(self) -> bool:
        """Whether nobody waits for the answer."""
        return self.run is None

    def may_repeat(self, request: Request) -> bool:
        """Whether the model may ask to be given `request`, whose turn this is, once more."""
        return self.setup.iterative and not request.flags & Request.SEQUENCE_END

    def keep_states(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Take the new states out of an answer; what is left is for the client."""
        assert self.states is not None
        names = self.setup.states.outputs
        for tensor in outputs:
            if tensor.name in names:
                self.states.keep(tensor.name, tensor.array)
        return [tensor for tensor in outputs if tensor.name not in self.setup.hidden_outputs]


def is_filler(request: Request) -> bool:
    """Whether the request only keeps a slot of the batch occupied."""
    turn: Turn | None = request.turn
    return turn is not None and turn.is_filler


def filler(like: Request) -> Request:
    """A request of the shapes of `like`, which has its turn, that tells the model: not ready."""
    turn: Turn = like.turn
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
    made.turn = Turn(setup, turn.lane, None, None)
    return made


def one_by_one(batch: Sequence[Request]) -> list[list[Request]]:
    """A batch as several, one for each request that somebody waits for.

    Where sequences keep their slots each request keeps its own, behind fillers.
    """
    batches: list[list[Request]] = []
    for place, request in enumerate(batch):
        turn: Turn | None = request.turn
        if turn is None or not turn.setup.keeps_slots:
            batches.append([request])
        elif not turn.is_filler:
            batches.append([*(filler(request) for _ in range(place)), request])
    return batches

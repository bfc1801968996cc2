"""Replicas of a model in front-end processes: which models may have them, and what they report.

    front end: Model --ReplicaReporter--> plain values --ModelReplicas--> Model: engine

A replica serves the requests of its front end. The engine's model counts for all replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.config.parameters import value_of
from shoal.scheduler.drain import Load, Waiting
from shoal.scheduler.policy import Reason
from shoal.statistics import transfer

if TYPE_CHECKING:
    from shoal.models.spec import ModelSpec
    from shoal.models.version import Model

PARAMETER = "run_in_frontends"
Report = tuple[Any, ...]  # plain values


def may_have_replicas(spec: ModelSpec) -> bool:
    """Whether front-end processes run the model themselves."""
    return bool(value_of(spec.config, PARAMETER)) and not obstacle(spec)


def obstacle(spec: ModelSpec) -> str:
    """Why the engine process runs the model although its config has the mark, and what to change;
    "" if nothing is in the way. A replica must be able to answer whatever the others do."""
    config, backend = spec.config, spec.backend
    batching, policy = config.dynamic_batching, config.model_transaction_policy
    if backend is None:
        return "an ensemble runs other models. Mark those that clients call themselves"
    if config.sequence_batching is not None:
        return "a sequence has one queue for the whole server. Remove sequence_batching"
    if policy is not None and policy.decoupled:
        return "the model is decoupled. Set model_transaction_policy.decoupled to false"
    if spec.caches_responses:
        return "its responses are cached in the engine process. Set response_cache.enable to false"
    if not backend.stateless:
        return (
            f"instances of the backend '{backend.name}' may keep a state, call other models or "
            "have processes of their own. The mark is for model files, without isolation"
        )
    if any(group.kind != "KIND_CPU" for group in config.instance_group):
        return "it has instances on GPUs. Set instance_group.kind to KIND_CPU"
    if spec.limited:
        return "its instances share resources. Remove instance_group.rate_limiter"
    if value_of(config, "execution_timeout_ms") is not None:
        return "the engine process watches its executions. Remove execution_timeout_ms"
    if batching is not None and batching.preserve_ordering:
        return "its responses have one order. Set dynamic_batching.preserve_ordering to false"
    if spec.bare_file is not None:
        return "it has no folder of its own. Write it as a folder of a model repository"
    return ""


class ReplicaState(NamedTuple):
    """How a replica is at a moment, as plain values."""

    pending: int
    instances: int
    memory_bytes: int
    on_loop: bool
    mode: str
    reason: str  # of the mode
    expected_ns: float  # the latency, of a model with a target
    cuts: tuple[tuple[str, int], ...]  # the last batches: why they were closed, and their rows
    waiting_rows: int
    running: tuple[int, ...]  # requests of each instance that is busy


class ReplicaReporter:
    """In a front end: reports what the replica has done since the last report."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sums = (0, 0, 0)
        self._state: ReplicaState | None = None

    def report(self) -> Report | None:
        """What to pass to `ModelReplicas.take`; None where nothing has changed."""
        model, statistics = self._model, self._model.statistics
        counts = transfer.take(statistics)
        admission = statistics.admission()
        padded = (0, 0) if statistics.padded is None else statistics.padded()
        sums = (*padded, 0 if admission is None else admission[0])
        execution = model.execution_placement.report()
        cuts = model.recent_cuts()
        load = model.load_now()
        state = ReplicaState(
            load.waiting.requests,
            statistics.instances() or 0,
            model.memory_bytes(),
            statistics.on_loop(),
            execution["mode"],
            execution["reason"],
            0.0 if admission is None else admission[1],
            tuple([(why.name, rows) for why, rows in cuts]),
            load.waiting.rows,
            tuple(load.running),
        )
        if counts is None and sums == self._sums and state == self._state:
            return None
        more = [now - before for now, before in zip(sums, self._sums, strict=True)]
        self._sums, self._state = sums, state
        return counts, more, tuple(state)


class ModelReplicas:
    """In the engine: the model's statistics have what all of its replicas report."""

    def __init__(self, model: Model) -> None:
        self._counts = statistics = model.statistics
        self._states: dict[object, ReplicaState] = {}
        self._sums = [0, 0, 0]
        pending, instances = statistics.pending, statistics.instances
        memory_bytes, on_loop = statistics.memory_bytes, statistics.on_loop
        admission, padded = statistics.admission, statistics.padded

        def admitted() -> tuple[int, float] | None:
            own = admission()
            if own is None:
                return None
            expected = max([own[1], *[state.expected_ns for state in self._read()]])
            return own[0] + self._sums[2], expected

        statistics.pending = lambda: pending() + sum(s.pending for s in self._read())
        statistics.instances = lambda: (instances() or 0) + sum(s.instances for s in self._read())
        statistics.memory_bytes = lambda: memory_bytes() + sum(s.memory_bytes for s in self._read())
        statistics.on_loop = lambda: on_loop() or any(s.on_loop for s in self._read())
        statistics.admission = admitted
        if padded is not None:
            own_padded = padded
            statistics.padded = lambda: (
                own_padded()[0] + self._sums[0],
                own_padded()[1] + self._sums[1],
            )

    def _read(self) -> list[ReplicaState]:
        return list(self._states.values())

    def take(self, owner: object, report: Report) -> None:
        """Count what the replica of a front end reports. For one thread, as `leave`."""
        counts, more, state = report
        if counts is not None:
            transfer.add(self._counts, counts)
        self._sums = [own + added for own, added in zip(self._sums, more, strict=True)]
        self._states.pop(owner, None)
        self._states[owner] = ReplicaState(*state)

    def leave(self, owner: object) -> None:
        """That front end has no replica any more."""
        self._states.pop(owner, None)

    def add_loads(self, own: Load) -> Load:
        """What waits and runs in the engine and in all replicas."""
        states = self._read()
        waiting = Waiting(
            own.waiting.requests + sum(state.pending for state in states),
            own.waiting.rows + sum(state.waiting_rows for state in states),
        )
        running = [*own.running, *[count for state in states for count in state.running]]
        instances = sum(1 if state.on_loop else state.instances for state in states)
        return Load(waiting, running, instances or own.instances)

    def execution(self) -> dict[str, str] | None:
        """Where the replicas run and why, as the last report has it; None if there are none."""
        states = self._read()
        if not states:
            return None
        return {"mode": states[-1].mode, "reason": f"in front ends: {states[-1].reason}"}

    def cuts(self) -> list[tuple[Reason, int]]:
        """Of the last batches: why they were closed, and their rows."""
        return [(Reason[name], rows) for state in self._read() for name, rows in state.cuts]

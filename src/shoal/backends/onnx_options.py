"""How a session is set up: threads, memory and optimisation, from config, settings and cores.

The thread budget makes several instances fast: together they use the available cores, and no
thread spins while it waits, except those of executions that run alone. `parameters` in config.pbtxt
and --backend-config override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters

BACKEND = "onnxruntime"
# Entries of `parameters` with these prefixes are passed to the runtime unchanged.
_RUNTIME_PREFIXES = ("session.", "optimization.", "ep.", "mlas.")
_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_INTRA_OP_SPINNING = "session.intra_op.allow_spinning"
_INTER_OP_SPINNING = "session.inter_op.allow_spinning"
_SPIN_US = "session.intra_op.spin_duration_us"
_STOP_SPINNING = "session.force_spinning_stop"
_SPINS_FOR_US = 250  # somewhat longer than the event loop polls for a lone client
# optimization.graph.level to the name of the runtime's level; anything else means all.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session, except its file and device."""

    intra_op_threads: int
    inter_op_threads: int = 1
    parallel: bool = False
    memory_arena: bool | None = None  # None: the runtime's own default
    memory_pattern: bool | None = None
    graph_level: str = "ORT_ENABLE_ALL"
    entries: Mapping[str, str] = field(default_factory=dict)  # session config entries
    run_entries: Mapping[str, str] = field(default_factory=dict)  # run config entries
    shared: bool = True  # one session for all instances on a device
    global_threads: bool = False  # one thread pool for all sessions of the process
    lone_threads: int = 0  # of a second session for executions that run alone; 0: there is none


# To read inputs and outputs of a file: nothing is optimised, packed or run.
INSPECTION = SessionSettings(
    intra_op_threads=1,
    graph_level="ORT_DISABLE_ALL",
    entries={"session.disable_prepacking": "1"},
)


def session_settings(
    config: ModelConfig, settings: Mapping[str, str], instances: int, cores: int, file: str
) -> SessionSettings:
    """The settings from `config` and the backend's `settings`; ConfigError for a wrong value.

    A thread count of 0, or none, is the budget: all cores divided among the instances, and all of
    them for an execution that runs alone.
    """
    read = Parameters(BACKEND, config, settings, file)
    budget = max(1, cores // max(1, instances))
    configured = read.count("intra_op_thread_count")
    shared = read.flag("share_session") is not False
    own_pool = read.flag("enable-global-threadpool") is not True
    return SessionSettings(
        intra_op_threads=configured or budget,
        inter_op_threads=read.count("inter_op_thread_count") or 1,
        parallel=read.flag("execution_mode") is True,
        memory_arena=read.flag("enable_mem_arena"),
        memory_pattern=read.flag("enable_mem_pattern"),
        graph_level=_graph_level(config),
        entries=read.with_prefix(*_RUNTIME_PREFIXES),
        run_entries=read.with_prefix(_ARENA_SHRINKAGE),
        shared=shared,
        global_threads=not own_pool,
        lone_threads=cores if not configured and shared and own_pool and cores > 1 else 0,
    )


def waiting_entries(*, spins: bool, timed: bool = True) -> dict[str, str]:
    """Session entries: how threads wait for work. Sleeping ones leave the cores to others, but to
    wake one takes up to 50 µs for each operator; so `spins` is for executions that run alone.

    Not `timed` are versions of the runtime that know no duration: threads spin during a run only.
    """
    entries = {_INTRA_OP_SPINNING: "0", _INTER_OP_SPINNING: "0"}
    if spins:
        entries[_INTRA_OP_SPINNING] = "1"
        entries |= {_SPIN_US: str(_SPINS_FOR_US)} if timed else {_STOP_SPINNING: "1"}
    return entries


def global_threads(settings: Mapping[str, str], cores: int) -> tuple[int, int]:
    """The sizes of the pool all sessions share, within an operator and between operators."""
    read = Parameters(BACKEND, ModelConfig(), settings, "")
    return read.count("intra_op_thread_count") or cores, read.count("inter_op_thread_count") or 1


def _graph_level(config: ModelConfig) -> str:
    optimization = config.optimization
    if optimization is None or optimization.graph is None:
        return "ORT_ENABLE_ALL"
    return _LEVELS.get(optimization.graph.level, "ORT_ENABLE_ALL")

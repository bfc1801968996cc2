"""How a session is set up: threads, memory and optimisation, from config, settings and cores.

The thread budget is what makes several instances quick: together they use the cores there are,
and no thread spins while it waits. `parameters` in config.pbtxt and --backend-config override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.config.model import ModelConfig
from shoal.errors import ConfigError

# Entries of `parameters` with these beginnings go to the runtime as they are.
_RUNTIME_PREFIXES = ("session.", "optimization.", "ep.", "mlas.")
_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_NO_SPINNING = {
    "session.intra_op.allow_spinning": "0",
    "session.inter_op.allow_spinning": "0",
}
# optimization.graph.level to the name of the runtime's level; anything else means all.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Everything about a session but its file and its device."""

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


def session_settings(
    config: ModelConfig, settings: Mapping[str, str], instances: int, cores: int, file: str
) -> SessionSettings:
    """What `config` and the backend's `settings` ask for; ConfigError names a value that is wrong.

    A thread count of 0, or none, is the budget: all cores divided among the instances.
    """
    read = _Reader(config, settings, file)
    budget = max(1, cores // max(1, instances))
    return SessionSettings(
        intra_op_threads=read.count("intra_op_thread_count") or budget,
        inter_op_threads=read.count("inter_op_thread_count") or 1,
        parallel=read.flag("execution_mode") is True,
        memory_arena=read.flag("enable_mem_arena"),
        memory_pattern=read.flag("enable_mem_pattern"),
        graph_level=_graph_level(config),
        entries={**_NO_SPINNING, **read.with_prefix(_RUNTIME_PREFIXES)},
        run_entries=read.with_prefix((_ARENA_SHRINKAGE,)),
        shared=read.flag("share_session") is not False,
        global_threads=read_flag(settings, "enable-global-threadpool") is True,
    )


def global_threads(settings: Mapping[str, str], cores: int) -> tuple[int, int]:
    """The sizes of the pool all sessions share, within an operator and between operators."""
    read = _Reader(ModelConfig(), settings, file="")
    return read.count("intra_op_thread_count") or cores, read.count("inter_op_thread_count") or 1


def default_max_batch_size(settings: Mapping[str, str]) -> int:
    """What max_batch_size becomes where a model can batch and its config does not say: 4."""
    text = settings.get("default-max-batch-size", "4")
    try:
        return int(text)
    except ValueError:
        raise _bad_setting("default-max-batch-size", text, "a whole number") from None


def read_flag(settings: Mapping[str, str], key: str) -> bool | None:
    """A yes or no from --backend-config; None where it is not given."""
    text = settings.get(key)
    if text is None:
        return None
    answer = _truth(text)
    if answer is None:
        raise _bad_setting(key, text, "0 or 1")
    return answer


class _Reader:
    """Reads `parameters` of one config, with --backend-config behind it."""

    def __init__(self, config: ModelConfig, settings: Mapping[str, str], file: str) -> None:
        self._values = {key: item.string_value for key, item in config.parameters.items()}
        self._settings = settings
        self._file = file

    def count(self, key: str) -> int:
        """A number of threads; 0 where neither the model nor the backend gives one."""
        for values, wrong in ((self._values, self._bad_parameter), (self._settings, _bad_setting)):
            text = values.get(key)
            if text is not None:
                if not text.isdecimal():
                    raise wrong(key, text, "a whole number, 0 for the default")
                if int(text):
                    return int(text)
        return 0

    def flag(self, key: str) -> bool | None:
        """Yes, no, or None where it is not given."""
        text = self._values.get(key)
        if text is None:
            return None
        answer = _truth(text)
        if answer is None:
            raise self._bad_parameter(key, text, "0 or 1")
        return answer

    def with_prefix(self, prefixes: tuple[str, ...]) -> dict[str, str]:
        """The parameters whose names start so."""
        return {key: text for key, text in self._values.items() if key.startswith(prefixes)}

    def _bad_parameter(self, key: str, text: str, expected: str) -> ConfigError:
        return ConfigError(
            f"expected {expected}, found {text!r}",
            file=self._file,
            field=f"parameters '{key}'",
            fix=f'Write: parameters {{ key: "{key}" value: {{ string_value: "1" }} }}',
        )


def _truth(text: str) -> bool | None:
    """What a yes-or-no text says; None where it says neither."""
    return _TRUTH.get(text.strip().lower())


def _bad_setting(key: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"--backend-config=onnxruntime,{key}={text}: expected {expected}")


def _graph_level(config: ModelConfig) -> str:
    optimization = config.optimization
    if optimization is None or optimization.graph is None:
        return "ORT_ENABLE_ALL"
    return _LEVELS.get(optimization.graph.level, "ORT_ENABLE_ALL")

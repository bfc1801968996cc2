"""Opening an ONNX Runtime session: the model's file, its custom operators, and errors.

The only module that calls the runtime's constructors. It turns their errors into ShoalErrors with
one sentence each, without the runtime's codes and source paths.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from shoal.backends import files
from shoal.backends.files import what_else
from shoal.backends.onnx_options import SessionSettings, waiting_entries
from shoal.backends.onnx_providers import CUDA, TENSORRT, Provider, missing_after_start
from shoal.config.backends import BACKENDS
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, Internal, InvalidArgument, NotFound, ShoalError, Unsupported

_TIMED_SPINNING_SINCE = (1, 26)
_ERRORS_ONLY = 3
_NOTHING = 4  # errors are raised; printing them would repeat them

_CODE = re.compile(r"\[ONNXRuntimeError\] : -?\d+ : \w+ : (?:Load model from .*? failed:\s*)?")
_SOURCE = re.compile(
    r"\S+\.(?:cc|cpp|cu|cuh|h|hpp|inc):\d+\s+(?:\S.*?\)>?(?: const)?(?: \[with [^\]]*\])?\s+)?"
)
_NO_GRAPH = re.compile(r"no graph was found|does not have a graph", re.IGNORECASE)

_global_pool_lock = threading.Lock()  # guards _global_pool
_global_pool: list[tuple[int, int]] = []  # at most one: the thread counts of the pool


def find_model_file(config: ModelConfig, version_folder: Path, file: str) -> Path:
    """The ONNX file of a version, or the one in a folder of that name, beside external data."""
    names = BACKENDS["onnxruntime"].filenames
    return files.find_model_file(
        config, version_folder, names, "ONNX file", file, suffixes=(".onnx", ".ort"), in_folder=True
    )


def find_op_libraries(
    config: ModelConfig, model_folder: Path, version_folder: Path, file: str
) -> list[Path]:
    """The libraries of custom operators; relative names are searched in the version's folder,
    then in the model's. ConfigError if one is missing."""
    if config.model_operations is None:
        return []
    libraries: list[Path] = []
    for index, name in enumerate(config.model_operations.op_library_filename):
        candidates = [folder / name for folder in (version_folder, model_folder)]
        library = next((path for path in candidates if path.is_file()), None)
        if library is None:
            raise ConfigError(
                f"there is no library of custom operators '{name}' in the model's folder "
                f"'{model_folder.name}' or its version folder '{version_folder.name}'",
                file=file,
                field=f"model_operations.op_library_filename[{index}]",
                fix="Copy the library there, or write its absolute path",
            )
        libraries.append(library.absolute())
    return libraries


def open_session(
    model_file: Path,
    settings: SessionSettings,
    providers: Sequence[Provider],
    libraries: Sequence[Path] = (),
    file: str = "config.pbtxt",
    *,
    spins: bool = False,
) -> Any:
    """Load `model_file` into an InferenceSession, whose threads may spin while they wait.

    Raises a ShoalError that names the file; then nothing stays loaded. A provider that does not
    start is an error too: the runtime would silently compute on the CPU.
    """
    options = _session_options(settings, file, spins=spins)
    for library in libraries:
        _register(options, library, file)
    if any(name in (CUDA, TENSORRT) for name, _ in providers):
        _find_cuda_libraries()
    try:
        session = onnxruntime.InferenceSession(
            str(model_file), options, providers=list(providers), enable_fallback=0
        )
    except Exception as error:
        raise _load_error(error, model_file) from error
    absent = missing_after_start(providers, session.get_providers())
    if absent:
        raise Unsupported(
            f"ONNX Runtime could not start {', '.join(absent)}, so it would run the model on the "
            "CPU only. The libraries the provider needs are missing or of another version; for "
            "CUDA: pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    return session


def run_of(session: Any) -> Callable[..., list[Any]]:
    """The method that runs a session.

    The wrapper around it looks at names and graph captures on every call, which takes a third of a
    small model's time. It is not public: without it the wrapper serves.
    """
    return getattr(getattr(session, "_sess", None), "run", session.run)  # type: ignore[no-any-return]


def run_options(settings: SessionSettings) -> Any:
    """Options for each run of a session."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = _NOTHING
    for key, text in settings.run_entries.items():
        options.add_run_config_entry(key, text)
    return options


def available_providers() -> list[str]:
    """The execution providers the installed build has."""
    return list(onnxruntime.get_available_providers())


def use_global_threads(intra_op_threads: int, inter_op_threads: int) -> None:
    """Make all sessions opened from now on share one thread pool.

    The first call sets its size. It cannot be undone within the process.
    """
    with _global_pool_lock:
        if _global_pool:
            return
        make = getattr(onnxruntime, "set_global_thread_pool_sizes", None)
        if make is None:
            raise Unsupported(
                f"ONNX Runtime {onnxruntime.__version__} has no global thread pool for Python. "
                "Leave enable-global-threadpool out, or install a newer one: "
                "pip install --upgrade onnxruntime"
            )
        make(intra_op_threads, inter_op_threads)
        _global_pool.append((intra_op_threads, inter_op_threads))


def clean_message(error: BaseException) -> str:
    """The runtime's message on one line, without codes and source locations."""
    text = _SOURCE.sub("", _CODE.sub("", str(error)))
    return " ".join(text.split()).rstrip(".") or type(error).__name__


def _session_options(settings: SessionSettings, file: str, *, spins: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    if _global_pool:  # once there is one, the runtime refuses sessions with their own
        options.use_per_session_threads = False
    if settings.parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if settings.memory_arena is not None:
        options.enable_cpu_mem_arena = settings.memory_arena
    if settings.memory_pattern is not None:
        options.enable_mem_pattern = settings.memory_pattern
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = getattr(levels, settings.graph_level)
    waiting = waiting_entries(spins=spins, timed=_version() >= _TIMED_SPINNING_SINCE)
    for key, text in {**waiting, **settings.entries}.items():
        _add_entry(options, key, text, file)
    return options


def _version() -> tuple[int, ...]:
    return tuple([int(part) for part in onnxruntime.__version__.split(".")[:2]])


def _add_entry(options: Any, key: str, text: str, file: str) -> None:
    try:
        options.add_session_config_entry(key, text)
    except Exception as error:
        raise ConfigError(clean_message(error), file=file, field=f"parameters '{key}'") from error


def _register(options: Any, library: Path, file: str) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:
        raise ConfigError(
            f"the library of custom operators '{library.name}' does not load: "
            f"{clean_message(error)}",
            file=file,
            field="model_operations.op_library_filename",
            fix=f"Build it for this platform and ONNX Runtime {onnxruntime.__version__}",
        ) from error


def _find_cuda_libraries() -> None:
    """Let the runtime find CUDA in Python packages, if the system has none."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None:
        preload()


def _load_error(error: Exception, model_file: Path) -> ShoalError:
    levels = 4 if model_file.parent.suffix == ".onnx" else 3  # model, version, [folder,] file
    name = "/".join(model_file.parts[-levels:])
    kind, text = type(error).__name__, clean_message(error)
    if kind == "NoSuchFile" and not model_file.exists():
        return NotFound(f"'{name}' disappeared while it was loaded")
    if kind == "InvalidProtobuf" or _NO_GRAPH.search(text):
        why = what_else(model_file, "export it to ONNX")
        return InvalidArgument(f"'{name}' is not an ONNX model: {why}")
    message = f"ONNX Runtime {onnxruntime.__version__} cannot load '{name}': {text}"
    if kind in ("RuntimeException", "EPFail", "EngineError", "RuntimeError", "MemoryError"):
        return Internal(message)
    return InvalidArgument(message)

"""PyTorch's datatypes, and its settings for a thread or for the whole process.

In the usual builds, the number of threads of an operator is a setting of the calling thread: once a
thread has run something, changes by other threads do not affect it. So every instance, which has
its own thread, keeps its budget; see decisions/0012.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

# Helper threads of an operator that wait for the next one spin, by default for milliseconds, which
# wastes cores of the server. This must be set before the library is loaded.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"
# Streams of CUDA share queues of the GPU, by default 8, and wait for others in the same one: beside
# a network, the decoder of photos then had a fifth of the rate that it has with 32, the most there
# can be. CUDA reads this when a process uses the GPU for the first time.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch

from shoal.backends.base import Placement
from shoal.backends.pytorch.settings import Switches
from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import ConfigError

logger = logging.getLogger(__name__)

TORCH_TYPES: Mapping[DataType, torch.dtype] = MappingProxyType(
    {
        dtypes.BOOL: torch.bool,
        dtypes.UINT8: torch.uint8,
        dtypes.UINT16: torch.uint16,
        dtypes.UINT32: torch.uint32,
        dtypes.UINT64: torch.uint64,
        dtypes.INT8: torch.int8,
        dtypes.INT16: torch.int16,
        dtypes.INT32: torch.int32,
        dtypes.INT64: torch.int64,
        dtypes.FP16: torch.float16,
        dtypes.FP32: torch.float32,
        dtypes.FP64: torch.float64,
        dtypes.BF16: torch.bfloat16,
    }
)
DATATYPES: Mapping[torch.dtype, DataType] = MappingProxyType(
    {kind: datatype for datatype, kind in TORCH_TYPES.items()}
)
# After an error with one of these the GPU rejects all work of this process.
_FATAL = ("device-side assert", "illegal memory access", "unspecified launch failure")
HALVES = MappingProxyType({"fp16": torch.float16, "bf16": torch.bfloat16})


class _SilencedWarnings:
    """Keeps warnings silent while any thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._inside = 0
        self._saved: warnings.catch_warnings[None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._saved = warnings.catch_warnings()
                self._saved.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._saved is not None:
                self._saved.__exit__(None, None, None)
                self._saved = None


# Loading warns that TorchScript is deprecated, and of more that an operator cannot change.
quiet = _SilencedWarnings()
# torch.export.load cannot be called twice at once, and models are loaded by several threads.
exclusive = threading.Lock()

# Held while a CUDA graph is captured, one at a time in the process, or a network is timed.
undisturbed = threading.Lock()

with quiet:  # it warns once, at the first array that may not be written to; we never write
    torch.from_numpy(np.frombuffer(bytes(4), np.float32))


class _ProcessSettings:
    """The settings of the whole process, changed when a model with other settings runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._thread = threading.local()  # .threads and .optimized, as last set on a thread
        self._inter_op_threads = 0
        self.applied = Switches()
        own = torch._C
        executor = own._jit_set_profiling_executor(True)
        own._jit_set_profiling_executor(executor)
        profiling = own._jit_set_profiling_mode(True)
        own._jit_set_profiling_mode(profiling)
        self._defaults = (executor, profiling, own._jit_texpr_fuser_enabled())

    def prepare(self, threads: int, switches: Switches) -> None:
        """Make this thread ready to run a model."""
        mine = self._thread
        if getattr(mine, "threads", 0) != threads:
            torch.set_num_threads(threads)
            # A thread that reads it for the first time gets the last number of any thread.
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            mine.threads = threads
        if getattr(mine, "optimized", True) != switches.optimized:
            torch._C._set_graph_executor_optimize(switches.optimized)
            mine.optimized = switches.optimized
        if self.applied != switches:
            self._apply(switches)

    def _apply(self, switches: Switches) -> None:
        executor, profiling, fuser = self._defaults
        own = torch._C
        with self._lock:
            own._jit_set_profiling_executor(_chosen(switches.jit_executor, executor))
            own._jit_set_profiling_mode(_chosen(switches.jit_profiling, profiling))
            own._jit_set_texpr_fuser_enabled(_chosen(switches.tensor_fuser, fuser))
            own._set_cudnn_enabled(switches.cudnn)
            self.applied = switches

    def use_inter_op_threads(self, count: int, file: str) -> None:
        """Set the number of threads for parallel operators; the first call decides."""
        with self._lock:
            if self._inter_op_threads:
                if self._inter_op_threads != count:
                    logger.warning(
                        "%s: INTER_OP_THREAD_COUNT %d has no effect: another model has set it to "
                        "%d, and PyTorch has one such number for the whole process",
                        file,
                        count,
                        self._inter_op_threads,
                    )
                return
            try:
                torch.set_num_interop_threads(count)
            except RuntimeError:  # those threads are running
                count = torch.get_num_interop_threads()
                logger.warning(
                    "%s: INTER_OP_THREAD_COUNT has no effect: PyTorch runs with %d already, and "
                    "has one such number for the whole process",
                    file,
                    count,
                )
            self._inter_op_threads = count


process = _ProcessSettings()


def to_tensor(array: np.ndarray, datatype: DataType) -> torch.Tensor:
    """The array as a tensor in its memory, which must not be written to."""
    if not (array.flags.aligned and array.flags.c_contiguous):
        array = np.array(array, order="C")
    if datatype is dtypes.BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as numpy, without a copy if it is on the CPU; BF16 as `uint16`."""
    if tensor.dtype is torch.bfloat16:
        bits: np.ndarray = tensor.contiguous().view(torch.int16).numpy(force=True)
        return bits.view(np.uint16)
    array: np.ndarray = tensor.numpy(force=True)
    return array


def has_cuda() -> bool:
    """Whether PyTorch can use a GPU of NVIDIA's here."""
    return bool(torch.cuda.is_available())


def gpu_of(placement: Placement, file: str) -> torch.device:
    """The GPU of an instance, by the config in `file`. ConfigError if PyTorch cannot use GPUs."""
    if not has_cuda():
        raise ConfigError(
            f"the installed PyTorch ({torch.__version__}) cannot use the GPU",
            file=file,
            field="instance_group.kind",
            fix="Install a build with CUDA (https://pytorch.org/get-started), or write "
            "instance_group [ { kind: KIND_CPU } ]",
        )
    return torch.device("cuda", placement.device_id)


def synchronize(device: torch.device) -> None:
    """Wait for what this thread has started on a device.

    Waiting for the whole device would spoil CUDA graphs that other threads capture.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def breaks_gpu(error: BaseException) -> bool:
    """Whether the GPU rejects all work of this process after this error."""
    return any(words in str(error) for words in _FATAL)


def clean_message(error: BaseException) -> str:
    """The message on one line: the end of TorchScript's errors, after their traceback."""
    text = str(error).strip()
    if "Traceback of TorchScript" in text:
        text = text.splitlines()[-1].removeprefix("builtins.")
    text = text.partition("\nException raised from")[0]  # a C++ backtrace follows
    return " ".join(text.split()) or type(error).__name__


def _chosen(wanted: bool | None, default: bool) -> bool:
    return default if wanted is None else wanted

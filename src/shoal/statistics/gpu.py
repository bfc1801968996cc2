"""NVIDIA GPUs' gauges, straight from the driver's NVML library.

    libnvidia-ml (part of the driver) --ctypes--> Gpus.read() --> one GpuReading per visible GPU

A machine without the driver simply has no GPU gauges. NVML sees every GPU, so what
CUDA_VISIBLE_DEVICES hides from this process is left out here; its numbers are taken as NVML's
own order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever all GPUs are alike.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SUCCESS = 0
_UUID_BYTES = 96  # what NVML asks callers to provide


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _MemoryWithReserve(ctypes.Structure):
    """The second edition, in which `used` leaves out what the driver keeps for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. None: not available (a MIG slice, an older card)."""

    uuid: str
    utilization: float | None = None  # 0 … 1
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None  # since `Gpus` was made


@dataclass(slots=True)
class _Gpu:
    uuid: str
    handle: ctypes.c_void_p
    first_energy_millijoules: int | None = None


class Gpus:
    """The GPUs this process may use, read through an NVML library. One thread at a time."""

    def __init__(self, library: Any, visible: str | None = None) -> None:
        """`visible` is the value of CUDA_VISIBLE_DEVICES; None shows all.

        Raises OSError when NVML does not start.
        """
        self._library = library
        if not self._call("nvmlInit_v2"):
            raise OSError("the NVIDIA driver's NVML library did not start")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [gpu for index in range(count.value) if (gpu := self._open(index)) is not None]
        shown = choose_visible([gpu.uuid for gpu in found], visible)
        self._gpus = [found[index] for index in shown]
        for gpu in self._gpus:
            gpu.first_energy_millijoules = self._energy_millijoules(gpu)

    @classmethod
    def find(cls) -> Gpus | None:
        """The GPUs of this machine, or None without a driver or a visible GPU."""
        library = _load_library()
        if library is None:
            return None
        try:
            gpus = cls(library, os.environ.get("CUDA_VISIBLE_DEVICES"))
        except OSError:  # installed, but without GPU or driver
            return None
        return gpus if gpus._gpus else None

    def read(self) -> list[GpuReading]:
        """One reading per GPU; figures that a GPU does not provide are None."""
        return [self._read(gpu) for gpu in self._gpus]

    def _read(self, gpu: _Gpu) -> GpuReading:
        utilization = _Utilization()
        usage, limit = ctypes.c_uint(), ctypes.c_uint()
        has_utilization = self._query("nvmlDeviceGetUtilizationRates", gpu, utilization)
        has_usage = self._query("nvmlDeviceGetPowerUsage", gpu, usage)
        has_limit = self._query("nvmlDeviceGetPowerManagementLimit", gpu, limit)
        memory = self._memory(gpu)
        energy, first = self._energy_millijoules(gpu), gpu.first_energy_millijoules
        return GpuReading(
            uuid=gpu.uuid,
            utilization=utilization.gpu / 100 if has_utilization else None,
            memory_total_bytes=memory.total if memory else None,
            memory_used_bytes=memory.used if memory else None,
            power_usage_watts=usage.value / 1000 if has_usage else None,
            power_limit_watts=limit.value / 1000 if has_limit else None,
            energy_joules=None if energy is None or first is None else (energy - first) / 1000,
        )

    def _open(self, index: int) -> _Gpu | None:
        handle = ctypes.c_void_p()
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        opened = self._call(
            "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)
        ) and self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_UUID_BYTES))
        return _Gpu(uuid.value.decode(), handle) if opened else None

    def _memory(self, gpu: _Gpu) -> _Memory | _MemoryWithReserve | None:
        newer = _MemoryWithReserve()
        newer.version = ctypes.sizeof(newer) | 2 << 24  # NVML's version of the structure
        if self._query("nvmlDeviceGetMemoryInfo_v2", gpu, newer):
            return newer
        older = _Memory()
        return older if self._query("nvmlDeviceGetMemoryInfo", gpu, older) else None

    def _energy_millijoules(self, gpu: _Gpu) -> int | None:
        energy = ctypes.c_ulonglong()
        known = self._query("nvmlDeviceGetTotalEnergyConsumption", gpu, energy)
        return energy.value if known else None

    def _query(self, function: str, gpu: _Gpu, result: Any) -> bool:
        return self._call(function, gpu.handle, ctypes.byref(result))

    def _call(self, function: str, *arguments: Any) -> bool:
        """Whether the call succeeded. An older library lacks some functions, which fail."""
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            return False
        return bool(entry(*arguments) == _SUCCESS)


def choose_visible(uuids: Sequence[str], visible: str | None) -> list[int]:
    """Which of `uuids` a CUDA_VISIBLE_DEVICES value shows, by index.

    As CUDA reads it: numbers or prefixes of UUIDs, up to the first that matches none.
    """
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in visible.split(","):
        word = entry.strip()
        if word.isdecimal():
            matches = [int(word)] if int(word) < len(uuids) else []
        else:
            matches = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return chosen


def _load_library() -> Any:
    """NVML, or None if no NVIDIA driver is installed."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None

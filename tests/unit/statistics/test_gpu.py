from __future__ import annotations

import ctypes

import pytest

from shoal.statistics import gpu as gpu_module
from shoal.statistics.gpu import GpuReading, Gpus, choose_visible

NOT_SUPPORTED = 3


class Card:
    """What one pretended GPU answers; a missing attribute is 'not supported'."""

    def __init__(self, uuid: str, **answers) -> None:
        self.uuid = uuid
        self.__dict__.update(answers)


def full_card(uuid: str) -> Card:
    return Card(
        uuid,
        utilization=37,
        memory=(80 * 2**30, 17 * 2**30),
        memory_v2=(80 * 2**30, 2**30, 16 * 2**30),  # the reserve is not in use
        power_mw=123_456,
        limit_mw=700_000,
        energy_mj=5_000_000,
    )


class FakeNvml:
    """The functions of NVML that are used, over a list of cards.

    Handles are the cards' places plus one. A pointer made by `byref` keeps its target in `_obj`.
    """

    def __init__(self, cards: list[Card], start_code: int = 0) -> None:
        self.cards = cards
        self.start_code = start_code

    def nvmlInit_v2(self):
        return self.start_code

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, text, size):
        assert size.value == len(text)
        text.value = self._card(handle).uuid.encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, rates):
        return self._fill(handle, "utilization", lambda v: setattr(rates._obj, "gpu", v))

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        def fill(value):
            memory._obj.total, memory._obj.used = value

        return self._fill(handle, "memory", fill)

    def nvmlDeviceGetMemoryInfo_v2(self, handle, memory):
        def fill(value):
            assert memory._obj.version == ctypes.sizeof(memory._obj) | 2 << 24
            memory._obj.total, memory._obj.reserved, memory._obj.used = value

        return self._fill(handle, "memory_v2", fill)

    def nvmlDeviceGetPowerUsage(self, handle, milliwatts):
        return self._fill(handle, "power_mw", lambda v: setattr(milliwatts._obj, "value", v))

    def nvmlDeviceGetPowerManagementLimit(self, handle, milliwatts):
        return self._fill(handle, "limit_mw", lambda v: setattr(milliwatts._obj, "value", v))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, millijoules):
        return self._fill(handle, "energy_mj", lambda v: setattr(millijoules._obj, "value", v))

    def _card(self, handle: ctypes.c_void_p) -> Card:
        assert handle.value is not None
        return self.cards[handle.value - 1]

    def _fill(self, handle, name, fill):
        card = self._card(handle)
        if not hasattr(card, name):
            return NOT_SUPPORTED
        fill(getattr(card, name))
        return 0


def test_every_gauge_in_its_unit():
    card = full_card("GPU-1")
    gpus = Gpus(FakeNvml([card]))
    card.energy_mj += 2_500  # since the server started
    assert gpus.read() == [
        GpuReading(
            uuid="GPU-1",
            utilization=0.37,
            memory_total_bytes=80 * 2**30,
            memory_used_bytes=16 * 2**30,
            power_usage_watts=123.456,
            power_limit_watts=700.0,
            energy_joules=2.5,
        )
    ]


def test_what_a_card_does_not_tell_is_left_out():
    gpus = Gpus(FakeNvml([Card("GPU-old", memory=(100, 25))]))
    assert gpus.read() == [GpuReading("GPU-old", memory_total_bytes=100, memory_used_bytes=25)]


def test_a_library_without_a_newer_function_is_no_error(monkeypatch):
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetTotalEnergyConsumption")
    (reading,) = Gpus(FakeNvml([full_card("GPU-1")])).read()
    assert reading.energy_joules is None
    assert reading.utilization == 0.37


def test_only_visible_gpus_are_read():
    library = FakeNvml([full_card("GPU-a"), full_card("GPU-b"), full_card("GPU-c")])
    assert [gpu.uuid for gpu in Gpus(library, "2,0").read()] == ["GPU-c", "GPU-a"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        (" 2 , 0 ", [2, 0]),
        ("0,7,1", [0]),  # nothing after the first that is not there
        ("0,0", [0]),
        ("GPU-bb", [2]),
        ("GPU-aa,1", [0, 1]),
        ("GPU-b", []),  # could be two of them
        ("MIG-1", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(visible, chosen):
    assert choose_visible(["GPU-aa", "GPU-ba", "GPU-bb"], visible) == chosen


@pytest.mark.parametrize(
    "library",
    [
        None,  # no driver
        FakeNvml([full_card("GPU-1")], start_code=9),  # driver not loaded
        FakeNvml([]),  # no card
        object(),  # something else under NVML's name
    ],
)
def test_a_machine_without_gpus_has_none(monkeypatch, library):
    monkeypatch.setattr(gpu_module, "_load_library", lambda: library)
    assert Gpus.find() is None


def test_found_gpus_respect_the_environment(monkeypatch):
    library = FakeNvml([full_card("GPU-a"), full_card("GPU-b")])
    monkeypatch.setattr(gpu_module, "_load_library", lambda: library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpus = Gpus.find()
    assert gpus is not None
    assert [gpu.uuid for gpu in gpus.read()] == ["GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Gpus.find() is None


def test_a_library_that_is_not_installed_is_none(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert Gpus.find() is None

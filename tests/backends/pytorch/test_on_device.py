"""Ensembles whose tensors stay on a device. The device is the CPU here; tests/gpu has the real one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import DeviceExecutor  # noqa: E402
from shoal.backends.pytorch import model as model_module  # noqa: E402
from shoal.backends.pytorch.backend import PyTorchBackend  # noqa: E402
from shoal.backends.pytorch.executor import TorchExecutor  # noqa: E402
from shoal.backends.registry import BackendRegistry  # noqa: E402
from shoal.core.device_tensor import DeviceTensor  # noqa: E402
from shoal.testing.server import running_server  # noqa: E402
from tests.support import torch_models  # noqa: E402
from tests.support.client import Infer, outputs  # noqa: E402
from tests.support.repositories import add_model  # noqa: E402

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "a" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "b" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "result" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "between" data_type: TYPE_FP32 dims: [ 2 ] }
ensemble_scheduling { step [
  { model_name: "first" model_version: -1
    input_map { key: "left" value: "a" } input_map { key: "right" value: "b" }
    output_map { key: "OUTPUT__0" value: "sum" } output_map { key: "OUTPUT__1" value: "between" } },
  { model_name: "second" model_version: -1
    input_map { key: "left" value: "sum" } input_map { key: "right" value: "between" }
    output_map { key: "OUTPUT__0" value: "result" } }
] }
"""


class Watched(TorchExecutor, DeviceExecutor):
    """An instance whose device is the CPU; remembers what it was given and what it kept."""

    seen: list = []  # noqa: RUF012 - shared on purpose

    def run_on_device(self, inputs, outputs, keep):
        kinds = {
            name: "device" if not isinstance(given, np.ndarray) else "host"
            for name, given in inputs.items()
        }
        assert all(
            isinstance(part, DeviceTensor)
            for given in inputs.values()
            if not isinstance(given, np.ndarray)
            for part in given
        )
        self.seen.append((kinds, set(keep)))
        return self._run(inputs, outputs, keep)


class OnDeviceBackend(PyTorchBackend):
    def load(self, context):
        loaded = super().load(context)
        loaded.takes_device_tensors = True
        loaded.may_run_on_loop = False
        return loaded


@pytest.fixture
def watched(monkeypatch):
    Watched.seen.clear()
    monkeypatch.setattr(model_module, "TorchExecutor", Watched)
    return Watched.seen


def test_tensors_between_steps_stay(tmp_path, watched):
    for name in ("first", "second"):
        torch_models.add_sub_exported(tmp_path / name / "1" / "model.pt2", "FP32", (2,))
    add_model(tmp_path, "both", ENSEMBLE)
    registry = BackendRegistry({"pytorch": OnDeviceBackend})
    request = Infer().add("a", np.float32([[1, 2]])).add("b", np.float32([[10, 20]]))
    with running_server(tmp_path, backends=registry) as running:
        answer = outputs(request.send(running, "both"))
        assert answer["result"].tolist() == [[2, 4]]
        assert answer["between"].tolist() == [[-9, -18]]
        # What the client reads as well goes through the CPU.
        assert watched == [
            ({"left": "host", "right": "host"}, {"OUTPUT__0"}),
            ({"left": "device", "right": "host"}, set()),
        ]
        watched.clear()
        answer = outputs(request.want("result").send(running, "both"))
        assert answer["result"].tolist() == [[2, 4]]
        assert watched == [
            ({"left": "host", "right": "host"}, {"OUTPUT__0", "OUTPUT__1"}),
            ({"left": "device", "right": "device"}, set()),
        ]
        watched.clear()
        direct = Infer().add("left", np.float32([[1, 2]])).add("right", np.float32([[1, 2]]))
        assert outputs(direct.send(running, "first"))["OUTPUT__0"].tolist() == [[2, 4]]
        assert watched == [({"left": "host", "right": "host"}, set())]


def test_a_reader_elsewhere_gets_it_through_the_cpu(tmp_path, watched):
    torch_models.add_sub_exported(tmp_path / "first" / "1" / "model.pt2", "FP32", (2,))
    second = 'backend: "identity" max_batch_size: 4\n'
    second += "".join(
        f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}\n'
        for name in ("left", "right")
    )
    second += 'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }\n'
    add_model(tmp_path, "second", second)
    add_model(tmp_path, "both", ENSEMBLE)
    registry = BackendRegistry({"pytorch": OnDeviceBackend})
    request = Infer().add("a", np.float32([[1, 2]])).add("b", np.float32([[10, 20]]))
    with running_server(tmp_path, backends=registry) as running:
        assert outputs(request.send(running, "both"))["result"].tolist() == [[11, 22]]
    assert watched == [({"left": "host", "right": "host"}, set())]

"""The GPU's executor with the CPU standing in for the GPU: everything but CUDA itself.

tests/gpu runs the same code where there is a GPU.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import Placement  # noqa: E402
from shoal.backends.pytorch import graphs  # noqa: E402
from shoal.backends.pytorch import model as model_module  # noqa: E402
from shoal.backends.pytorch.script import ScriptProgram  # noqa: E402
from shoal.core.device_tensor import DeviceTensor, OnDevice  # noqa: E402
from shoal.core.dtypes import FP32  # noqa: E402
from shoal.errors import BackendFailure, ConfigError  # noqa: E402
from tests.support.torch_models import AddSub  # noqa: E402

ON_GPU = Placement("KIND_GPU", 0)
BOTH = [("left", "FP32", 2), ("right", "FP32", 2)]
RESULTS = [("OUTPUT__0", "FP32", 2), ("OUTPUT__1", "FP32", 2)]


class Stream:
    def __init__(self, device=None):
        self.waits = 0

    def wait_stream(self, other):
        self.waits += 1

    def synchronize(self):
        self.waits += 1


class Event:
    waited = 0

    def __init__(self, blocking=False):
        self.blocking = blocking

    def record(self, stream):
        pass

    def synchronize(self):
        Event.waited += 1


class Graph:
    """What a captured graph does: the same computation, from and to the same memory."""

    replays = 0

    def __init__(self, call, inputs, outputs):
        self._call, self._inputs, self._outputs = call, inputs, outputs

    def pool(self):
        return "pool"

    def replay(self):
        Graph.replays += 1
        for name, value in self._call(self._inputs).items():
            self._outputs[name].copy_(value)


def captured(call, inputs, stream, pool):
    outputs = {name: value.clone() for name, value in call(inputs).items()}
    return Graph(call, inputs, outputs), outputs


@pytest.fixture
def gpu(monkeypatch):
    """Makes the first GPU be the CPU; a list of how often the cache was emptied comes back."""
    emptied = []
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(graphs, "_capture", captured)
    monkeypatch.setattr(model_module, "has_cuda", lambda: True)
    monkeypatch.setattr(model_module, "TorchExecutor", model_module.CudaExecutor)
    monkeypatch.setattr(model_module.PyTorchModel, "_device", lambda *_: cpu)
    read = model_module.settings.read
    # Without CUDA there is no page-locked memory to be had.
    monkeypatch.setattr(
        model_module.settings,
        "read",
        lambda *given: replace(read(*given), pin_inputs=False, pin_outputs=False),
    )
    Event.waited = Graph.replays = 0
    return emptied


def load(loader, written, **more):
    return loader.load(written, placements=[ON_GPU], **more)


def add_sub(loader, config, batch=4, **more):
    loader.script(AddSub())
    return load(loader, config(BOTH, RESULTS, batch), **more)


def on_device(array, shape=None):
    content = OnDevice(torch.from_numpy(array), lambda tensor: tensor.numpy())
    return DeviceTensor("t", FP32, shape or array.shape, content)


def test_arrays_in_and_out(loader, config, gpu):
    loaded = add_sub(loader, config)
    assert loaded.takes_device_tensors
    assert not loaded.may_run_on_loop
    executor = loaded.executor(ON_GPU)
    rows = np.float32([[1, 2], [3, 4]])
    difference, total = executor.run({"left": rows, "right": rows}, ["OUTPUT__1", "OUTPUT__0"])
    assert total.tolist() == [[2, 4], [6, 8]]
    assert difference.tolist() == [[0, 0], [0, 0]]
    assert Event.waited == 1
    executor.close()
    loaded.close()
    assert gpu


def test_tensors_stay(loader, config, gpu):
    executor = add_sub(loader, config).executor(ON_GPU)
    one, two = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])
    total, difference = executor.run_on_device(
        {
            "left": [on_device(one), on_device(two.reshape(4), (2, 2))],
            "right": np.ones((3, 2), np.float32),
        },
        ["OUTPUT__0", "OUTPUT__1"],
        {"OUTPUT__0"},
    )
    assert isinstance(total, OnDevice)
    assert total.to_host(total.array).tolist() == [[2, 3], [4, 5], [6, 7]]
    assert difference.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_graphs(loader, config, gpu):
    loaded = add_sub(loader, config, parameters={"CUDA_GRAPHS": "1,3"})
    executor = loaded.executor(ON_GPU)
    for rows, replays in ((1, 1), (2, 2), (3, 3), (4, 3)):  # there is none for four
        array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        total, _ = executor.run({"left": array, "right": array}, ["OUTPUT__0", "OUTPUT__1"])
        assert np.array_equal(total, array * 2)
        assert Graph.replays == replays


def test_outputs_of_a_graph_are_not_overwritten(loader, config, gpu):
    loaded = add_sub(loader, config, parameters={"CUDA_GRAPHS": "true"})
    executor = loaded.executor(ON_GPU)
    kept = []
    for value in (1, 2):
        row = np.full((1, 2), value, np.float32)
        (result,) = executor.run_on_device(
            {"left": [on_device(row)], "right": row}, ["OUTPUT__0"], {"OUTPUT__0"}
        )
        kept.append(result)
    assert [item.array.tolist() for item in kept] == [[[2, 2]], [[4, 4]]]


def test_a_graph_without_a_batch(loader, config, gpu):
    loaded = add_sub(loader, config, batch=0, parameters={"CUDA_GRAPHS": "true"})
    row = np.float32([1, 2])
    (total,) = loaded.executor(ON_GPU).run({"left": row, "right": row}, ["OUTPUT__0"])
    assert total.tolist() == [2, 4]
    assert Graph.replays == 1


def test_graphs_want_fixed_shapes(loader, config, gpu):
    loader.script(AddSub())
    inputs = [("left", "FP32", -1), ("right", "FP32", -1)]
    loaded = load(loader, config(inputs, RESULTS, 4), parameters={"CUDA_GRAPHS": "true"})
    with pytest.raises(ConfigError, match="a CUDA graph has fixed shapes, and input 'left' has no"):
        loaded.executor(ON_GPU)


class Shrinks(torch.nn.Module):
    def forward(self, left, right):
        return left[:1] + right[:1]


def test_a_model_that_cannot_be_captured(loader, config, gpu):
    loader.script(Shrinks())
    loaded = load(loader, config(BOTH, RESULTS[:1], 4), parameters={"CUDA_GRAPHS": "true"})
    with pytest.raises(ConfigError, match=r"cannot be captured as a CUDA graph.*one row per row"):
        loaded.executor(ON_GPU)


def test_half_precision_and_strings_and_cleaning(loader, config, gpu):
    loader.eager(
        """
class M(torch.nn.Module):
    def forward(self, x, names):
        assert x.dtype == torch.float16
        return x * 2, [name.upper() for name in names]
"""
    )
    written = config(
        [("x", "FP32", 1), ("names", "STRING", 1)], [("y", "FP32", 1), ("big", "STRING", 1)], 4
    )
    parameters = {"HALF_PRECISION": "fp16", "ENABLE_CACHE_CLEANING": "true"}
    executor = load(loader, written, parameters=parameters).executor(ON_GPU)
    result, big = executor.run(
        {"x": np.float32([[1.5]]), "names": np.array([[b"ada"]], object)}, ["y", "big"]
    )
    assert (result.dtype, result.tolist(), big.tolist()) == (np.float32, [[3]], [[b"ADA"]])
    assert len(gpu) == 1


def test_a_broken_gpu_is_not_ready(loader, config, gpu, caplog):
    loader.eager(
        "class M(torch.nn.Module):\n    def forward(self, x):\n"
        "        raise RuntimeError('CUDA error: device-side assert triggered\\nMore')\n"
    )
    loaded = load(loader, config([("x", "FP32", 1)], [("y", "FP32", 1)]))
    assert loaded.ready()
    with pytest.raises(BackendFailure, match="device-side assert"):
        loaded.executor(ON_GPU).run({"x": np.float32([1])}, ["y"])
    assert not loaded.ready()
    assert "until the server is restarted" in caplog.text


def test_a_traced_model_on_a_gpu(loader, monkeypatch):
    loader.trace(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    load, wanted = torch.jit.load, []

    def load_as_pytorch_does(file, map_location=None, _restore_shapes=False):
        device = torch.device(map_location)
        wanted.append(device.type)
        if device.type == "cuda" and _restore_shapes:
            raise RuntimeError("CUDA error: invalid argument")
        return load(file, map_location="cpu", _restore_shapes=_restore_shapes)

    monkeypatch.setattr(torch.jit, "load", load_as_pytorch_does)
    program = ScriptProgram(loader.script_file, torch.device("cuda", 0))
    assert program.device == torch.device("cuda", 0)
    assert [slot.example for slot in program.inputs] == [(2, 3), (2, 3)]
    assert wanted[0] == "cuda"

"""The GPU's executor with the CPU standing in for the GPU: everything but CUDA itself.

tests/gpu runs the same code where there is a GPU.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import Placement  # noqa: E402
from shoal.backends.pytorch import cuda, graphs  # noqa: E402
from shoal.backends.pytorch import model as model_module  # noqa: E402
from shoal.backends.pytorch.load_check import LoadCheck  # noqa: E402
from shoal.backends.pytorch.script import ScriptProgram  # noqa: E402
from shoal.config.model import ModelOptimizationPolicy  # noqa: E402
from shoal.core.device_tensor import DeviceTensor, OnDevice  # noqa: E402
from shoal.core.dtypes import FP32  # noqa: E402
from shoal.errors import BackendFailure, ConfigError  # noqa: E402
from tests.support import fake_cuda  # noqa: E402
from tests.support.fake_cuda import Event  # noqa: E402
from tests.support.torch_models import AddSub  # noqa: E402

ON_GPU = Placement("KIND_GPU", 0)
BOTH = [("left", "FP32", 2), ("right", "FP32", 2)]
RESULTS = [("OUTPUT__0", "FP32", 2), ("OUTPUT__1", "FP32", 2)]


class Graph:
    """What a captured graph does: the same computation, from and to the same memory."""

    replays = 0

    def __init__(self, body):
        self._body = body

    def pool(self):
        return "pool"

    def replay(self):
        Graph.replays += 1
        self._body()


def captured(body, stream, pool):
    body()
    return Graph(body)


@pytest.fixture
def gpu(monkeypatch):
    """Makes the first GPU be the CPU; a list of how often the cache was emptied comes back."""
    emptied = []
    cpu = torch.device("cpu")
    fake_cuda.replace(monkeypatch)
    monkeypatch.setattr(LoadCheck, "seconds", lambda *_: 1.0)
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
    assert loaded.may_run_on_loop  # while it is quick
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
    Graph.replays = 0
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


def test_graphs_that_give_other_results_are_not_used(loader, config, gpu, monkeypatch, caplog):
    def wrong(graph):
        Graph.replays += 1  # and computes nothing

    monkeypatch.setattr(Graph, "replay", wrong)
    loaded = add_sub(loader, config, parameters={"CUDA_GRAPHS": "true"})
    executor = loaded.executor(ON_GPU)
    assert not executor.has_graphs
    row = np.float32([[1, 2]])
    (total,) = executor.run({"left": row, "right": row}, ["OUTPUT__0"])
    assert total.tolist() == [[2, 4]]
    assert "it runs without them" in caplog.text


def test_a_capture_that_another_thread_spoils_is_repeated(loader, config, gpu, monkeypatch):
    spoilt = []

    def capture(body, stream, pool):
        if len(spoilt) < 2:
            spoilt.append(body)
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        return captured(body, stream, pool)

    monkeypatch.setattr(graphs, "_capture", capture)
    executor = add_sub(loader, config, parameters={"CUDA_GRAPHS": "2"}).executor(ON_GPU)
    assert executor.has_graphs
    assert len(spoilt) == 2
    spoilt[:] = ()
    monkeypatch.setattr(graphs, "_TRIES", 2)
    with pytest.raises(ConfigError, match="cannot be captured as a CUDA graph: CUDA error"):
        add_sub(loader, config, parameters={"CUDA_GRAPHS": "2"}).executor(ON_GPU)


def test_a_graph_without_a_batch(loader, config, gpu):
    loaded = add_sub(loader, config, batch=0, parameters={"CUDA_GRAPHS": "true"})
    executor = loaded.executor(ON_GPU)
    Graph.replays = 0
    row = np.float32([1, 2])
    (total,) = executor.run({"left": row, "right": row}, ["OUTPUT__0"])
    assert total.tolist() == [2, 4]
    assert Graph.replays == 1


def test_graphs_want_fixed_shapes(loader, config, gpu):
    loader.script(AddSub())
    inputs = [("left", "FP32", -1), ("right", "FP32", -1)]
    loaded = load(loader, config(inputs, RESULTS, 4), parameters={"CUDA_GRAPHS": "true"})
    with pytest.raises(ConfigError, match="a CUDA graph has fixed shapes, and input 'left' has no"):
        loaded.executor(ON_GPU)


def cuda_policy(*specs, **more):
    policy = ModelOptimizationPolicy
    return policy(cuda=policy.Cuda(graphs=True, graph_spec=specs, **more))


def test_graphs_of_the_shapes_that_triton_configs_list(loader, config, gpu):
    loader.script(AddSub())
    spec = ModelOptimizationPolicy.Cuda.GraphSpec
    shapes = [{name: spec.Shape(dim=(width,)) for name in ("left", "right")} for width in (2, 5)]
    lowest = spec.LowerBound(batch_size=3)
    listed = (
        spec(batch_size=2, input=shapes[0]),
        spec(batch_size=4, input=shapes[1], graph_lower_bound=lowest),
    )
    inputs = [("left", "FP32", -1), ("right", "FP32", -1)]
    results = [(name, "FP32", -1) for name in ("OUTPUT__0", "OUTPUT__1")]
    loaded = load(loader, config(inputs, results, 4, optimization=cuda_policy(*listed)))
    executor = loaded.executor(ON_GPU)
    replays = 0
    for rows, width, replayed in (
        *((1, 2, True), (2, 2, True), (3, 2, False)),
        *((3, 5, True), (4, 5, True), (2, 5, False)),  # below its lower bound
        (1, 3, False),  # no such shape
    ):
        array = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
        total, _ = executor.run({"left": array, "right": array}, ["OUTPUT__0", "OUTPUT__1"])
        assert np.array_equal(total, array * 2)
        replays += replayed
        assert Graph.replays == replays


def test_a_graph_of_a_shape_that_the_config_does_not_have(loader, config, gpu):
    loader.script(AddSub())
    spec = ModelOptimizationPolicy.Cuda.GraphSpec
    listed = spec(batch_size=2, input={"left": spec.Shape(dim=(7,))})
    loaded = load(loader, config(BOTH, RESULTS, 4, optimization=cuda_policy(listed)))
    with pytest.raises(ConfigError, match=r"input 'left' has the dims \(2,\), not \(7,\)"):
        loaded.executor(ON_GPU)


@pytest.mark.parametrize("graphs", [False, True])
def test_outputs_are_copied_on_a_stream_of_their_own(loader, config, gpu, graphs, monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "set_stream", used.append)
    policy = ModelOptimizationPolicy
    optimization = policy(cuda=policy.Cuda(graphs=graphs, output_copy_stream=True))
    loader.script(AddSub())
    executor = load(loader, config(BOTH, RESULTS, 4, optimization=optimization)).executor(ON_GPU)
    used.clear()
    executor._copying.waits = Graph.replays = 0
    row = np.float32([[1, 2]])
    (total,) = executor.run({"left": row, "right": row}, ["OUTPUT__0"])
    assert total.tolist() == [[2, 4]]
    assert used[:2] == [executor._stream, executor._copying]
    assert executor._copying.waits == 1
    assert Graph.replays == graphs


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


def test_inputs_of_all_sizes_and_types_are_copied(loader, config, gpu):
    class Every(torch.nn.Module):
        def forward(self, small, large, scalar, flags, halves):
            return small * scalar + large.sum(1, keepdim=True) + halves.float(), ~flags

    loader.script(Every())
    large = 20_000  # in floats: more than is copied with others
    inputs = [("small", "FP32", 2), ("large", "FP32", large), ("scalar", "FP32", 1)]
    inputs += [("flags", "BOOL", 3), ("halves", "BF16", 2)]
    written = config(inputs, [("OUTPUT__0", "FP32", 2), ("OUTPUT__1", "BOOL", 3)], 4)
    executor = load(loader, written).executor(ON_GPU)
    for rows in (1, 3):
        total, flags = executor.run(
            {
                "small": np.full((rows, 2), 2, np.float32),
                "large": np.ones((rows, large), np.float32),
                "scalar": np.full((rows, 1), 3, np.float32),
                "flags": np.array([[True, False, True]] * rows),
                "halves": np.full((rows, 2), 0x3F80, np.uint16),  # 1 in BF16
            },
            ["OUTPUT__0", "OUTPUT__1"],
        )
        assert total.tolist() == [[large + 7] * 2] * rows
        assert flags.tolist() == [[False, True, False]] * rows


def test_results_that_stay_do_not_share_memory_with_later_inputs(loader, config, gpu):
    class Same(torch.nn.Module):
        def forward(self, x):
            return x

    loader.script(Same())
    executor = load(loader, config([("x", "FP32", 2)], RESULTS[:1], 4)).executor(ON_GPU)
    kept = [
        executor.run_on_device({"x": np.float32([[value, 2]])}, ["OUTPUT__0"], {"OUTPUT__0"})[0]
        for value in (1, 5)
    ]
    assert [item.array.tolist() for item in kept] == [[[1, 2]], [[5, 2]]]


def test_large_outputs_of_a_graph(loader, config, gpu):
    class Repeats(torch.nn.Module):
        def forward(self, left, right):
            return (left + right).repeat(1, 200_000)

    loader.script(Repeats())
    written = config(BOTH, [("OUTPUT__0", "FP32", 400_000)], 2)
    executor = load(loader, written, parameters={"CUDA_GRAPHS": "true"}).executor(ON_GPU)
    Graph.replays = 0
    row = np.float32([[1, 2]])
    (first,) = executor.run({"left": row, "right": row}, ["OUTPUT__0"])
    (second,) = executor.run({"left": row, "right": row * 2}, ["OUTPUT__0"])
    assert (first[0, -2:].tolist(), second[0, -2:].tolist()) == ([2, 4], [3, 6])
    assert Graph.replays == 2


def warnings_in(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        )

    def forward(self, image):
        return self.layers(image)


IMAGES = [("image", "FP32", 3, 8, 8)], [("OUTPUT__0", "FP32", 4, 8, 8)]


@pytest.mark.parametrize("form", ["script", "export"])
@pytest.mark.parametrize("parameters", [{}, {"HALF_PRECISION": "bf16"}], ids=["fp32", "bf16"])
def test_models_are_made_faster_at_load(loader, config, gpu, form, parameters, caplog):
    if form == "script":
        loader.script(Convolutions())
    else:
        loader.export(Convolutions(), torch.zeros(2, 3, 8, 8))
    image = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    off = {"OPTIMIZE_FOR_INFERENCE": "false"}
    plain = load(loader, config(*IMAGES, 4), parameters=off)
    loaded = load(loader, config(*IMAGES, 4), parameters=parameters)
    (expected,) = plain.executor(ON_GPU).run({"image": image}, ["OUTPUT__0"])
    (found,) = loaded.executor(ON_GPU).run({"image": image}, ["OUTPUT__0"])
    assert np.allclose(found, expected, atol=0.05)
    (program,) = loaded._programs.values()
    (original,) = plain._programs.values()
    code = str(program.module.graph)
    assert "batch_norm" in str(
        original.module.inlined_graph if form == "script" else original.module.graph
    )
    assert "batch_norm" not in code
    assert program.channels_last is bool(parameters)
    assert program.nbytes > original.nbytes // 2 - 1  # constants are counted, too
    assert not warnings_in(caplog)


def test_what_optimising_makes_slower_stays_as_it_is(loader, config, gpu, monkeypatch, caplog):
    loader.script(Convolutions())
    took = iter([1.0, 1.1])
    monkeypatch.setattr(LoadCheck, "seconds", lambda *_: next(took))
    (program,) = load(loader, config(*IMAGES, 4))._programs.values()
    assert "batch_norm" in str(program.module.inlined_graph)
    assert not warnings_in(caplog)


def test_the_time_of_a_program(loader, config, gpu, monkeypatch):
    monkeypatch.undo()
    loader.script(Convolutions())
    loaded = loader.load(config(*IMAGES, 4))
    (program,) = loaded._programs.values()
    check = LoadCheck.of(program, config(*IMAGES, 4), loaded.settings, "")
    assert 0 < check.seconds(program) < math.inf
    program.module = None
    assert check.seconds(program) == math.inf


@pytest.mark.parametrize("problem", ["differs", "fails", "cannot"])
def test_a_model_that_optimising_would_change_stays_as_it_is(
    loader, config, gpu, problem, caplog, monkeypatch
):
    loader.script(Convolutions())

    def optimize(program):
        if problem == "cannot":
            raise RuntimeError("no such operator")
        made = Convolutions().eval()
        made.forward = torch.abs if problem == "differs" else None
        program._replace_module(made)
        return True

    monkeypatch.setattr(ScriptProgram, "optimize", optimize)
    loaded = load(loader, config(*IMAGES, 4))
    (program,) = loaded._programs.values()
    assert isinstance(program.module, torch.jit.ScriptModule)
    image = np.zeros((1, 3, 8, 8), np.float32)
    assert loaded.executor(ON_GPU).run({"image": image}, ["OUTPUT__0"])[0].shape == (1, 4, 8, 8)
    (record,) = warnings_in(caplog)
    assert ("no such operator" if problem == "cannot" else "OPTIMIZE_FOR_INFERENCE: false") in (
        record.getMessage()
    )


def test_half_precision_that_changes_the_results_is_not_used(loader, config, gpu, caplog):
    class Large(torch.nn.Module):
        def forward(self, x):
            return x * 1e6 / 1e6  # more than FP16 can hold

    loader.script(Large())
    written = config([("x", "FP32", 2)], RESULTS[:1], 4)
    loaded = load(loader, written, parameters={"HALF_PRECISION": "fp16"})
    (found,) = loaded.executor(ON_GPU).run({"x": np.float32([[1, 2]])}, ["OUTPUT__0"])
    assert found.tolist() == [[1, 2]]
    assert "the model runs in full precision" in caplog.text


def test_a_model_that_random_inputs_break_is_served_as_it_is(loader, config, gpu, caplog):
    class Picky(torch.nn.Module):
        def forward(self, x):
            assert bool((x > 1).all())
            return x

    loader.script(Picky())
    loaded = load(loader, config([("x", "FP32", 2)], RESULTS[:1], 4))
    (found,) = loaded.executor(ON_GPU).run({"x": np.float32([[2, 3]])}, ["OUTPUT__0"])
    assert found.tolist() == [[2, 3]]
    assert not warnings_in(caplog)


def test_short_waits_spin_and_long_ones_block(loader, config, gpu, monkeypatch):
    """Spinning is measured by CPU time, so that waiting for the GIL does not count."""
    executor = add_sub(loader, config).executor(ON_GPU)
    took = {"cpu": 10_000, "clock": 5_000_000}
    now = {"cpu": 0, "clock": 0}
    used = []

    def reader(name):
        def read():
            now[name] += took[name]
            return now[name]

        return read

    monkeypatch.setattr(cuda.time, "thread_time_ns", reader("cpu"))
    monkeypatch.setattr(cuda.time, "monotonic_ns", reader("clock"))
    monkeypatch.setattr(Event, "synchronize", lambda event: used.append(event.blocking))
    executor._wait()
    executor._wait()
    assert (used, executor.blocked_ns) == ([False, False], 0)
    took["cpu"] = 1_000_000
    executor._wait()
    executor._wait()
    assert (used[2:], executor.blocked_ns) == ([False, True], 5_000_000)
    took["clock"] = 50_000  # short again
    executor._wait()
    executor._wait()
    assert used[4:] == [True, False]
    took["cpu"], took["clock"] = 1_000_000, 5_000_000
    used.clear()
    for _ in range(32):
        executor._wait()
    assert used.count(False) == 1


def test_memory_on_gpus(loader, config, gpu, monkeypatch):
    class Weights(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1000))

        def forward(self, left, right):
            return left * self.weight[:2] + right

    loader.script(Weights())
    written = config(BOTH, RESULTS[:1], 4)
    loaded = load(loader, written, parameters={"CUDA_GRAPHS": "true"})
    assert loaded.gpu_memory() == {}  # the CPU is no GPU
    executor = loaded.executor(ON_GPU)
    executor._graphs.nbytes = 50
    (program,) = loaded._programs.values()
    monkeypatch.setattr(program, "device", torch.device("cuda", 1))
    assert loaded.gpu_memory() == {0: 50, 1: 4000}
    executor.close()
    assert loaded.gpu_memory() == {1: 4000}

"""PyTorch models on a GPU: every form, half precision, CUDA graphs, streams, ensembles, memory.

    python -m pytest tests/gpu -q -m "not slow"

Needs PyTorch with CUDA, numpy and Shoal's own dependencies; left out where there is no GPU. Those
that are marked as slow compile machine code, some for minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from shoal.backends.base import LoadContext, Placement
    from shoal.backends.pytorch.archive import ProgramKind
    from shoal.backends.pytorch.backend import PyTorchBackend
    from shoal.backends.pytorch.cuda import CudaExecutor
    from shoal.backends.pytorch.library import to_array
    from shoal.config.model import (
        ModelConfig,
        ModelInput,
        ModelOptimizationPolicy,
        ModelOutput,
        ModelParameter,
    )
    from shoal.core.device_tensor import DeviceTensor, OnDevice
    from shoal.core.dtypes import FP32
    from shoal.errors import BackendFailure, ConfigError
    from shoal.testing.server import running_server, wait_until
    from tests.support import torch_models
    from tests.support.client import Infer, outputs

    Cuda = ModelOptimizationPolicy.Cuda
    ON_GPU = Placement("KIND_GPU", 0, "m_0_0")
    GPU = torch.device("cuda", 0)

LOAD_A_PACKAGE = "import sys, torch; torch._inductor.aoti_load_package(sys.argv[1])"
QUICKLY = {"compile_threads": 1, "aot_inductor.compile_wrapper_opt_level": "O0"}
ROW = 64


def make_config(inputs, results, batch=0, parameters=None):
    return ModelConfig(
        name="m",
        backend="pytorch",
        max_batch_size=batch,
        input=tuple(
            ModelInput(name=n, data_type="TYPE_" + t, dims=tuple(d)) for n, t, *d in inputs
        ),
        output=tuple(
            ModelOutput(name=n, data_type="TYPE_" + t, dims=tuple(d)) for n, t, *d in results
        ),
        parameters={key: ModelParameter(text) for key, text in (parameters or {}).items()},
    )


class Loader:
    def __init__(self, folder):
        self.folder = folder / "m"
        self.version = self.folder / "1"
        self.version.mkdir(parents=True)
        self.backend = PyTorchBackend()
        self.loaded = []

    def load(self, config=None, count=1, **parameters):
        wrapped = {key: ModelParameter(text) for key, text in parameters.items()}
        config = replace(config or ModelConfig(), name="m", parameters=wrapped)
        config = self.backend.complete(config, self.folder, self.version, {})
        context = LoadContext(self.folder, self.version, 1, config, [ON_GPU] * count, cores=4)
        self.loaded.append(self.backend.load(context))
        return self.loaded[-1]

    def executor(self, config=None, **parameters):
        return self.load(config, **parameters).executor(ON_GPU)


@pytest.fixture
def loader(tmp_path):
    made = Loader(tmp_path)
    yield made
    for loaded in made.loaded:
        loaded.close()


def add_sub_config(batch=8, **parameters):
    return make_config(
        [("INPUT__0", "FP32", ROW), ("INPUT__1", "FP32", ROW)],
        [("OUTPUT__0", "FP32", ROW), ("OUTPUT__1", "FP32", ROW)],
        batch,
        parameters,
    )


def numbers(rows, seed=0):
    return np.random.default_rng(seed).random((rows, ROW), np.float32)


def check_add_sub(executor, rows=3, names=("INPUT__0", "INPUT__1")):
    left, right = numbers(rows), numbers(rows, 1)
    difference, total = executor.run(
        dict(zip(names, (left, right), strict=True)), ["OUTPUT__1", "OUTPUT__0"]
    )
    assert np.array_equal(total, left + right)
    assert np.array_equal(difference, left - right)


def write_add_sub(loader, form):
    if form == "script":
        torch_models.add_sub_script(loader.version / "model.pt")
    elif form == "export":
        torch_models.add_sub_exported(loader.version / "model.pt2", "FP32", (ROW,))
    else:
        (loader.version / "model.py").write_text(
            "import torch\nclass M(torch.nn.Module):\n    def forward(self, left, right):\n"
            "        return left + right, left - right\n"
        )


# --- the forms ---


@pytest.mark.parametrize("form", ["script", "export", "eager"])
def test_forms(loader, form):
    write_add_sub(loader, form)
    loaded = loader.load(add_sub_config())
    assert loaded.takes_device_tensors
    executor = loaded.executor(ON_GPU)
    assert isinstance(executor, CudaExecutor)
    for rows in (1, 3, 8):
        check_add_sub(executor, rows)


@pytest.mark.parametrize("traced_on", ["cpu", "cuda"])
def test_a_traced_model(loader, traced_on):
    example = [torch.zeros(2, ROW, device=traced_on) for _ in range(2)]
    torch_models.trace(torch_models.AddSub(), example, loader.version / "model.pt")
    loaded = loader.load(ModelConfig())  # datatypes and shapes are those of the example
    assert loaded.kind is ProgramKind.SCRIPT
    check_add_sub(loaded.executor(ON_GPU), names=("left", "right"))


def test_an_export_made_on_the_cpu_with_constants(loader):
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.arange(ROW, dtype=torch.float32))

        def forward(self, x):
            return x + self.shift + torch.ones(ROW)  # names a device in its graph

    torch_models.export(Shift(), (torch.zeros(2, ROW),), loader.version / "model.pt2")
    (result,) = loader.executor().run({"x": numbers(2)}, ["OUTPUT__0"])
    assert np.allclose(result, numbers(2) + np.arange(ROW) + 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(300)
def test_an_aotinductor_package(loader):
    batch = torch.export.Dim("batch")
    zeros = [torch.zeros(2, ROW, device=GPU) for _ in range(2)]
    program = torch.export.export(
        torch_models.AddSub(), tuple(zeros), dynamic_shapes=({0: batch}, {0: batch})
    )
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(loader.version / "model.pt2"), inductor_configs=QUICKLY
    )
    alone = [sys.executable, "-c", LOAD_A_PACKAGE, str(loader.version / "model.pt2")]
    if subprocess.run(alone, check=False).returncode:
        pytest.skip("this PyTorch cannot load a package for the GPU, with or without a server")
    loaded = loader.load(add_sub_config(), count=2)
    assert loaded.kind is ProgramKind.COMPILED
    check_add_sub(loaded.executor(ON_GPU))
    check_add_sub(loaded.executor(ON_GPU), 5)
    on_cpu = [Placement("KIND_CPU")]
    context = LoadContext(loader.folder, loader.version, 1, add_sub_config(), on_cpu)
    with pytest.raises(ConfigError, match="was compiled for the device cuda, not cpu"):
        loader.backend.load(context)


def test_bf16_and_strings(loader):
    (loader.version / "model.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x, names):\n"
        "        assert x.is_cuda and x.dtype == torch.bfloat16\n"
        "        return x * 2, [name.upper() for name in names]\n"
    )
    config = make_config(
        [("x", "BF16", 2), ("names", "STRING", 1)], [("y", "BF16", 2), ("big", "STRING", 1)], 4
    )
    bits = np.array([[0x3F80, 0x4000]], np.uint16)  # 1, 2
    result, big = loader.executor(config).run(
        {"x": bits, "names": np.array([[b"ada"]], object)}, ["y", "big"]
    )
    assert result.tolist() == [[0x4000, 0x4080]]
    assert big.tolist() == [[b"ADA"]]


# --- ways to be quicker ---


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(16, 4, 3, padding=1),
        )

    def forward(self, x):
        return self.layers(x)


IMAGES = ([("x", "FP32", 3, 32, 32)], [("y", "FP32", 4, 32, 32)])


def write_convolutions(loader, form):
    if form == "script":
        torch_models.script(Convolutions(), loader.version / "model.pt")
    else:
        example = (torch.zeros(2, 3, 32, 32),)
        torch_models.export(Convolutions(), example, loader.version / "model.pt2")


@pytest.mark.parametrize("form", ["script", "export"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"HALF_PRECISION": "fp16"},
        {"HALF_PRECISION": "bf16"},
        {"CHANNELS_LAST": "true"},
        {"HALF_PRECISION": "fp16", "CHANNELS_LAST": "true"},
        {"CUDA_GRAPHS": "true"},
        {"HALF_PRECISION": "fp16", "CHANNELS_LAST": "true", "CUDA_GRAPHS": "1,4"},
        {"DISABLE_CUDNN": "true"},
        {"INFERENCE_MODE": "false"},
        {"ENABLE_CACHE_CLEANING": "true"},
    ],
    ids="+".join,
)
def test_ways_to_run(loader, form, parameters):
    write_convolutions(loader, form)
    images = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    config = make_config(*IMAGES, 4)
    plain = loader.executor(config, OPTIMIZE_FOR_INFERENCE="false")
    (expected,) = plain.run({"x": images}, ["y"])
    executor = loader.executor(config, **parameters)
    for rows in (3, 1, 2):
        (result,) = executor.run({"x": images[:rows]}, ["y"])
        assert result.dtype == np.float32
        assert np.allclose(result, expected[:rows], atol=0.05)


@pytest.mark.parametrize("form", ["script", "export"])
@pytest.mark.parametrize("half", ["", "fp16"])
def test_networks_are_made_faster_at_load(loader, form, half, caplog):
    write_residual(loader, form)
    images = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    config = make_config([("image", "FP32", 3, 32, 32)], [("OUTPUT__0", "FP32", 8, 32, 32)], 4)
    plain = loader.executor(config, OPTIMIZE_FOR_INFERENCE="false")
    (expected,) = plain.run({"image": images}, ["OUTPUT__0"])
    loaded = loader.load(config, **({"HALF_PRECISION": half} if half else {}))
    (program,) = loaded._programs.values()
    code = str(program.module.graph)
    assert "batch_norm" not in code
    assert "cudnn_convolution_add_relu" in code
    assert program.channels_last is bool(half)
    (result,) = loaded.executor(ON_GPU).run({"image": images}, ["OUTPUT__0"])
    assert np.linalg.norm(result - expected) < 0.01 * np.linalg.norm(expected)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    (memory,) = loaded.gpu_memory().values()
    assert memory == program.nbytes > 0


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.start = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.inner = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.norm.running_mean.normal_()

    def forward(self, image):
        start = torch.relu(self.start(image))
        return torch.relu(self.norm(self.inner(start)) + start)


def write_residual(loader, form):
    if form == "script":
        torch_models.script(Residual(), loader.version / "model.pt")
    else:
        example = (torch.zeros(2, 3, 32, 32),)
        torch_models.export(Residual(), example, loader.version / "model.pt2")


@pytest.mark.parametrize("graphs", [False, True])
def test_what_optimization_cuda_has(loader, graphs):
    write_add_sub(loader, "script")
    spec = Cuda.GraphSpec
    shapes = {name: spec.Shape(dim=(ROW,)) for name in ("INPUT__0", "INPUT__1")}
    cuda = Cuda(
        graphs=graphs,
        graph_spec=(spec(batch_size=4, input=shapes), spec(batch_size=2, input=shapes)),
        output_copy_stream=True,
        busy_wait_events=True,
    )
    tensors = [[(f"{side}__{n}", "FP32", -1) for n in range(2)] for side in ("INPUT", "OUTPUT")]
    config = replace(make_config(*tensors, 8), optimization=ModelOptimizationPolicy(cuda=cuda))
    executor = loader.executor(config)
    assert executor.has_graphs is graphs
    for _ in range(3):
        for rows in (1, 2, 3, 4, 8):
            check_add_sub(executor, rows)


def test_large_inputs_are_joined_in_page_locked_memory(loader):
    write_add_sub(loader, "script")
    executor = loader.executor(add_sub_config())
    memory = executor.input_memory(1 << 20)
    assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
    width = 100_000
    config = make_config(
        [(f"INPUT__{n}", "FP32", width) for n in range(2)], [("OUTPUT__0", "FP32", width)], 2
    )
    large = loader.executor(config)
    memory = large.input_memory(2 * width * 4)
    left = np.frombuffer(memory, np.float32).reshape(2, width)
    left[:] = np.arange(width)
    (total,) = large.run({"INPUT__0": left, "INPUT__1": np.ones_like(left)}, ["OUTPUT__0"])
    assert np.array_equal(total, left + 1)


def test_results_stay_when_a_graph_is_replayed(loader):
    write_add_sub(loader, "script")
    executor = loader.executor(add_sub_config(), CUDA_GRAPHS="true")
    found = []
    for seed in range(3):
        left = numbers(4, seed)
        inputs = {"INPUT__0": left, "INPUT__1": left}
        found.append((left, executor.run(inputs, ["OUTPUT__0"])[0]))
    for left, result in found:
        assert np.array_equal(result, left * 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torch_compile(loader):
    write_convolutions(loader, "export")
    config = make_config(*IMAGES, 4)
    images = np.random.default_rng(0).random((3, 3, 32, 32), np.float32)
    (expected,) = loader.executor(config).run({"x": images}, ["y"])
    executor = loader.executor(config, ENABLE_TORCH_COMPILE="true")
    for rows in (2, 3, 1):
        (result,) = executor.run({"x": images[:rows]}, ["y"])
        assert np.allclose(result, expected[:rows], atol=0.01)


# --- instances ---


def test_instances_have_streams_of_their_own_and_share_weights(loader):
    write_add_sub(loader, "script")
    loaded = loader.load(add_sub_config(), count=2)
    executors = [loaded.executor(ON_GPU) for _ in range(2)]
    assert executors[0]._stream != executors[1]._stream
    assert loaded.shares_weights
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            list(pool.map(check_add_sub, executors))


def test_a_module_that_puts_itself_on_the_gpu(loader):
    (loader.version / "model.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(1, device='cuda'))\n"
        "    def forward(self, x):\n        return x.to(self.weight.device) + self.weight\n"
    )
    placement = Placement("KIND_MODEL")
    config = make_config([("x", "FP32", 2)], [("y", "FP32", 2)])
    context = LoadContext(loader.folder, loader.version, 1, config, [placement])
    loaded = loader.backend.load(context)
    loader.loaded.append(loaded)
    (result,) = loaded.executor(placement).run({"x": np.float32([1, 2])}, ["y"])
    assert result.tolist() == [2, 3]


def test_memory_comes_back(loader):
    class Big(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 1024, 1024))  # 256 MB

        def forward(self, x):
            return x + self.weight[0, 0, :2]

    torch_models.script(Big(), loader.version / "model.pt")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_before, _ = torch.cuda.mem_get_info()
    loaded = loader.load(make_config([("x", "FP32", 2)], [("y", "FP32", 2)]))
    executor = loaded.executor(ON_GPU)
    executor.run({"x": np.float32([1, 2])}, ["y"])
    assert free_before - torch.cuda.mem_get_info()[0] > 200e6
    executor.close()
    del executor
    loaded.close()
    loader.loaded.clear()
    del loaded
    assert free_before - torch.cuda.mem_get_info()[0] < 100e6


def test_too_large_a_batch_fails_and_the_next_runs(loader):
    (loader.version / "model.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n"
        "        if x.sum() < 0:\n"
        "            torch.empty(1 << 50, device=x.device)\n"
        "        return x\n"
    )
    executor = loader.executor(make_config([("x", "FP32", 2)], [("y", "FP32", 2)]))
    with pytest.raises(BackendFailure, match="out of memory"):
        executor.run({"x": np.float32([-1, -1])}, ["y"])
    assert executor.run({"x": np.float32([1, 1])}, ["y"])[0].tolist() == [1, 1]


# --- tensors that stay on the GPU ---


def test_inputs_and_outputs_on_the_gpu(loader):
    write_add_sub(loader, "export")
    executor = loader.executor(add_sub_config())
    parts = [torch.rand(rows, ROW, device=GPU) for rows in (1, 2)]
    torch.cuda.synchronize()
    given = [
        DeviceTensor("INPUT__0", FP32, tuple(part.shape), OnDevice(part, to_array))
        for part in parts
    ]
    right = numbers(3)
    total, difference = executor.run_on_device(
        {"INPUT__0": given, "INPUT__1": right}, ["OUTPUT__0", "OUTPUT__1"], {"OUTPUT__0"}
    )
    assert total.array.is_cuda
    left = torch.cat(parts).cpu().numpy()
    assert np.array_equal(total.to_host(total.array), left + right)
    assert np.array_equal(difference, left - right)


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input {{ name: "a" data_type: TYPE_FP32 dims: [ {row} ] }}
input {{ name: "b" data_type: TYPE_FP32 dims: [ {row} ] }}
output {{ name: "result" data_type: TYPE_FP32 dims: [ {row} ] }}
ensemble_scheduling {{ step [
  {{ model_name: "first" model_version: -1
    input_map {{ key: "left" value: "a" }} input_map {{ key: "right" value: "b" }}
    output_map {{ key: "OUTPUT__0" value: "sum" }}
    output_map {{ key: "OUTPUT__1" value: "difference" }} }},
  {{ model_name: "second" model_version: -1
    input_map {{ key: "left" value: "sum" }} input_map {{ key: "right" value: "difference" }}
    output_map {{ key: "OUTPUT__0" value: "result" }} }}
] }}
"""


@pytest.mark.timeout(120)
def test_an_ensemble_on_the_gpu(tmp_path):
    for name in ("first", "second"):
        torch_models.add_sub_exported(tmp_path / name / "1" / "model.pt2", "FP32", (ROW,))
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE.format(row=ROW))
    with running_server(tmp_path) as running:
        for name in ("first", "second"):
            group = running.get(f"/v2/models/{name}/config").json["instance_group"][0]
            assert group["kind"] == "KIND_GPU"
            assert running.model(name).takes_device_tensors

        def ask(seed):
            left, right = numbers(2, seed), numbers(2, seed + 100)
            request = Infer().add("a", left, binary=True).add("b", right, binary=True)
            found = outputs(request.want("result", binary_data=True).send(running, "both"))
            assert np.allclose(found["result"], 2 * left, atol=1e-6)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(64)))
        direct = Infer().add("left", numbers(1), binary=True).add("right", numbers(1), binary=True)
        found = outputs(direct.want("OUTPUT__0", binary_data=True).send(running, "first"))
        assert np.array_equal(found["OUTPUT__0"], numbers(1) * 2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("graphs", ["false", "true"])
def test_a_quick_model_moves_to_the_event_loop(tmp_path, graphs):
    torch_models.add_sub_exported(tmp_path / "m" / "1" / "model.pt2", "FP32", (ROW,))
    parameter = f'parameters {{ key: "CUDA_GRAPHS" value {{ string_value: "{graphs}" }} }}'
    (tmp_path / "m" / "config.pbtxt").write_text(f"max_batch_size: 8\n{parameter}\n")
    with running_server(tmp_path) as running:

        def ask(seed):
            left, right = numbers(2, seed), numbers(2, seed + 100)
            request = Infer().add("left", left, binary=True).add("right", right, binary=True)
            found = outputs(request.want("OUTPUT__0", binary_data=True).send(running, "m"))
            assert np.array_equal(found["OUTPUT__0"], left + right)

        for seed in range(200):
            ask(seed)
        assert running.model("m").execution_placement.on_loop()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(400)))
        memory = running.get("/v2/models/m/stats").json["model_stats"][0]["memory_usage"]
        assert {entry["type"] for entry in memory} >= {"CPU"}


def test_the_meters_of_the_gpu(tmp_path):
    torch_models.add_sub_exported(tmp_path / "m" / "1" / "model.pt2", "FP32", (ROW,))
    with running_server(tmp_path) as running:
        text = running.metrics()
        for name in (
            "nv_gpu_utilization",
            "nv_gpu_memory_total_bytes",
            "nv_gpu_memory_used_bytes",
            "nv_gpu_power_usage",
            "nv_gpu_power_limit",
            "nv_energy_consumption",
        ):
            assert f'{name}{{gpu_uuid="GPU-' in text
        (gpu,) = running.get("/v2/console").json["gpus"]
        assert gpu["memory_total_bytes"] > gpu["memory_used_bytes"] > 0
        assert gpu["power_limit_watts"] >= gpu["power_usage_watts"] > 0
        assert 0 <= gpu["utilization"] <= 1


TWO_PROCESSES = """
max_batch_size: 8
instance_group [ { name: "a" kind: KIND_GPU gpus: [ 0 ] }, { name: "b" kind: KIND_GPU gpus: [ 0 ] } ]
parameters { key: "isolation" value { string_value: "process" } }
"""


@pytest.mark.timeout(240)
def test_two_processes_on_one_gpu(tmp_path):
    """As one process for each of two GPUs: groups on the same GPU have processes of their own."""
    torch_models.add_sub_exported(tmp_path / "m" / "1" / "model.pt2", "FP32", (ROW,))
    (tmp_path / "m" / "config.pbtxt").write_text(TWO_PROCESSES)
    with running_server(tmp_path) as running:
        processes = running.model("m")._loaded._processes()
        pids = {process.pid for process in processes}
        assert len(pids) == 2

        def ask(seed):
            left, right = numbers(2, seed), numbers(2, seed + 100)
            request = Infer().add("left", left, binary=True).add("right", right, binary=True)
            found = outputs(request.want("OUTPUT__0", binary_data=True).send(running, "m"))
            assert np.array_equal(found["OUTPUT__0"], left + right)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(200)))
        os.kill(min(pids), signal.SIGKILL)
        with ThreadPoolExecutor(8) as pool:  # the other one goes on
            failed = [one for one in pool.map(_attempt(ask), range(50)) if one is not None]
        assert len(failed) <= 8  # of the batch that it had
        wait_until(lambda: len(running.model("m")._loaded._processes()) == 2)
        ask(0)


def _attempt(ask):
    def once(seed):
        try:
            ask(seed)
        except AssertionError as error:
            return error
        return None

    return once

"""TensorRT engines: with the package and a GPU, and with a replacement for both.

The replacement shows that the backend keeps the rules of TensorRT's API; that the API is as the
replacement has it, only a GPU with the package can show.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shoal.backends.base import LoadContext, Placement  # noqa: E402
from shoal.backends.pytorch import graphs  # noqa: E402
from shoal.config.model import (  # noqa: E402
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelOutput,
)
from shoal.errors import BackendFailure, ConfigError, InvalidArgument  # noqa: E402
from tests.support import fake_cuda, fake_tensorrt  # noqa: E402

BACKEND = "shoal.backends.tensorrt"
ON_GPU = Placement("KIND_GPU", 0, "m_0_0")
NOT_PINNED = ModelOptimizationPolicy.PinnedMemoryBuffer(enable=False)
ENGINE = {
    "inputs": {"left": ["FLOAT", [-1, 2]], "right": ["FLOAT", [-1, 2]]},
    "outputs": {"total": ["FLOAT", [-1, 2]], "rest": ["FLOAT", [-1, 2]]},
    "profiles": [[1, 4], [5, 8]],
}


@pytest.fixture
def backend(monkeypatch):
    """The backend's module with TensorRT and CUDA replaced; it is imported anew."""
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module())
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    module = importlib.import_module(BACKEND)
    monkeypatch.setattr(module, "has_cuda", lambda: True)
    cpu, devices = torch.device("cpu"), module._device
    monkeypatch.setattr(module, "_device", lambda placement, file: devices(placement, file) and cpu)
    fake_cuda.replace(monkeypatch)
    yield module
    sys.modules.pop(BACKEND, None)


class Folder:
    def __init__(self, path):
        self.version = path / "m" / "1"
        self.version.mkdir(parents=True)

    def write(self, engine=ENGINE, **changes):
        content = json.dumps({**engine, **changes}) if engine else "not an engine"
        (self.version / "model.plan").write_text(content)

    def context(self, config, *placements):
        return LoadContext(self.version.parent, self.version, 1, config, placements or [ON_GPU])


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def make_config(batch=8, inputs=("left", "right"), outputs=("total", "rest"), **more):
    optimization = ModelOptimizationPolicy(
        input_pinned_memory=NOT_PINNED, output_pinned_memory=NOT_PINNED, cuda=more.pop("cuda", None)
    )
    return ModelConfig(
        name="m",
        backend="tensorrt",
        max_batch_size=batch,
        input=tuple(ModelInput(name=n, data_type="TYPE_FP32", dims=(2,)) for n in inputs),
        output=tuple(
            ModelOutput(name=n, data_type="TYPE_FP32", dims=(-1,) if n == "found" else (2,))
            for n in outputs
        ),
        optimization=optimization,
        **more,
    )


def rows(count, seed=0):
    return np.random.default_rng(seed).random((count, 2), np.float32) + 1


def check(executor, count):
    left, right = rows(count), rows(count, 1)
    rest, total = executor.run({"left": left, "right": right}, ["rest", "total"])
    assert np.array_equal(total, left + right)
    assert np.array_equal(rest, left - right)


def test_a_config_is_completed_from_the_engine(backend, folder):
    folder.write()
    made = backend.TensorRtBackend()
    settings = {"default-max-batch-size": "100"}
    config = made.complete(ModelConfig(name="m"), folder.version.parent, folder.version, settings)
    assert config.max_batch_size == 8  # of the largest profile
    assert [(t.name, t.data_type, t.dims) for t in config.input] == [
        ("left", "TYPE_FP32", (2,)),
        ("right", "TYPE_FP32", (2,)),
    ]
    assert [t.name for t in config.output] == ["rest", "total"]
    assert config.dynamic_batching is not None


def test_each_instance_has_a_context_for_each_profile_it_uses(backend, folder):
    folder.write()
    loaded = backend.TensorRtBackend().load(folder.context(make_config(), ON_GPU, ON_GPU))
    first, second = [loaded.executor(ON_GPU) for _ in range(2)]
    for count in (1, 4, 3):
        check(first, count)
    assert len(fake_tensorrt.Context.made) == 1
    check(first, 8)
    check(second, 5)
    assert len(fake_tensorrt.Context.made) == 3
    size = (folder.version / "model.plan").stat().st_size
    assert loaded.gpu_memory() == {0: size + 3000}
    first.close()
    assert loaded.gpu_memory() == {0: size + 1000}
    loaded.close()


def test_shapes_outside_of_the_profiles(backend, folder):
    folder.write()
    loaded = backend.TensorRtBackend().load(folder.context(make_config(16)))
    executor = loaded.executor(ON_GPU)
    with pytest.raises(InvalidArgument, match=r"no optimisation profile .* left \[9, 2\]"):
        check(executor, 9)
    check(executor, 2)


def test_profiles_of_a_group(backend, folder):
    folder.write()
    group = ModelInstanceGroup(name="m_0", kind="KIND_GPU", count=1, gpus=(0,), profile=("1",))
    loaded = backend.TensorRtBackend().load(folder.context(make_config(instance_group=(group,))))
    executor = loaded.executor(ON_GPU)
    check(executor, 6)
    with pytest.raises(InvalidArgument, match=r"does not take the shape \[2, 2\]"):
        check(executor, 2)
    wrong = make_config(instance_group=(replace(group, profile=("2",)),))
    with pytest.raises(ConfigError, match="no optimisation profile '2': it has 2"):
        backend.TensorRtBackend().load(folder.context(wrong))


def test_an_output_whose_shape_depends_on_the_data(backend, folder):
    folder.write(outputs={"total": ["FLOAT", [-1, 2]], "found": ["FLOAT", [-1]]})
    config = make_config(0, outputs=("total", "found"))
    config = replace(config, input=tuple(replace(t, dims=(-1, 2)) for t in config.input))
    config = replace(
        config, output=(replace(config.output[0], dims=(-1, 2)), replace(config.output[1]))
    )
    executor = backend.TensorRtBackend().load(folder.context(config)).executor(ON_GPU)
    left = np.float32([[1, 0], [0, 4], [5, 6]])
    found, total = executor.run({"left": left, "right": left}, ["found", "total"])
    others, _ = executor.run({"left": left[:2], "right": left[:2]}, ["found", "total"])
    assert found.tolist() == [1, 4, 5, 6]  # the next run gets memory of its own
    assert others.tolist() == [1, 4]
    assert np.array_equal(total, left * 2)
    (context,) = fake_tensorrt.Context.made
    assert len(context.kept) == 1  # a context keeps all that it is given


def test_an_input_whose_values_are_shapes(backend, folder):
    inputs = {**ENGINE["inputs"], "sizes": ["INT64", [2]]}
    folder.write(inputs=inputs, profiles=[[1, 8]])
    config = make_config(0)
    sizes = ModelInput(name="sizes", data_type="TYPE_INT64", dims=(2,))
    tensors = [replace(t, dims=(-1, 2)) for t in (*config.input, *config.output)]
    config = replace(config, input=(*tensors[:2], sizes), output=tuple(tensors[2:]))
    executor = backend.TensorRtBackend().load(folder.context(config)).executor(ON_GPU)
    left = rows(3)
    given = {"left": left, "right": left, "sizes": np.array([3, 2], np.int64)}
    (total,) = executor.run(given, ["total"])
    assert np.array_equal(total, left * 2)


def test_tensors_that_are_not_rows(backend, folder):
    folder.write(formats={"total": "CHW32"})
    with pytest.raises(InvalidArgument, match=r"'total' .* has the format CHW32"):
        backend.TensorRtBackend().load(folder.context(make_config()))


def test_errors_of_later_loads_have_their_reason(backend, folder):
    folder.write()
    backend.TensorRtBackend().load(folder.context(make_config()))
    folder.write(None)
    with pytest.raises(InvalidArgument, match="magicTag does not match"):
        backend.TensorRtBackend().load(folder.context(make_config()))


def test_a_context_that_cannot_be_made(backend, folder):
    folder.write(without_profiles=True)
    executor = backend.TensorRtBackend().load(folder.context(make_config())).executor(ON_GPU)
    with pytest.raises(BackendFailure, match="context with the profile 0: Error in set optim"):
        check(executor, 1)


def test_cuda_graphs(backend, folder, monkeypatch):
    captured = []

    class Graph:
        def __init__(self, body):
            self.replay = body

        def pool(self):
            return None

    def capture(body, stream, pool):
        body()
        captured.append(body)
        return Graph(body)

    monkeypatch.setattr(graphs, "_capture", capture)
    folder.write()
    cuda = ModelOptimizationPolicy.Cuda(graphs=True)
    loaded = backend.TensorRtBackend().load(folder.context(make_config(4, cuda=cuda)))
    executor = loaded.executor(ON_GPU)
    assert len(captured) == 3  # 1, 2, 4
    for count in (1, 3, 4):
        check(executor, count)


@pytest.mark.parametrize(
    ("engine", "config", "says"),
    [
        (None, make_config(), r"TensorRT 11.4.0 cannot load 'm/1/model.plan': magicTag"),
        (ENGINE, make_config(inputs=("left", "up")), "up"),
        (ENGINE, make_config(inputs=("left",)), "right"),
        ({**ENGINE, "outputs": {"total": ["FP8", [-1, 2]]}}, make_config(), "total|rest"),
    ],
)
def test_what_cannot_be_served(backend, folder, engine, config, says):
    folder.write(engine)
    with pytest.raises((ConfigError, InvalidArgument), match=says):
        backend.TensorRtBackend().load(folder.context(config)).executor(ON_GPU)


def test_engines_are_for_gpus(backend, folder, monkeypatch):
    folder.write()
    with pytest.raises(ConfigError, match="run on GPUs, not with KIND_CPU"):
        backend.TensorRtBackend().load(folder.context(make_config(), Placement("KIND_CPU")))
    monkeypatch.setattr(backend, "has_cuda", lambda: False)
    with pytest.raises(ConfigError, match="cannot use the GPU"):
        backend.TensorRtBackend().load(folder.context(make_config()))


def test_an_engine_that_fails(backend, folder):
    folder.write(broken=True)
    executor = backend.TensorRtBackend().load(folder.context(make_config())).executor(ON_GPU)
    with pytest.raises(BackendFailure, match="could not run the engine"):
        check(executor, 1)


@pytest.mark.gpu
@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is None or not torch.cuda.is_available(),
    reason="needs the package tensorrt and a GPU",
)
@pytest.mark.filterwarnings("ignore")
def test_a_real_engine(tmp_path):
    import tensorrt as trt

    from shoal.backends.tensorrt import TensorRtBackend

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network()
    left, right = [network.add_input(n, trt.float32, (-1, 2)) for n in ("left", "right")]
    operations = {"total": trt.ElementWiseOperation.SUM, "rest": trt.ElementWiseOperation.SUB}
    for name, operation in operations.items():
        output = network.add_elementwise(left, right, operation).get_output(0)
        output.name = name
        network.mark_output(output)
    settings = builder.create_builder_config()
    for least, most in ((1, 4), (5, 8)):
        profile = builder.create_optimization_profile()
        for name in ("left", "right"):
            profile.set_shape(name, (least, 2), (most, 2), (most, 2))
        settings.add_optimization_profile(profile)
    folder = Folder(tmp_path)
    engine = builder.build_serialized_network(network, settings)
    (folder.version / "model.plan").write_bytes(bytes(engine))
    for graph in (False, True):
        cuda = ModelOptimizationPolicy.Cuda(graphs=graph)
        config = replace(make_config(), optimization=ModelOptimizationPolicy(cuda=cuda))
        loaded = TensorRtBackend().load(folder.context(config))
        executor = loaded.executor(ON_GPU)
        for count in (1, 3, 8, 5, 4):
            check(executor, count)
        executor.close()
        loaded.close()

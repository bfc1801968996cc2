"""The parameters of PyTorch models."""

from __future__ import annotations

import pytest

from shoal.backends.pytorch import settings
from shoal.backends.pytorch.settings import Switches
from shoal.config.model import (
    ModelConfig,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelParameter,
)
from shoal.config.rules import not_acted_on
from shoal.errors import ConfigError

Cuda = ModelOptimizationPolicy.Cuda
Pinned = ModelOptimizationPolicy.PinnedMemoryBuffer


def read(parameters=None, *, instances=1, cores=4, backend=None, **fields):
    wrapped = {key: ModelParameter(text) for key, text in (parameters or {}).items()}
    config = ModelConfig(name="m", parameters=wrapped, **fields)
    return settings.read(config, backend or {}, instances, cores, "m/config.pbtxt")


def test_what_nobody_said():
    chosen = read()
    assert chosen.inference_mode
    assert chosen.switches == Switches()
    assert chosen.share_weights is None
    assert chosen.compile is None
    assert chosen.graphs == ()
    assert (chosen.pin_inputs, chosen.pin_outputs, chosen.busy_wait) == (True, True, False)
    assert (chosen.half, chosen.channels_last, chosen.inter_op_threads) == ("", None, 0)


@pytest.mark.parametrize(
    ("parameters", "instances", "threads"),
    [
        ({}, 1, 4),
        ({}, 2, 2),
        ({}, 9, 1),
        ({"INTRA_OP_THREAD_COUNT": "3"}, 2, 3),
        ({"NUM_THREADS": "7"}, 2, 7),
        ({"INTRA_OP_THREAD_COUNT": "0"}, 2, 2),
    ],
)
def test_the_thread_budget(parameters, instances, threads):
    assert read(parameters, instances=instances).intra_op_threads == threads


def test_threads_for_all_models_of_the_backend():
    assert read(backend={"INTRA_OP_THREAD_COUNT": "2"}).intra_op_threads == 2
    assert read({"NUM_INTEROP_THREADS": "2"}).inter_op_threads == 2


@pytest.mark.parametrize(
    ("key", "switches"),
    [
        ("DISABLE_OPTIMIZED_EXECUTION", Switches(optimized=False)),
        ("DISABLE_CUDNN", Switches(cudnn=False)),
        ("ENABLE_JIT_EXECUTOR", Switches(jit_executor=True)),
        ("ENABLE_JIT_PROFILING", Switches(jit_profiling=True)),
        ("ENABLE_TENSOR_FUSER", Switches(tensor_fuser=True)),
    ],
)
def test_switches(key, switches):
    assert read({key: "true"}).switches == switches


@pytest.mark.parametrize(
    ("parameters", "name", "value"),
    [
        ({"INFERENCE_MODE": "false"}, "inference_mode", False),
        ({"ENABLE_WEIGHT_SHARING": "true"}, "share_weights", True),
        ({"ENABLE_WEIGHT_SHARING": "false"}, "share_weights", False),
        ({"ENABLE_CACHE_CLEANING": "true"}, "clean_cache", True),
        ({"CACHE_CLEANING_ENABLED": "true"}, "clean_cache", True),
        ({"HALF_PRECISION": "FP16"}, "half", "fp16"),
        ({"HALF_PRECISION": "bf16"}, "half", "bf16"),
        ({"CHANNELS_LAST": "1"}, "channels_last", True),
        ({"MODEL_CLASS": "Net"}, "model_class", "Net"),
        ({"KEEP_ON_GPU": "false"}, "keep_on_gpu", False),
    ],
)
def test_values(parameters, name, value):
    assert getattr(read(parameters), name) == value


@pytest.mark.parametrize(
    ("parameters", "batch", "options"),
    [
        ({"ENABLE_TORCH_COMPILE": "true"}, 0, {}),
        ({"ENABLE_TORCH_COMPILE": "true"}, 8, {"dynamic": True}),
        ({"ENABLE_TORCH_COMPILE": "false"}, 8, None),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"disable": true}'}, 8, None),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"mode": "default"}'}, 0, {"mode": "default"}),
        (
            {"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"dynamic": false, "fullgraph": true}'},
            8,
            {"dynamic": False, "fullgraph": True},
        ),
        (
            {"ENABLE_TORCH_COMPILE": "false", "TORCH_COMPILE_OPTIONAL_PARAMETERS": "{}"},
            8,
            None,
        ),
    ],
)
def test_compile(parameters, batch, options):
    assert read(parameters, max_batch_size=batch).compile == options


@pytest.mark.parametrize(
    ("text", "batch", "sizes"),
    [
        ("true", 8, (1, 2, 4, 8)),
        ("true", 6, (1, 2, 4, 6)),
        ("true", 0, (1,)),
        ("true", 64, (1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64)),
        ("true", 100, (1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 100)),
        ("false", 8, ()),
        ("4,1", 8, (1, 4)),
        ("8 2", 8, (2, 8)),
    ],
)
def test_cuda_graphs(text, batch, sizes):
    found = read({"CUDA_GRAPHS": text}, max_batch_size=batch).graphs
    assert tuple(spec.rows for spec in found) == sizes


def test_cuda_graphs_as_triton_writes_them():
    def sizes(cuda, **parameters):
        optimization = ModelOptimizationPolicy(cuda=cuda)
        found = read(parameters, max_batch_size=8, optimization=optimization).graphs
        return tuple(spec.rows for spec in found)

    assert sizes(Cuda(graphs=True)) == (1, 2, 4, 8)
    listed = (Cuda.GraphSpec(batch_size=3), Cuda.GraphSpec(batch_size=8))
    assert sizes(Cuda(graphs=True, graph_spec=listed)) == (3, 8)
    assert sizes(Cuda(graphs=False, graph_spec=listed)) == ()
    assert sizes(Cuda(graphs=True), CUDA_GRAPHS="false") == ()


def test_shapes_and_lower_bounds_of_cuda_graphs():
    spec = Cuda.GraphSpec(
        batch_size=4,
        input={"x": Cuda.GraphSpec.Shape(dim=(3, 2))},
        graph_lower_bound=Cuda.GraphSpec.LowerBound(batch_size=3),
    )
    optimization = ModelOptimizationPolicy(cuda=Cuda(graphs=True, graph_spec=(spec,)))
    (found,) = read(max_batch_size=8, optimization=optimization).graphs
    assert (found.rows, found.least_rows, found.dims) == (4, 3, {"x": (3, 2)})


def test_the_fuser_is_off_on_gpus():
    groups = (ModelInstanceGroup(kind="KIND_GPU"),)
    assert read().switches.tensor_fuser is None
    assert read(instance_group=groups).switches.tensor_fuser is False
    chosen = read({"ENABLE_TENSOR_FUSER": "true"}, instance_group=groups)
    assert chosen.switches.tensor_fuser is True


def test_memory_and_waiting():
    optimization = ModelOptimizationPolicy(
        cuda=Cuda(busy_wait_events=True, output_copy_stream=True),
        input_pinned_memory=Pinned(enable=False),
        output_pinned_memory=Pinned(enable=True),
    )
    chosen = read(optimization=optimization)
    assert (chosen.pin_inputs, chosen.pin_outputs, chosen.busy_wait) == (False, True, True)
    assert chosen.output_copy_stream
    assert not read().output_copy_stream


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("INFERENCE_MODE", "maybe", "found 'maybe'. Write true or false"),
        ("INTRA_OP_THREAD_COUNT", "many", "Write a whole number"),
        ("HALF_PRECISION", "int8", "found 'int8'. Write fp16 or bf16"),
        ("CUDA_GRAPHS", "sometimes", "Write true, false or batch sizes like 1,2,4,8"),
        ("CUDA_GRAPHS", "1,16", "Write batch sizes from 1 to max_batch_size, which is 8"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{", "Write a JSON object like"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"model": 1}', "the options fullgraph, dynamic"),
    ],
)
def test_values_that_cannot_be(key, text, expected):
    with pytest.raises(ConfigError) as raised:
        read({key: text}, max_batch_size=8)
    assert f"parameters['{key}']" in raised.value.message
    assert expected in raised.value.message


def test_fields_that_this_backend_acts_on():
    optimization = ModelOptimizationPolicy(cuda=Cuda(graphs=True), input_pinned_memory=Pinned())
    fields = {"runtime": "model.py", "optimization": optimization}
    assert not_acted_on(ModelConfig(backend="pytorch", **fields)) == []
    assert "optimization.cuda" in not_acted_on(ModelConfig(backend="onnxruntime", **fields))

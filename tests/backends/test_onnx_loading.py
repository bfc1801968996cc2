"""Loading models: files and folders, completion, sessions and threads, and every refusal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from shoal.backends.base import Placement
from shoal.backends.onnx_session import clean_message
from shoal.config.model import (
    ModelConfig,
    ModelInput,
    ModelOperations,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
)
from shoal.errors import ConfigError, InvalidArgument, NotFound, ShoalError
from shoal.testing import onnx_models as models

ON_CPU = Placement("KIND_CPU")
Accelerators = ModelOptimizationPolicy.ExecutionAccelerators


def row(value, size=1024):
    return np.full((1, size), value, np.float32)


def check_heavy(loaded):
    inputs = {"INPUT0": row(1), "INDEX": np.array([[7]])}
    (result,) = loaded.executor(ON_CPU).run(inputs, ["OUTPUT0"])
    assert np.array_equal(result, row(8))


# --- where the model lies ---


def test_a_file(loader):
    loader.save(models.heavy(1))
    check_heavy(loader.load())


def test_a_folder(loader):
    loader.save(models.heavy(1), "model.onnx/model.onnx")
    check_heavy(loader.load())


def test_another_name(loader):
    loader.save(models.heavy(1), "net.onnx")
    check_heavy(loader.load(ModelConfig(default_model_filename="net.onnx")))


@pytest.mark.parametrize("filename", ["model.onnx", "model.onnx/model.onnx"])
def test_external_data(loader, filename):
    models.save_with_external_data(models.heavy(1), loader.version_folder / filename)
    check_heavy(loader.load())


def test_external_data_that_is_missing(loader):
    file = models.save_with_external_data(models.heavy(1), loader.version_folder / "model.onnx")
    (file.parent / "weights.bin").unlink()
    with pytest.raises(InvalidArgument, match=r"cannot load 'm/1/model\.onnx': .*weights\.bin"):
        loader.load()


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        ([], "", "unable to find 'model.onnx' in 'm/1' for model 'm'. Put the ONNX file there"),
        (["net.onnx"], "", 'rename the file to model.onnx or write default_model_filename: "net.o'),
        (["model.onnx"], "net.onnx", "unable to find 'net.onnx' in 'm/1'"),
        (["model.onnx/net.onnx"], "", "unable to find 'model.onnx' in 'm/1/model.onnx'"),
        (["a.onnx"], "sub/a.onnx", "there is no such folder"),
    ],
)
def test_no_file(loader, files, name, text):
    loader.version_folder.mkdir(parents=True)
    for file in files:
        loader.save(models.identity(), file)
    with pytest.raises(NotFound) as raised:
        loader.load(ModelConfig(default_model_filename=name))
    assert text in raised.value.message


@pytest.mark.parametrize("name", ["../1/model.onnx", "/etc/passwd"])
def test_a_name_that_leads_elsewhere(loader, name):
    loader.save(models.identity())
    with pytest.raises(ConfigError, match=r"default_model_filename: .*leads out of the version's"):
        loader.load(ModelConfig(default_model_filename=name))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n rubbish", "damaged or of another format"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "Run git lfs pull"),
        (models.add_sub().SerializeToString()[:100], "'m/1/model.onnx'"),
    ],
)
def test_a_file_that_is_not_onnx(loader, content, text, capfd):
    loader.version_folder.mkdir(parents=True)
    (loader.version_folder / "model.onnx").write_bytes(content)
    complete = ModelConfig(
        input=(ModelInput(name="a", data_type="TYPE_FP32", dims=(1,)),),
        output=(ModelOutput(name="x", data_type="TYPE_FP32", dims=(1,)),),
    )
    for config in (None, complete):  # found out by completion, or by loading
        with pytest.raises(InvalidArgument) as raised:
            loader.load(config)
        assert "'m/1/model.onnx'" in raised.value.message
        assert text in raised.value.message
        assert "ONNXRuntimeError" not in raised.value.message
    assert capfd.readouterr() == ("", "")


def test_an_operator_nobody_knows(loader):
    built = models.model(
        [helper.make_node("Frobnicate", ["a"], ["x"], domain="acme")],
        inputs=[models.value("a", "FP32", ("n",))],
        outputs=[models.value("x", "FP32", ("n",))],
        check=False,
    )
    built.opset_import.append(helper.make_opsetid("acme", 1))
    loader.save(built)
    with pytest.raises(ShoalError, match=r"cannot load 'm/1/model\.onnx': .*Frobnicate"):
        loader.load()


# --- completion from real files; the rules themselves are tested without a runtime ---


def summary(tensors):
    return [(t.name, t.data_type, t.dims, t.reshape) for t in tensors]


@pytest.mark.parametrize(
    ("built", "max_batch_size", "inputs", "outputs"),
    [
        (
            models.add_sub("INT8", dims=(16,)),
            4,
            [("INPUT0", "TYPE_INT8", (16,), None), ("INPUT1", "TYPE_INT8", (16,), None)],
            [("OUTPUT0", "TYPE_INT8", (16,), None), ("OUTPUT1", "TYPE_INT8", (16,), None)],
        ),
        (
            models.identity("BYTES", dims=(-1, 3), batch=False),
            4,  # the first of its own dimensions is variable: it counts as the batch
            [("INPUT0", "TYPE_STRING", (3,), None)],
            [("OUTPUT0", "TYPE_STRING", (3,), None)],
        ),
        (
            models.identity("FP16", dims=(3,), batch=1),
            0,
            [("INPUT0", "TYPE_FP16", (1, 3), None)],
            [("OUTPUT0", "TYPE_FP16", (1, 3), None)],
        ),
        (
            models.identity("BF16", dims=()),
            4,
            [("INPUT0", "TYPE_BF16", (1,), ModelTensorReshape(()))],
            [("OUTPUT0", "TYPE_BF16", (1,), ModelTensorReshape(()))],
        ),
        (
            models.scalar("FP64"),
            0,
            [("INPUT0", "TYPE_FP64", (1,), None)],
            [("OUTPUT0", "TYPE_FP64", (1,), None)],
        ),
        (
            models.default_input(),
            0,
            [("INPUT0", "TYPE_FP32", (2,), None)],
            [("OUTPUT0", "TYPE_FP32", (2,), None)],
        ),
        (
            # Its file promises a batch dimension; only the runtime finds out that there is none.
            models.reshape_to_one_row(),
            0,
            [("INPUT0", "TYPE_FP32", (-1, 4), None)],
            [("OUTPUT0", "TYPE_FP32", (1, -1), None)],
        ),
        (
            models.list_output(),
            4,
            [("INPUT0", "TYPE_FP32", (-1,), None)],
            [("OUTPUT0", "TYPE_FP32", (-1,), None)],
        ),
    ],
)
def test_completion(loader, built, max_batch_size, inputs, outputs):
    loader.save(built)
    config = loader.complete()
    assert config.max_batch_size == max_batch_size
    assert (config.dynamic_batching is not None) is (max_batch_size > 1)
    assert summary(config.input) == inputs
    assert summary(config.output) == outputs
    loader.load(config)


def test_the_default_batch_size_is_a_setting(loader):
    loader.save(models.add_sub())
    assert loader.complete(settings={"default-max-batch-size": "32"}).max_batch_size == 32
    assert loader.complete(settings={"default-max-batch-size": "0"}).max_batch_size == 0


def test_a_complete_config_needs_no_file(loader):
    config = ModelConfig(
        name="m",
        input=(ModelInput(name="a", data_type="TYPE_FP32", dims=(1,)),),
        output=(ModelOutput(name="x", data_type="TYPE_FP32", dims=(1,)),),
    )
    assert loader.complete(config) == config


def test_conflicts_are_found_at_load(loader):
    loader.save(models.add_sub(dims=(16,)))
    config = loader.complete()
    wrong = replace(config.input[0], dims=(15,))
    with pytest.raises(
        ConfigError, match=r"m/config\.pbtxt: input\[0\] 'INPUT0'\.dims: .*\[ 16 \]"
    ):
        loader.load(replace(config, input=(wrong, config.input[1])))


def test_dims_may_be_looser_or_tighter_than_the_models(loader):
    loader.save(models.identity(dims=(4,), count=1))
    config = loader.complete()
    looser = replace(
        config,
        input=(replace(config.input[0], dims=(-1,)),),
        output=(replace(config.output[0], dims=(-1,)),),
    )
    array = np.ones((2, 4), np.float32)
    (result,) = loader.load(looser).executor(ON_CPU).run({"INPUT0": array}, ["OUTPUT0"])
    assert np.array_equal(result, array)


# --- sessions, threads, options ---


def sessions(loaded, count):
    return [loaded.executor(ON_CPU)._session for _ in range(count)]


def test_instances_share_a_session(loader):
    loader.save(models.identity())
    loaded = loader.load(placements=[ON_CPU] * 3)
    first, *others = sessions(loaded, 3)
    assert all(session is first for session in others)


def test_instances_may_have_their_own(loader):
    loader.save(models.identity())
    loaded = loader.load(placements=[ON_CPU] * 3, parameters={"share_session": "false"})
    assert len({id(session) for session in sessions(loaded, 4)}) == 4  # one more than planned


def options_of(loader, cores=8, instances=1, config=None, **more):
    loader.save(models.add_sub())
    loaded = loader.load(config, placements=[ON_CPU] * instances, cores=cores, **more)
    return loaded.executor(ON_CPU)._session.get_session_options()


@pytest.mark.parametrize(("cores", "instances", "threads"), [(8, 1, 8), (8, 2, 4), (2, 4, 1)])
def test_the_thread_budget(loader, cores, instances, threads):
    options = options_of(loader, cores, instances)
    assert options.intra_op_num_threads == threads
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def test_parameters_reach_the_session(loader):
    options = options_of(
        loader,
        parameters={
            "intra_op_thread_count": "3",
            "inter_op_thread_count": "2",
            "execution_mode": "1",
            "enable_mem_arena": "0",
            "enable_mem_pattern": "0",
            "session.use_device_allocator_for_initializers": "1",
            "session.intra_op.allow_spinning": "1",
        },
    )
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    for key in ("session.use_device_allocator_for_initializers", "session.intra_op.allow_spinning"):
        assert options.get_session_config_entry(key) == "1"


def test_backend_settings_reach_the_session(loader):
    assert options_of(loader, settings={"intra_op_thread_count": "5"}).intra_op_num_threads == 5


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ENABLE_ALL"), (-1, "ENABLE_BASIC"), (1, "ENABLE_EXTENDED"), (2, "DISABLE_ALL")],
)
def test_optimization_levels(loader, level, name):
    graph = ModelOptimizationPolicy.Graph(level=level)
    config = ModelConfig(optimization=ModelOptimizationPolicy(graph=graph))
    level_type = onnxruntime.GraphOptimizationLevel
    expected = getattr(level_type, f"ORT_{name}")
    assert options_of(loader, config=config).graph_optimization_level == expected


def test_the_arena_may_be_shrunk_after_each_run(loader):
    loader.save(models.identity())
    parameters = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    executor = loader.load(parameters=parameters).executor(ON_CPU)
    (result,) = executor.run({"INPUT0": row(2)}, ["OUTPUT0"])
    assert np.array_equal(result, row(2))


GLOBAL_POOL = """
import os, sys
from pathlib import Path
from shoal.backends.base import LoadContext, Placement
from shoal.backends.onnxruntime import OnnxRuntimeBackend
from shoal.config.model import ModelConfig

folder = Path(sys.argv[1])
backend, place = OnnxRuntimeBackend(), Placement("KIND_CPU")
settings = {"enable-global-threadpool": "1", "intra_op_thread_count": "4"}
kept = []

def load():
    config = backend.complete(ModelConfig(name="m"), folder, folder / "1", settings)
    context = LoadContext(folder, folder / "1", 1, config, [place], settings, cores=2)
    kept.append(backend.load(context).executor(place))
    return kept[-1]._session.get_session_options().use_per_session_threads

before = len(os.listdir("/proc/self/task"))
print(load(), load(), load(), len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_one_thread_pool_for_all_models(loader):
    loader.save(models.add_sub())
    run = subprocess.run(
        [sys.executable, "-c", GLOBAL_POOL, loader.folder],
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == ["False", "False", "False", "3"]  # and the caller is the fourth


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_closing_ends_the_threads(loader):
    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    loader.save(models.add_sub())
    loader.complete()
    before = threads()
    loaded = loader.load(cores=4)
    executor = loaded.executor(ON_CPU)
    assert threads() == before + 3
    executor.close()
    loaded.close()
    assert threads() == before


# --- devices and accelerators ---


def accelerated(*names):
    accelerators = tuple(Accelerators.Accelerator(name) for name in names)
    return ModelConfig(
        optimization=ModelOptimizationPolicy(
            execution_accelerators=Accelerators(cpu_execution_accelerator=accelerators)
        )
    )


def without(provider):
    have = onnxruntime.get_available_providers()
    return pytest.mark.skipif(provider in have, reason=f"this ONNX Runtime has {provider}")


@without("CUDAExecutionProvider")
def test_a_gpu_needs_another_build(loader):
    loader.save(models.identity())
    with pytest.raises(ConfigError) as raised:
        loader.load(placements=[Placement("KIND_GPU")])
    assert raised.value.field == "instance_group.kind"
    assert "has no CUDAExecutionProvider" in raised.value.message
    assert "pip install onnxruntime-gpu" in raised.value.message


@without("OpenVINOExecutionProvider")
def test_an_accelerator_needs_another_build(loader):
    loader.save(models.identity())
    with pytest.raises(ConfigError, match="pip install onnxruntime-openvino"):
        loader.load(accelerated("openvino"))


def test_the_cpu_provider_may_be_named(loader):
    loader.save(models.identity())
    executor = loader.load(accelerated("CPUExecutionProvider")).executor(ON_CPU)
    assert executor._session.get_providers() == ["CPUExecutionProvider"]


def test_the_model_takes_any_placement_on_the_cpu(loader):
    loader.save(models.identity())
    loaded = loader.load(placements=[Placement("KIND_MODEL")])
    loaded.executor(Placement("KIND_MODEL")).run({"INPUT0": row(1)}, ["OUTPUT0"])


# --- custom operators ---


def operations(*names):
    return ModelConfig(model_operations=ModelOperations(names))


def test_a_library_that_is_not_there(loader):
    loader.save(models.identity())
    with pytest.raises(
        ConfigError, match=r"op_library_filename\[0\]: there is no library .*ops\.so"
    ):
        loader.load(operations("ops.so"))


def test_a_library_that_is_none(loader):
    loader.save(models.identity())
    (loader.version_folder / "ops.so").write_bytes(b"not a library")
    with pytest.raises(ConfigError, match=r"op_library_filename: .*'ops\.so' does not load"):
        loader.load(operations("ops.so"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("place", ["version", "model", "absolute"])
def test_a_library_is_found_and_registered(loader, tmp_path, place):
    loader.save(models.identity())
    folder = {"version": loader.version_folder, "model": loader.folder, "absolute": tmp_path}[place]
    source = tmp_path / "ops.c"
    trace = tmp_path / "registered"
    source.write_text(
        "#include <stdio.h>\n"
        "void *RegisterCustomOps(void *options, const void *api) {\n"
        f'  fclose(fopen("{trace}", "w")); return NULL;\n'
        "}\n"
    )
    library = folder / f"ops_{place}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    name = str(library) if place == "absolute" else library.name
    loader.load(operations(name)).executor(ON_CPU).run({"INPUT0": row(1)}, ["OUTPUT0"])
    assert trace.exists()


# --- memory ---

MEASURE = """
import gc, sys
from pathlib import Path
from shoal.backends.base import LoadContext, Placement
from shoal.backends.onnxruntime import OnnxRuntimeBackend
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
import numpy as np

def resident_mb():
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) for l in status if l.startswith("VmRSS")) / 1024

folder = Path(sys.argv[1])
backend, place = OnnxRuntimeBackend(), Placement("KIND_CPU")
config = backend.complete(ModelConfig(name="m"), folder, folder / "1", {})

def use():
    loaded = backend.load(LoadContext(folder, folder / "1", 1, config, [place], cores=1))
    executors = [loaded.executor(place) for _ in range(3)]
    inputs = {"INPUT0": np.ones((1, 1024), np.float32), "INDEX": np.array([[7]])}
    for executor in executors:
        assert executor.run(inputs, ["OUTPUT0"])[0][0, 0] == 8
    during = resident_mb()
    for executor in executors:
        executor.close()
    loaded.close()
    return during

before = resident_mb()
during = [use() for _ in range(4)]
print(before, max(during), resident_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_unloading_gives_the_memory_back(loader):
    loader.save(models.heavy(100))
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, loader.folder], check=True, capture_output=True, text=True
    )
    before, during, after = map(float, run.stdout.split())
    assert during - before < 160  # three instances, one copy of the weights (100 MB)
    assert during - before > 90
    assert after - before < 20


# --- the runtime's words ---


CODE = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (CODE + "Bad shape.\n Fix it.", "Bad shape. Fix it"),
        (CODE + "Load model from /a b/m.onnx failed:No such op.", "No such op"),
        (
            CODE + "Status: /src/core/value.h:97 const T& V::Get() const [with T = Seq] was false.",
            "Status: was false",
        ),
        (CODE + "/x/init.cc:35 ns::Init::Init(const Tensor&, Path) [Mismatch]", "[Mismatch]"),
        ("/x/state.cc:29 ns::add(m&, Fn)::<lambda(const O&, bool)> must be false", "must be false"),
        ("", "ValueError"),
    ],
)
def test_messages_without_source_paths(text, clean):
    assert clean_message(ValueError(text)) == clean


def test_a_parameter_the_runtime_refuses(loader):
    loader.save(models.identity())
    config = loader.complete()
    parameters = {"session." + "x" * 2000: ModelParameter("1")}
    with pytest.raises(ConfigError, match=r"m/config\.pbtxt: parameters 'session\.xxx"):
        loader.load(replace(config, parameters=parameters))

"""Sessions: shared or not, threads, options, devices, custom operators, and memory given back."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from shoal.backends import onnx_lone_session, onnx_session_comparison
from shoal.backends.base import ArrayForm, Placement
from shoal.config.model import ModelConfig, ModelOperations, ModelOptimizationPolicy
from shoal.errors import ConfigError
from shoal.testing.server import wait_until
from tests.support import onnx_models as models

ON_CPU = Placement("KIND_CPU")
Accelerators = ModelOptimizationPolicy.ExecutionAccelerators


def row(value, size=1024):
    return np.full((1, size), value, np.float32)


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


@pytest.fixture
def all_long(monkeypatch):
    """Every execution is long, and gains by the second session."""
    monkeypatch.setattr(onnx_lone_session, "_LONG_NS", 0)
    monkeypatch.setattr(onnx_lone_session, "_LONG_FOR_LONE_CLIENT_NS", 0)
    monkeypatch.setattr(onnx_lone_session, "_LONG_RUNS_ON_LOOP", 2)
    monkeypatch.setattr(onnx_session_comparison, "_COMPARED_NS", 0)
    monkeypatch.setattr(onnx_session_comparison, "_SETTLING_NS", 0)
    for name in ("_ENOUGH_GAIN", "_ENOUGH_GAIN_OF_CYCLE", "_STILL_ENOUGH_GAIN"):
        monkeypatch.setattr(onnx_session_comparison, name, 1e9)


def opened(loaded):
    loaded._lone._opening.join()
    return loaded._lone.second


@pytest.mark.usefixtures("all_long")
def test_an_execution_that_runs_alone_may_use_all_cores(loader):
    loader.save(models.identity())
    loaded = loader.load(placements=[ON_CPU] * 2, cores=2)
    concurrency = loaded._lone.concurrency
    executor = loaded.executor(ON_CPU)

    def run(times):
        for value in range(times):
            (result,) = executor.run({"INPUT0": row(value)}, ["OUTPUT0"])
            assert np.array_equal(result, row(value))

    run(20)
    assert loaded._lone.second is None
    assert loaded.memory_elsewhere() == 0
    concurrency.executions = 1
    run(3)
    options = opened(loaded).session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    loaded._model_file.unlink()  # with its repository, which may be lost
    assert loaded.memory_elsewhere() > 0
    run(30)
    (comparison,) = loaded._lone._comparisons.values()
    assert comparison.gains
    concurrency.executions = 2
    run(1)
    loaded.close()
    assert loaded._lone.second is None
    run(1)


class Bound:
    """Sums and differences, bound to memory."""

    def __init__(self, loader, runs_first=False):
        loader.save(models.add_sub())
        self.loaded = loader.load(placements=[ON_CPU] * 2, cores=2)
        self.lone = self.loaded._lone
        self.executor = self.loaded.executor(ON_CPU)
        forms = {
            kind: [ArrayForm(f"{kind}{number}", (1, 16), np.dtype(np.int32)) for number in range(2)]
            for kind in ("INPUT", "OUTPUT")
        }
        if runs_first:
            inputs = {form.name: np.zeros(form.shape, form.dtype) for form in forms["INPUT"]}
            self.executor.run(inputs, ["OUTPUT0", "OUTPUT1"])
        self._run = self.executor.bind(forms["INPUT"], forms["OUTPUT"])

    def run(self, times):
        for value in range(times):
            contents = np.stack([np.full(16, value, np.int32), np.full(16, 1, np.int32)]).tobytes()
            sums = np.frombuffer(self._run(contents), np.int32).reshape(2, 16)
            assert (sums[0] == value + 1).all()
            assert (sums[1] == value - 1).all()


@pytest.mark.usefixtures("all_long")
@pytest.mark.parametrize("executions", [0, 1])
def test_bound_runs_may_use_all_cores_too(loader, monkeypatch, executions):
    """What was bound while there were several clients, too."""
    bound = Bound(loader)
    bound.lone.concurrency.executions = 2
    bound.run(20)
    assert not bound.lone._comparisons
    monkeypatch.setattr(onnx_session_comparison, "_LONGEST_GAP_NS", 10**12)
    bound.lone.concurrency.executions = executions
    bound.lone.concurrency.lone_client.is_there = True
    bound.run(3)
    second = opened(bound.loaded)
    bound.run(30)
    (comparison,) = bound.lone._comparisons.values()
    assert comparison.gains
    assert len(second.bound_runs) == 1
    bound.lone.close()
    bound.run(1)


@pytest.mark.usefixtures("all_long")
@pytest.mark.parametrize("closes", [True, False])
def test_what_is_bound_to_the_second_session_is_freed(loader, closes):
    """When that is closed, or with what is bound to the first."""
    bound = Bound(loader)
    bound.lone.concurrency.executions = 1
    bound.run(3)
    opened(bound.loaded)
    bound.run(20)
    (second_run,) = bound.lone.second.bound_runs.values()
    freed = weakref.ref(second_run)
    del second_run
    if closes:
        bound.lone.close()
    else:
        bound._run = None
    assert freed() is None


def test_bound_runs_of_several_clients_run_at_once(loader, monkeypatch):
    bound = Bound(loader)
    monkeypatch.setattr(bound.lone, "run", None)
    bound.run(1)


def test_short_executions_are_bound_without_it(loader, monkeypatch):
    """Many models are tiny: what each of them reads for a request is to be little."""
    now_ns = iter(range(0, 10**9, 99_000))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now_ns))
    bound = Bound(loader, runs_first=True)
    monkeypatch.setattr(bound.lone, "run", None)
    bound.lone.concurrency.lone_client.is_there = True
    bound.run(1)


@pytest.mark.parametrize(
    ("instances", "cores", "parameters"),
    [
        (2, 2, {"intra_op_thread_count": "1"}),
        (2, 2, {"share_session": "false"}),
        (2, 1, {}),
    ],
)
def test_configured_threads_and_one_core_need_no_second_session(
    loader, instances, cores, parameters
):
    loader.save(models.add_sub())
    loaded = loader.load(placements=[ON_CPU] * instances, cores=cores, parameters=parameters)
    assert loaded._lone is None


@pytest.mark.parametrize(("instances", "has_one"), [(1, False), (2, True)])
def test_large_weights_are_in_memory_twice_only_for_more_threads(
    loader, monkeypatch, instances, has_one
):
    monkeypatch.setattr("shoal.backends.onnxruntime._LIGHT_BYTES", 0)
    loader.save(models.add_sub())
    loaded = loader.load(placements=[ON_CPU] * instances, cores=2)
    assert (loaded._lone is not None) is has_one


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
@pytest.mark.skipif(
    not hasattr(onnxruntime, "set_global_thread_pool_sizes"), reason="needs ONNX Runtime 1.23"
)
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
        return {task.name for task in Path("/proc/self/task").iterdir()}

    loader.save(models.add_sub())
    loader.complete()
    before = threads()  # some of them may be about to end
    loaded = loader.load(cores=4)
    executor = loaded.executor(ON_CPU)
    its_own = threads() - before
    assert len(its_own) == 3
    executor.close()
    loaded.close()
    # The system may list a thread for a moment after it was waited for.
    wait_until(lambda: not its_own & threads(), "the threads are gone")


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


def test_a_model_on_the_cpu_may_run_on_the_loop(loader):
    loader.save(models.identity())
    assert loader.load().may_run_on_loop


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
    loaded = loader.load(operations(name))
    loaded.executor(ON_CPU).run({"INPUT0": row(1)}, ["OUTPUT0"])
    assert trace.exists()
    assert not loaded.may_run_on_loop  # who knows what the operators wait for


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

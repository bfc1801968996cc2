"""Models of every kind of backend in processes of their own: the same results and errors."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.backends.base import LoadContext, PhotoExecutor, Placement
from shoal.backends.function.backend import FunctionBackend
from shoal.backends.identity import IdentityBackend
from shoal.backends.isolation.backend import IsolatedBackend
from shoal.backends.onnxruntime import OnnxRuntimeBackend
from shoal.backends.registry import get
from shoal.config import pbtxt
from shoal.config.model import ModelConfig
from shoal.config.normalise import normalise
from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import ConfigError, ProcessEnded, ShoalError, Unavailable
from shoal.instance.execution import Execution
from shoal.link.supervisor import ProcessState
from shoal.models.spec import build_signature
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.model import ModelStatistics
from shoal.tasks.images.gpu_preparation import GpuPreparation
from shoal.tasks.images.jpeg import read_frame
from shoal.tasks.images.plan import PhotoPlan
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.settings import TaskSettings
from shoal.testing.backends import BackendRunner
from shoal.testing.server import wait_until
from tests.support import onnx_models
from tests.support.counting_backend import CountingBackend
from tests.support.fakes import WAIT_SECS, make_request
from tests.support.photo_backend import FAILING, PhotoBackend
from tests.support.photos import ON_GPU, encode, photo
from tests.support.pid_backend import ALONE, CRASH, TOGETHER, PidBackend

HERE = Placement("KIND_CPU", 0, "m_0_0")
FUNCTION = """
    import os, signal
    import numpy as np
    import numpy.typing as npt
    import shoal

    Numbers = npt.NDArray[np.int64]

    @shoal.model(batch=8)
    def m(x: Numbers) -> Numbers:
        if (x == -1).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        if (x == -2).any():
            raise ValueError("not minus two")
        if (x == -3).any():
            raise shoal.InvalidArgument("not minus three")
        return np.full_like(x, os.getpid())
"""


def write(folder, source, config='backend: "function"\nmax_batch_size: 8'):
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(source))
    (version.parent / "config.pbtxt").write_text(config)
    return version.parent


class Isolated:
    """A function in processes, run as the server runs it."""

    def __init__(self, folder, more="", count=1, metrics=None):
        config = pbtxt.parse_pbtxt((folder / "config.pbtxt").read_text() + more, "config.pbtxt")
        config = normalise(config, directory_name="m", file="config.pbtxt")
        config = FunctionBackend().complete(config, folder, folder / "1", {})
        backend = IsolatedBackend(FunctionBackend())
        placements = [Placement("KIND_CPU", 0, f"m_0_{index}") for index in range(count)]
        context = LoadContext(folder, folder / "1", 1, config, placements, metrics=metrics)
        self.loaded = backend.load(context)
        self.executors = [self.loaded.executor(placement) for placement in placements]
        self.statistics = ModelStatistics("m", 1)
        policy = config.model_transaction_policy
        self._execution = Execution(
            build_signature(config, folder),
            1,
            self.statistics,
            decoupled=policy is not None and policy.decoupled,
        )

    def run(self, *numbers, on=0):
        """The responses to one batch, a request for each number."""
        arrays = [np.array([[number]], np.int64) for number in numbers]
        made = [make_request(Tensor.from_array("x", array), rows=1) for array in arrays]
        self._execution.run(self.executors[on], [request for request, _ in made])
        return [collector.wait() for _, collector in made]

    def pid(self, on=0):
        (response,) = self.run(5, on=on)
        assert response.error is None, response.error
        return int(response.outputs[0].array[0, 0])

    def supervisor(self, on=0):
        return self.executors[on]._supervisor

    def close(self):
        for executor in self.executors:
            executor.close()
        self.loaded.close()


@pytest.fixture
def isolated(tmp_path):
    """Serve a function in processes."""
    made = []

    def serve(source=FUNCTION, **more):
        made.append(Isolated(write(tmp_path, source), **more))
        return made[-1]

    yield serve
    for model in made:
        model.close()


def rests(monkeypatch, secs):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", secs)
    monkeypatch.setattr("shoal.link.supervisor._LONGEST_REST_SECS", secs)


# ---- the same results as without a process


def onnx(version):
    onnx_models.save(onnx_models.add_sub("FP32", (4,)), version / "model.onnx")
    return {name: np.arange(8, dtype=np.float32).reshape(2, 4) for name in ("INPUT0", "INPUT1")}


def onnx_strings(version):
    onnx_models.save(onnx_models.add_sub("BYTES", (2,)), version / "model.onnx")
    return {name: np.array([[b"1", b"23"]], object) for name in ("INPUT0", "INPUT1")}


def onnx_bf16(version):
    onnx_models.save(onnx_models.identity("BF16", dims=(2,)), version / "model.onnx")
    return {"INPUT0": np.array([[16256, 16384]], np.uint16)}


def openvino(version):
    pytest.importorskip("openvino")
    from tests.support.openvino_models import save_ir

    save_ir(onnx_models.add_sub("FP32", (4,)), version)
    return {name: np.ones((1, 4), np.float32) for name in ("INPUT0", "INPUT1")}


def pytorch(version):
    pytest.importorskip("torch")
    from tests.support import torch_models

    torch_models.add_sub_script(version / "model.pt")
    (version.parent / "config.pbtxt").write_text(torch_models.add_sub_config("INT32", (16,)))
    return {name: np.ones((2, 16), np.int32) for name in ("INPUT__0", "INPUT__1")}


def sklearn(version):
    pytest.importorskip("sklearn")
    pytest.importorskip("skops")
    from tests.support import tabular_models

    tabular_models.save_sklearn(tabular_models.step_tree(2.0), version / "model.skops")
    return {"features": np.full((3, 4), 0.75, np.float32)}


@pytest.mark.parametrize(
    ("backend", "prepare"),
    [
        ("onnxruntime", onnx),
        ("onnxruntime", onnx_strings),
        ("onnxruntime", onnx_bf16),
        ("openvino", openvino),
        ("pytorch", pytorch),
        ("sklearn", sklearn),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_results_are_those_of_the_backend(tmp_path, backend, prepare):
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    inputs = prepare(version)
    plain = get(backend)
    with BackendRunner(plain, version.parent) as model:
        config, expected = model.config, model.run(inputs)
        axes = dict(model._loaded.axis_names)
    loaded = IsolatedBackend(plain).load(LoadContext(version.parent, version, 1, config, [HERE]))
    executor = loaded.executor(HERE)
    assert loaded.axis_names == {key: tuple(value) for key, value in axes.items()}
    results = dict(zip(expected, executor.run(inputs, list(expected)), strict=True))
    executor.close()
    loaded.close()
    for name, array in expected.items():
        assert results[name].dtype == array.dtype
        assert np.array_equal(results[name], array)


def test_configs_are_completed_as_by_the_backend(tmp_path):
    version = tmp_path / "m" / "1"
    onnx(version)
    found = [
        backend.complete(ModelConfig(name="m"), version.parent, version, {})
        for backend in (OnnxRuntimeBackend(), IsolatedBackend(OnnxRuntimeBackend()))
    ]
    assert found[0] == found[1]
    assert found[0].max_batch_size > 0


def test_large_tensors_stay_valid_and_their_memory_is_used_again(tmp_path):
    config = """
        backend: "identity"
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    """
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    with BackendRunner(IsolatedBackend(IdentityBackend()), tmp_path / "m") as model:
        process = model._executor._supervisor.process
        kept = [
            model.run({"INPUT0": np.full(150_000, number, np.float32)})["OUTPUT0"]
            for number in range(4)
        ]
        assert [array[0] for array in kept] == [array[-1] for array in kept] == [0, 1, 2, 3]
        kept.clear()
        for number in range(20):
            model.run({"INPUT0": np.full(150_000, number, np.float32)})
        assert len(process._link._pool._lent) <= 2
        assert len(process._link._views._memory) <= 6


# ---- errors


def errors_of(backend, folder):
    """The error of loading, without and with a process."""
    for each in (backend, IsolatedBackend(backend)):
        with pytest.raises(ShoalError) as raised:
            BackendRunner(each, folder)
        yield raised.value


def test_a_model_that_cannot_be_loaded_has_the_same_error(tmp_path):
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"no model")
    plain, isolated = errors_of(OnnxRuntimeBackend(), version.parent)
    assert (type(plain), plain.message) == (type(isolated), isolated.message)


def test_a_config_that_does_not_fit_has_the_same_error(tmp_path):
    version = tmp_path / "m" / "1"
    onnx_models.save(onnx_models.identity("FP32"), version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(
        'input { name: "other" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    plain, isolated = errors_of(OnnxRuntimeBackend(), version.parent)
    assert type(isolated) is ConfigError
    assert vars(isolated) == vars(plain)


def test_a_model_that_crashes_while_it_is_loaded(tmp_path):
    folder = write(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ShoalError, match=r"of model 'm' ended .* 11 \(segmentation fault\)"):
        BackendRunner(IsolatedBackend(FunctionBackend()), folder)


def test_a_function_of_a_program_cannot_be_isolated():
    import shoal
    from shoal.backends.function import declaration

    @shoal.model
    def double(x: float) -> float:
        return 2 * x

    found = declaration.of(double)
    backend = IsolatedBackend(FunctionBackend(found))
    with pytest.raises(ConfigError, match="another process cannot import it"):
        backend.complete(found.config, found.folder, found.folder, {})
    with pytest.raises(ConfigError, match="another process cannot import it"):
        backend.load(LoadContext(found.folder, found.folder, 1, found.config, [HERE]))


def test_errors_of_an_execution_are_the_models_own(isolated, caplog):
    model = isolated()
    one, two, three = model.run(1, -2, -3)  # together, and then one by one
    assert one.error is None
    assert two.error.message == "ValueError: not minus two"
    assert "model.py" in caplog.text  # the traceback
    assert three.error.message == "not minus three"
    assert three.error.code.value == "Invalid argument"
    assert model.pid() != os.getpid()


# ---- crashes


def test_a_crash_fails_the_batch_and_the_next_one_has_a_new_process(isolated):
    model = isolated()
    first = model.pid()
    responses = model.run(1, -1, 2)
    for response in responses:
        assert type(response.error) is ProcessEnded
        assert response.error.message.startswith(
            "model 'm' did not finish the request, its process ended: signal 11 (segmentation "
            "fault). The process is restarted: send the request again."
        )
    assert model.pid() not in (first, os.getpid())  # waited for
    reading = model.statistics.read()
    assert (reading.success_count, sum(reading.failures.values())) == (2, 3)


def test_the_model_is_not_ready_while_no_process_runs(isolated, monkeypatch):
    rests(monkeypatch, 1000.0)
    model = isolated()
    assert model.loaded.ready()
    assert model.loaded.memory_elsewhere() > 1 << 20
    for _ in range(2):
        model.run(-1)
    wait_until(lambda: model.supervisor().state is ProcessState.RESTING, "it rests")
    assert not model.loaded.ready()
    assert model.loaded.memory_elsewhere() == 0
    (response,) = model.run(1)
    assert type(response.error) is Unavailable
    assert "the last one ended: signal 11 (segmentation fault)" in response.error.message


def test_another_instance_does_the_work_meanwhile(isolated, monkeypatch):
    rests(monkeypatch, 1000.0)
    model = isolated(count=2)
    first, second = model.pid(0), model.pid(1)
    assert first != second
    for _ in range(2):
        process = model.supervisor(0).process
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda process=process: model.supervisor(0).process is not process, "it ended")
        if not _:
            wait_until(lambda: model.supervisor(0).process, "it runs again")
    assert model.pid(0) == second
    assert model.loaded.ready()


def test_an_execution_can_be_ended(isolated, tmp_path):
    model = isolated(
        """
        import pathlib, time
        import numpy as np, numpy.typing as npt
        import shoal

        STARTED = pathlib.Path(__file__).with_name("started")

        @shoal.model(batch=8)
        def m(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if (x == 0).any():
                STARTED.touch()
                time.sleep(600)
            return x
        """
    )
    assert not model.executors[0].end_execution("no reason")
    results = []
    runner = threading.Thread(target=lambda: results.extend(model.run(0)))
    runner.start()
    wait_until((tmp_path / "m" / "1" / "started").exists, "it runs")
    assert model.executors[0].end_execution("it took longer than 1 ms")
    runner.join(WAIT_SECS)
    assert "its process ended: it took longer than 1 ms." in results[0].error.message
    (response,) = model.run(3)
    assert response.error is None


def test_a_new_process_is_warmed_up_before_it_serves(isolated):
    model = isolated()
    warmed = []

    def warm_up(executor):
        (array,) = executor.run({"x": np.ones((1, 1), np.int64)}, ["output"])
        warmed.append(int(array[0, 0]))

    model.executors[0].warm_up = warm_up
    model.run(-1)
    pid = model.pid()
    assert warmed == [pid]


def test_calls_of_an_async_function_share_a_process(isolated):
    model = isolated(
        """
        import asyncio, os
        import numpy as np, numpy.typing as npt
        import shoal

        waiting, both = [], asyncio.Event()

        @shoal.model(batch=8)
        async def m(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            waiting.append(x)
            if len(waiting) == 2:
                both.set()
            await both.wait()
            return np.full_like(x, os.getpid())
        """,
        count=2,
    )
    found = []
    threads = [
        threading.Thread(target=lambda on=on: found.append(model.pid(on)), daemon=True)
        for on in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECS)
    assert len(found) == 2
    assert found[0] == found[1] != os.getpid()
    assert not model.executors[0].end_execution("others run there, too")


# ---- requests instead of tensors

STREAM = """
    import numpy as np
    import numpy.typing as npt
    import os, signal, pathlib, time
    from collections.abc import Iterator
    import shoal

    CANCELLED = pathlib.Path(__file__).with_name("cancelled")

    @shoal.model
    def m(x: int) -> Iterator[int]:
        try:
            for number in range(x):
                if number == 13:
                    os.kill(os.getpid(), signal.SIGSEGV)
                yield number
            if x == 0:
                raise ValueError("nothing")
            while x == 1:
                yield 7
                time.sleep(0.001)
        except GeneratorExit:
            CANCELLED.touch()
            raise
"""


@pytest.fixture
def stream(tmp_path):
    model = Isolated(write(tmp_path, STREAM, 'backend: "function"'))
    yield model
    model.close()


def ask(model, number):
    """All responses to one request."""
    array = np.array([number], np.int64)
    request, collector = make_request(Tensor.from_array("x", array), rows=1)
    model._execution.run(model.executors[0], [request])
    collector.wait()
    return request, collector


def numbers(collector):
    return [int(each.outputs[0].array[0]) for each in collector.responses if each.outputs]


def test_every_item_of_a_stream_is_a_response(stream):
    _, collector = ask(stream, 4)
    assert numbers(collector) == [0, 1, 2, 3]
    assert stream.loaded.owed() == 0


def test_a_stream_that_fails(stream):
    _, collector = ask(stream, 0)
    assert collector.responses[-1].error.message == "ValueError: nothing"
    assert sum(stream.statistics.read().failures.values()) == 1


def test_a_stream_that_crashes_has_a_final_response(stream):
    _, collector = ask(stream, 20)
    assert numbers(collector) == list(range(13))
    assert "segmentation fault" in collector.responses[-1].error.message
    assert numbers(ask(stream, 3)[1]) == [0, 1, 2]


def test_a_cancelled_stream_ends_in_the_process(stream, tmp_path):
    array = np.array([1], np.int64)
    request, collector = make_request(Tensor.from_array("x", array), rows=1)
    runner = threading.Thread(
        target=lambda: stream._execution.run(stream.executors[0], [request]), daemon=True
    )
    runner.start()
    wait_until(lambda: len(collector.responses) > 3, "it streams")
    request.cancel()
    wait_until((tmp_path / "m" / "1" / "cancelled").exists, "the generator is closed")
    runner.join(WAIT_SECS)
    assert collector.responses[-1].error.code.value == "Cancelled"


# ---- metrics and counters of a backend


def test_metrics_and_counters_reach_the_server(tmp_path):
    metrics = CustomMetrics()
    placements = [Placement("KIND_CPU", 0, f"m_0_{index}") for index in range(2)]
    loaded = IsolatedBackend(CountingBackend()).load(
        LoadContext(tmp_path, tmp_path, 1, ModelConfig(name="m"), placements, metrics=metrics)
    )
    executors = [loaded.executor(placement) for placement in placements]
    for executor in executors:
        for _ in range(2):
            executor.run({"x": np.ones(1, np.float32)}, ["y"])
    handle = metrics.family("counted", "", "counter").metric({"model": "m"}, None)
    assert handle.value() == 8
    expected = {"runs": 4, "sizes": [{"batch_size": 1, "count": 4}]}
    wait_until(lambda: loaded.counters() == {"counted": expected}, "the counters are sent")
    for executor in executors:
        executor.close()
    loaded.close()


# ---- instances on GPUs: a process for each GPU of a group


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory):
    """A model with two instances on GPU 0 and one on GPU 1, and these."""
    folder = tmp_path_factory.mktemp("m")
    placements = [Placement("KIND_GPU", device, f"m_0_{i}") for i, device in enumerate((0, 0, 1))]
    loaded = IsolatedBackend(PidBackend()).load(
        LoadContext(folder, folder, 1, ModelConfig(name="m"), placements)
    )
    executors = [loaded.executor(placement) for placement in placements]
    yield loaded, executors
    for executor in executors:
        executor.close()
    loaded.close()


def where(executor, kind=ALONE):
    (found,) = executor.run({"kind": np.array([kind])}, ["y"])
    return found.tolist()


def both_at_once(executors):
    """What two batches say that are executed at the same time."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda one: where(one, TOGETHER), executors))


def test_instances_of_a_gpu_share_a_process(on_gpus):
    loaded, executors = on_gpus
    pids = [where(executor)[0] for executor in executors]
    assert pids[0] == pids[1] != pids[2]
    first, second = both_at_once(executors[:2])
    assert first[0] == second[0] == pids[0]
    assert first[1] != second[1]  # each on its own instance
    another = loaded.executor(Placement("KIND_GPU", 0, "m_0_3"))
    assert where(another)[0] == pids[0]
    another.close()
    assert [pid for pid, _ in both_at_once(executors[:2])] == pids[:2]


def test_all_instances_of_a_gpu_are_restarted(on_gpus):
    _, (first, second, _) = on_gpus
    pid, _ = where(first)
    with pytest.raises(ProcessEnded):
        where(first, CRASH)
    assert where(second)[0] != pid  # on the other GPU, or on a new process
    wait_until(lambda: first._supervisor.process is not None, "it is restarted")
    restarted = both_at_once([first, second])
    assert restarted[0][0] == restarted[1][0] != pid
    assert {number for _, number in restarted} == {1, 2}


def test_photos_in_processes(tmp_path):
    """The bytes go to the process, labels come back; an error is that of the backend."""
    config = ModelConfig(name="m", max_batch_size=4)
    placements = [Placement("KIND_GPU", 0, f"m_0_{index}") for index in range(2)]
    loaded = IsolatedBackend(PhotoBackend()).load(
        LoadContext(tmp_path, tmp_path, 1, config, placements)
    )
    prepare = ImagePreparation.of(TaskSettings({"scale": 1}, tmp_path), (3, 48, 48), dtypes.FP32)
    gpu = GpuPreparation.of(prepare)
    assert gpu is not None
    assert loaded.classify_photos(PhotoPlan("image", "scores", gpu, "as-is", 3))
    executors = [loaded.executor(placement) for placement in placements]
    sent = [ON_GPU["4:2:0"], ON_GPU["turned"], ON_GPU["large"]]
    frames = np.array([read_frame(data) for data in sent], np.uint16)
    for executor in executors:
        assert isinstance(executor, PhotoExecutor)
        indexes, scores = executor.classify(sent, frames)
        assert indexes[:, 0].tolist() == [0, 1, 2]
        assert scores.shape == indexes.shape == (3, 3)
    with pytest.raises(ShoalError, match="on fire"):
        executors[0].classify([encode(photo(), comment=FAILING)], frames[:1])
    for executor in executors:
        executor.close()
    loaded.close()

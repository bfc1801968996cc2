"""Real model.py files, run as the config says: on a thread or in a process of their own."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.backends.base import LoadContext, Placement
from shoal.backends.python.backend import PythonBackend
from shoal.config import pbtxt
from shoal.config.normalise import normalise
from shoal.core.tensor import Tensor
from shoal.instance.execution import Execution
from shoal.models.spec import build_signature
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.model import ModelStatistics
from tests.support.fakes import make_request

HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils

def value(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.asarray(array, np.int32))])

"""
CONFIG = """
backend: "python"
default_model_filename: "model.py"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


class Others:
    """The other models of a server, played by the test."""

    def __init__(self):
        self.asked = []
        self.calls = []
        self.decoupled = set()
        self.answer = lambda request: None

    def infer(self, request):
        self.asked.append(request)
        self.answer(request)

    def is_decoupled(self, name, version=-1):
        return name in self.decoupled

    def model_ready(self, name, version=-1):
        return name == "ready"

    def load(self, name, config_json, files):
        self.calls.append(("load", name, config_json, dict(files)))

    def unload(self, name, *, unload_dependents=False):
        self.calls.append(("unload", name, unload_dependents))


class PythonModels:
    """Writes models, loads them and runs requests through them as the server does."""

    def __init__(self, folder, mode):
        self.folder = folder
        self.mode = mode
        self.others = Others()
        self.metrics = CustomMetrics()
        self.backend = PythonBackend()
        self._open = []

    def write(self, source, name="m", files=None):
        version = self.folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(HEAD + textwrap.dedent(source))
        for path, text in (files or {}).items():
            (version / path).write_text(text)
        return version

    def load(self, source, config=CONFIG, *, more="", name="m", files=None, settings=None, count=1):
        """A model with its instances; each runs the batches it is handed."""
        version = self.write(source, name, files)
        mode = {"execution": self.mode, **(settings or {})}
        parsed = pbtxt.parse_pbtxt(config + more, "config.pbtxt")
        parsed = normalise(parsed, directory_name=name, file="config.pbtxt")
        completed = self.backend.complete(parsed, version.parent, version, mode)
        placements = [Placement("KIND_CPU", 0, f"{name}_0_{index}") for index in range(count)]
        context = LoadContext(
            model_folder=version.parent,
            version_folder=version,
            version=1,
            config=completed,
            placements=placements,
            settings=mode,
            models=self.others,
            metrics=self.metrics,
        )
        loaded = self.backend.load(context)
        executors = []
        self._open.append((loaded, executors))
        for placement in placements:
            executors.append(loaded.executor(placement))
        statistics = ModelStatistics(name, 1)
        policy = completed.model_transaction_policy
        execution = Execution(
            build_signature(completed, version.parent),
            1,
            statistics,
            decoupled=policy is not None and policy.decoupled,
        )
        return SimpleNamespace(
            config=completed,
            loaded=loaded,
            executor=executors[0],
            executors=executors,
            statistics=statistics,
            run=lambda *requests, on=0: execution.run(executors[on], requests),
            several=lambda *batches: execution.run_several(executors[0], batches),
        )

    def close(self, model):
        for loaded, executors in self._open:
            if loaded is model.loaded:
                for executor in executors:
                    executor.close()
                loaded.close()
        self._open = [entry for entry in self._open if entry[0] is not model.loaded]

    def close_all(self):
        for loaded, executors in self._open:
            for executor in executors:
                executor.close()
            loaded.close()


def _models(tmp_path, mode):
    made = PythonModels(tmp_path, mode)
    yield made
    made.close_all()


@pytest.fixture(params=["thread", "process"])
def models(request, tmp_path):
    """Models in both of the ways an instance can run."""
    yield from _models(tmp_path, request.param)


@pytest.fixture
def processes(tmp_path):
    yield from _models(tmp_path, "process")


@pytest.fixture
def request_of():
    """A request with one row of numbers, and what collects its answer."""

    def make(*numbers, **options):
        array = np.array([numbers], np.int32)
        tensor = Tensor(
            "IN", Tensor.from_array("IN", array).datatype, array.shape, raw=array.tobytes()
        )
        return make_request(tensor, rows=1, **options)

    return make


@pytest.fixture
def ask(request_of):
    """Run one request and return its response, which must not be an error."""

    def run(model, *numbers, **options):
        request, collector = request_of(*numbers, **options)
        model.run(request)
        response = collector.wait()
        assert response.error is None, response.error
        return response

    return run

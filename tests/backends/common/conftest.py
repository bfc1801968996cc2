"""One description per format: how to write its models, and what they must answer.

A format that computes element by element answers `factor * x`; one that predicts from rows
answers `factor` where the first feature is above one half, and 0 elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from shoal.core.dtypes import ALL, BY_NAME
from shoal.testing.server import running_server
from tests.support import onnx_models

WIDTH = 4
MEGABYTES = 8
EVERY = tuple(datatype.name for datatype in ALL)
NUMBERS = tuple(name for name in EVERY if name not in ("BYTES", "BF16"))


@dataclass(frozen=True)
class Failing:
    """A model that cannot do what some valid request asks."""

    write: Callable[[Path], object]  # into a version folder
    config: str
    good: Mapping[str, np.ndarray]
    bad: Mapping[str, np.ndarray]
    output: str
    says: str  # part of the error
    together: bool = True  # whether requests of one batch fail one by one


@dataclass(frozen=True)
class Format:
    name: str
    modules: tuple[str, ...]
    filename: str
    write: Callable[[Path, float], object]  # into a version folder
    expected: Callable[[np.ndarray, float], np.ndarray]
    typed: Callable[[Path, str], object]  # a model whose input is of that datatype
    datatypes: tuple[str, ...]
    large: Callable[[Path], object]  # about MEGABYTES of weights
    large_width: int
    failing: Failing
    config: Callable[[str, int], str] = lambda datatype, width: ""  # what completion cannot know
    input: str = "INPUT0"
    output: str = "OUTPUT0"
    checks_names: bool = True  # an output that the model does not have is refused
    same_type: bool = True  # the output of a typed model is its input
    garbage: bytes = b"\x89PNG\r\n this is no model at all " * 8

    def __str__(self):
        return self.name


def times(rows, factor):
    return rows * np.float32(factor)


def step(rows, height):
    return np.where(rows[:, :1].astype(np.float64) > 0.5, height, 0).astype(np.float32)


# --- ONNX, by ONNX Runtime and by OpenVINO ---


def onnx_scaled(factor):
    return onnx_models.model(
        [helper.make_node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
        inputs=[onnx_models.value("INPUT0", "FP32", ("batch", WIDTH))],
        outputs=[onnx_models.value("OUTPUT0", "FP32", ("batch", WIDTH))],
        constants={"factor": np.array([factor], np.float32)},
    )


def onnx_dense(size):
    weight = np.random.default_rng(0).random((size, size), dtype=np.float32)
    return onnx_models.model(
        [helper.make_node("MatMul", ["INPUT0", "weight"], ["OUTPUT0"])],
        inputs=[onnx_models.value("INPUT0", "FP32", ("batch", size))],
        outputs=[onnx_models.value("OUTPUT0", "FP32", ("batch", size))],
        constants={"weight": weight},
    )


def onnx_reshape():
    return onnx_models.model(
        [helper.make_node("Reshape", ["INPUT0", "SHAPE"], ["OUTPUT0"])],
        inputs=[
            onnx_models.value("INPUT0", "FP32", ("n",)),
            onnx_models.value("SHAPE", "INT64", (2,)),
        ],
        outputs=[onnx_models.value("OUTPUT0", "FP32", ("a", "b"))],
    )


def save_onnx(built, folder):
    return onnx_models.save(built, folder / "model.onnx")


RESHAPES = {
    "good": {"INPUT0": np.zeros(6, np.float32), "SHAPE": np.array([2, 3])},
    "bad": {"INPUT0": np.zeros(6, np.float32), "SHAPE": np.array([2, 4])},
}
RESHAPE_CONFIG = """
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "SHAPE" data_type: TYPE_INT64 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }
"""

ONNX = Format(
    name="onnx",
    modules=("onnxruntime",),
    filename="model.onnx",
    write=lambda folder, factor: save_onnx(onnx_scaled(factor), folder),
    expected=times,
    typed=lambda folder, datatype: save_onnx(onnx_models.identity(datatype, dims=(WIDTH,)), folder),
    datatypes=EVERY,
    large=lambda folder: save_onnx(onnx_dense(1448), folder),
    large_width=1448,
    failing=Failing(
        write=lambda folder: save_onnx(onnx_models.picker(), folder),
        config="max_batch_size: 8",
        good={"INPUT0": np.array([[1]])},
        bad={"INPUT0": np.array([[9]])},
        output="OUTPUT0",
        says="indices element out of data bounds",
    ),
)


def ir(built, folder):
    from tests.support.openvino_models import save_ir

    return save_ir(built, folder)


def ir_identity(datatype, folder):
    from tests.support.openvino_models import save_identity

    return save_identity(datatype, folder, WIDTH)


OPENVINO = Format(
    name="openvino",
    modules=("openvino",),
    filename="model.xml",
    write=lambda folder, factor: ir(onnx_scaled(factor), folder),
    expected=times,
    typed=lambda folder, datatype: ir_identity(datatype, folder),
    datatypes=EVERY,
    large=lambda folder: ir(onnx_dense(1448), folder),
    large_width=1448,
    failing=Failing(
        write=lambda folder: ir(onnx_reshape(), folder),
        config=RESHAPE_CONFIG,
        **RESHAPES,
        output="OUTPUT0",
        says="reshape",
        together=False,
    ),
)
OPENVINO_ONNX = Format(
    name="openvino_onnx",
    modules=("openvino",),
    filename="model.onnx",
    write=ONNX.write,
    expected=times,
    typed=ONNX.typed,
    datatypes=NUMBERS,
    large=ONNX.large,
    large_width=1448,
    failing=Failing(
        write=lambda folder: save_onnx(onnx_reshape(), folder),
        config='backend: "openvino"' + RESHAPE_CONFIG,
        **RESHAPES,
        output="OUTPUT0",
        says="reshape",
        together=False,
    ),
    config=lambda datatype, width: 'backend: "openvino"\n',
)

# --- Python models, in the server's process and in their own ---

PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

FACTOR, MEGABYTES = {factor}, {megabytes}


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones(MEGABYTES << 20, np.uint8)

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if x.dtype == np.float32 and (x < 0).any():
                raise ValueError("a number below zero")
            y = x if FACTOR == 1 else x * np.float32(FACTOR)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", y)]))
        return responses
"""


def python_model(folder, factor=1, megabytes=0):
    folder.mkdir(parents=True, exist_ok=True)
    text = PYTHON_MODEL.format(factor=factor, megabytes=megabytes)
    (folder / "model.py").write_text(text)


def python_config(execution):
    def config(datatype, width):
        kind = BY_NAME[datatype].config_name
        return f"""
backend: "python"
input {{ name: "INPUT0" data_type: {kind} dims: [ {width} ] }}
output {{ name: "OUTPUT0" data_type: {kind} dims: [ {width} ] }}
parameters {{ key: "python_execution" value {{ string_value: "{execution}" }} }}
"""

    return config


def python(execution):
    config = python_config(execution)
    return Format(
        name=f"python_{execution}",
        modules=(),
        filename="model.py",
        write=python_model,
        expected=times,
        typed=lambda folder, datatype: python_model(folder),
        # The tests of Python models go through all of them; every model here is a process.
        datatypes=("BOOL", "UINT8", "INT64", "FP16", "FP64", "BYTES"),
        large=lambda folder: python_model(folder, megabytes=MEGABYTES),
        large_width=WIDTH,
        failing=Failing(
            write=python_model,
            config=config("FP32", WIDTH) + "max_batch_size: 8",
            good={"INPUT0": np.ones((1, WIDTH), np.float32)},
            bad={"INPUT0": -np.ones((1, WIDTH), np.float32)},
            output="OUTPUT0",
            says="a number below zero",
            together=False,  # Triton's rule: what execute raises fails its whole batch
        ),
        config=config,
        checks_names=False,
        garbage=b"class TritonPythonModel:\n    def execute(self\n",
    )


# --- models of rows ---


def sklearn_save(estimator, folder):
    from tests.support import tabular_models

    return tabular_models.save_sklearn(estimator, folder / "model.skops")


def sklearn_step(folder, height):
    from tests.support import tabular_models

    return sklearn_save(tabular_models.step_tree(height), folder)


def sklearn_regression(folder, size):
    from tests.support import tabular_models

    return sklearn_save(tabular_models.large_regression(size), folder)


def rows(*first):
    made = np.full((len(first), WIDTH), 0.25, np.float32)
    made[:, 0] = first
    return made


def tabular_config(datatype, width):
    if datatype == "FP32":
        return ""
    kind = BY_NAME[datatype].config_name
    return f'input {{ name: "features" data_type: {kind} dims: [ {width} ] }}\n'


ANY_WIDTH = """
max_batch_size: 8
input { name: "features" data_type: TYPE_FP32 dims: [ -1 ] }
"""

SKLEARN = Format(
    name="sklearn",
    modules=("sklearn", "skops"),
    filename="model.skops",
    write=sklearn_step,
    expected=step,
    typed=lambda folder, datatype: sklearn_step(folder, 1.0),
    datatypes=NUMBERS,
    large=lambda folder: sklearn_regression(folder, 1024),
    large_width=1024,
    failing=Failing(
        write=lambda folder: sklearn_regression(folder, WIDTH),
        config="max_batch_size: 8",
        good={"features": rows(1)},
        bad={"features": rows(np.nan)},
        output="predict",
        says="contains NaN",
    ),
    config=tabular_config,
    input="features",
    output="predict",
    same_type=False,
)


def boosted(library, filename, trees):
    def save(booster, folder):
        from tests.support import tabular_models

        return tabular_models.save_booster(booster, folder / filename)

    def write(folder, height):
        from tests.support import tabular_models

        save(getattr(tabular_models, f"step_{library}")(height), folder)

    def large(folder):
        from tests.support import tabular_models

        save(getattr(tabular_models, f"large_{library}")(trees), folder)

    return Format(
        name=library,
        modules=(library,),
        filename=filename,
        write=write,
        expected=step,
        typed=lambda folder, datatype: write(folder, 1.0),
        datatypes=("BOOL", "UINT8", "INT64", "FP16", "FP64"),
        large=large,
        large_width=WIDTH,
        failing=Failing(
            write=lambda folder: write(folder, 1.0),
            config=ANY_WIDTH,
            good={"features": rows(1)},
            bad={"features": rows(1)[:, :3]},
            output="predict",
            says="takes rows of 4 features, got 3",
            together=False,  # rows of two widths make no batch
        ),
        config=tabular_config,
        input="features",
        output="predict",
        same_type=False,
    )


# --- TensorFlow Lite ---


def tflite_save(make, folder, *arguments, **more):
    from tests.support import tflite_models

    return tflite_models.save(
        getattr(tflite_models, make)(*arguments, **more), folder / "model.tflite"
    )


TFLITE = Format(
    name="tflite",
    modules=("ai_edge_litert",),
    filename="model.tflite",
    write=lambda folder, factor: tflite_save("scaled", folder, factor),
    expected=times,
    typed=lambda folder, datatype: tflite_save("identity", folder, datatype, WIDTH),
    datatypes=("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP32", "BYTES"),
    large=lambda folder: tflite_save("dense", folder, 1448),
    large_width=1448,
    failing=Failing(
        write=lambda folder: tflite_save("picker", folder),
        config="max_batch_size: 8",
        good={"INDEX": np.array([[1]], np.int32)},
        bad={"INDEX": np.array([[9]], np.int32)},
        output="OUTPUT0",
        says="index out of bounds",
    ),
)

# --- JAX ---


def jax_save(make, folder, *arguments):
    from tests.support import jax_models

    return jax_models.save(getattr(jax_models, make)(*arguments), folder / "model.jax")


def jax_identity(folder, datatype):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if datatype == "BF16" else BY_NAME[datatype].numpy
    return jax_save("identity", folder, kind, WIDTH)


JAX = Format(
    name="jax",
    modules=("jax",),
    filename="model.jax",
    write=lambda folder, factor: jax_save("scaled", folder, factor),
    expected=times,
    typed=jax_identity,
    datatypes=tuple(name for name in EVERY if name != "BYTES"),
    large=lambda folder: jax_save("dense", folder, 1448),
    large_width=1448,
    failing=Failing(
        write=lambda folder: jax_save("add", folder),
        config="""
max_batch_size: 0
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "INPUT__1" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }
""",
        good={"INPUT__0": np.ones(3, np.float32), "INPUT__1": np.ones(3, np.float32)},
        bad={"INPUT__0": np.ones(3, np.float32), "INPUT__1": np.ones(2, np.float32)},
        output="OUTPUT__0",
        says="shape",
        together=False,
    ),
)

# --- PyTorch ---


def torch_module(kind, value, named):
    """`forward(x)`: x times a number, x itself, x through a dense layer, or a table at x."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            if kind == "dense":
                self.weights = torch.nn.Parameter(torch.rand(value, value))
            elif kind == "table":
                self.register_buffer("table", torch.arange(value))

        def forward(self, x):
            if kind == "scaled":
                y = x * value
            elif kind == "dense":
                y = x @ self.weights
            else:
                y = torch.take(self.table, x) if kind == "table" else x.clone()
            return {"y": y} if named else y

    return Module()


def torch_save(filename, folder, kind, value=None, datatype="FP32", width=WIDTH):
    import torch

    from shoal.backends.pytorch.library import TORCH_TYPES
    from tests.support import torch_models

    example = (torch.zeros((2, width), dtype=TORCH_TYPES[BY_NAME[datatype]]),)
    exports = filename == "model.pt2"
    store = torch_models.export if exports else torch_models.trace
    return store(torch_module(kind, value, exports), example, folder / filename)


def torch_config(datatype, width):
    kind = BY_NAME[datatype].config_name
    return f"""
backend: "pytorch"
input {{ name: "x" data_type: {kind} dims: [ {width} ] }}
output {{ name: "y" data_type: {kind} dims: [ {width} ] }}
"""


def torch_format(name, filename, config=None):
    def save(*arguments, **named):
        return torch_save(filename, *arguments, **named)

    return Format(
        name=name,
        modules=("torch",),
        filename=filename,
        write=lambda folder, factor: save(folder, "scaled", factor),
        expected=times,
        typed=lambda folder, datatype: save(folder, "identity", datatype=datatype),
        datatypes=tuple(kind for kind in EVERY if kind != "BYTES"),
        large=lambda folder: save(folder, "dense", 1448, width=1448),
        large_width=1448,
        failing=Failing(
            write=lambda folder: save(folder, "table", 4, datatype="INT64", width=1),
            config=torch_config("INT64", 1) + "max_batch_size: 8",
            good={"x": np.array([[1]])},
            bad={"x": np.array([[9]])},
            output="y",
            says="out of range",
        ),
        config=config or (lambda datatype, width: ""),
        input="x",
        output="y",
        checks_names=False,  # Triton's rule: names that fit nothing stand for positions
    )


FORMATS = (
    ONNX,
    OPENVINO,
    OPENVINO_ONNX,
    python("thread"),
    python("process"),
    torch_format("torchscript", "model.pt", torch_config),
    torch_format("torch_export", "model.pt2"),
    SKLEARN,
    boosted("xgboost", "model.ubj", 250),
    boosted("lightgbm", "model.txt", 70),
    TFLITE,
    JAX,
)


class Served:
    """A server whose repository holds models of one format."""

    def __init__(self, kind, folder, running):
        self.format = kind
        self.folder = folder
        self.running = running

    def add(self, name, config="", write=None, versions=(1,)):
        """Lay a model out; it is not loaded yet."""
        folder = self.folder / name
        for version in versions:
            (folder / str(version)).mkdir(parents=True, exist_ok=True)
            if write is not None:
                write(folder / str(version))
        (folder / "config.pbtxt").write_text(config)
        return folder

    def scaled(self, name, more="", factor=2.0, versions=(1,)):
        """The usual model, loaded; a later version is a larger factor."""
        config = self.format.config("FP32", WIDTH) + "max_batch_size: 8\n" + more
        folder = self.add(name, config)
        for version in versions:
            self.format.write(folder / str(version), factor + version - 1)
        self.load(name)
        return folder

    def load(self, name):
        answer = self.running.load(name)
        assert answer.status == 200, answer
        return answer


@pytest.fixture(scope="module", params=FORMATS, ids=str)
def served(request, tmp_path_factory):
    for module in request.param.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            pytest.skip(f"needs {module}")
    folder = tmp_path_factory.mktemp(request.param.name)
    with running_server(folder, model_control_mode="explicit") as running:
        yield Served(request.param, folder, running)

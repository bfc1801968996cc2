"""Every backend that Shoal knows, declared once.

From this table come the backends that `backends.registry` finds, the backend that serves a model
file (`platforms`), the extra that an error recommends and the thread setting that `shoal tune`
tries. pyproject.toml repeats the entry points and extras for pip; a test compares the two.

To add a backend: its module in `shoal.backends`, an entry here, a line or two in pyproject.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from shoal.config.model import ModelConfig

PYTHON = "python"
PYTHON_RUNTIME = "model.py"  # `runtime` of a config whose backend is a Python-based one


class ModelFormat(NamedTuple):
    """A file in a version folder that a backend reads, and the `platform` that means it."""

    filename: str
    platform: str = ""


@dataclass(frozen=True, slots=True)
class BackendDeclaration:
    """One backend. One without an entry point is Triton's alone; `alternative` says what to do."""

    name: str
    entry_point: str = ""  # "module:class"
    formats: tuple[ModelFormat, ...] = ()  # the default first; none: no file shows the backend
    aliases: tuple[str, ...] = ()  # other names that configs have for it
    extra: str = ""  # pip install 'shoal[extra]' brings its library; "": Shoal needs it anyway
    thread_parameter: str = ""  # the config parameter for the threads of an instance
    config_fields: frozenset[str] = frozenset()  # of `rules.support`: without effect elsewhere
    alternative: str = ""

    @property
    def filenames(self) -> tuple[str, ...]:
        """The names that a model file may have, the default first."""
        return tuple(file.filename for file in self.formats)


# In the order in which files of a version folder decide between backends.
_DECLARATIONS = (
    BackendDeclaration(
        "tensorflow",
        formats=(
            ModelFormat("model.savedmodel", "tensorflow_savedmodel"),
            ModelFormat("model.graphdef", "tensorflow_graphdef"),
        ),
        alternative="Convert the model: python -m tf2onnx.convert --saved-model model.savedmodel "
        "--output model.onnx, or tf.lite.TFLiteConverter.from_saved_model for model.tflite",
    ),
    BackendDeclaration(
        "tensorrt",
        "shoal.backends.tensorrt:TensorRtBackend",
        formats=(ModelFormat("model.plan", "tensorrt_plan"),),
        extra="tensorrt",
        config_fields=frozenset(
            {
                "instance_group.profile",
                "optimization.cuda",
                "optimization.input_pinned_memory.enable",
                "optimization.output_pinned_memory.enable",
            }
        ),
    ),
    BackendDeclaration(
        "onnxruntime",
        "shoal.backends.onnxruntime:OnnxRuntimeBackend",
        formats=(ModelFormat("model.onnx", "onnxruntime_onnx"),),
        aliases=("onnx",),
        thread_parameter="intra_op_thread_count",
    ),
    BackendDeclaration(
        "openvino",
        "shoal.backends.openvino.backend:OpenVinoBackend",
        formats=(ModelFormat("model.xml"), ModelFormat("model.onnx")),
        extra="openvino",
    ),
    BackendDeclaration(
        "pytorch",
        "shoal.backends.pytorch.backend:PyTorchBackend",
        formats=(
            ModelFormat("model.pt", "pytorch_libtorch"),
            ModelFormat("model.pt2", "torch_aoti"),
        ),
        aliases=("libtorch",),
        extra="torch",
        thread_parameter="INTRA_OP_THREAD_COUNT",
        config_fields=frozenset(
            {
                "runtime",
                "optimization.cuda",
                "optimization.input_pinned_memory.enable",
                "optimization.output_pinned_memory.enable",
            }
        ),
    ),
    BackendDeclaration(
        PYTHON,
        "shoal.backends.python.backend:PythonBackend",
        formats=(ModelFormat("model.py"),),
    ),
    BackendDeclaration(
        "sklearn",
        "shoal.backends.tabular.sklearn:SklearnBackend",
        formats=(
            ModelFormat("model.skops"),
            ModelFormat("model.joblib"),
            ModelFormat("model.pkl"),
            ModelFormat("model.pickle"),
        ),
        aliases=("scikit-learn",),
        extra="sklearn",
    ),
    BackendDeclaration(
        "xgboost",
        "shoal.backends.tabular.xgboost:XgboostBackend",
        formats=(ModelFormat("model.ubj"), ModelFormat("model.json")),
        extra="xgboost",
    ),
    BackendDeclaration(
        "lightgbm",
        "shoal.backends.tabular.lightgbm:LightgbmBackend",
        formats=(ModelFormat("model.txt"),),
        extra="lightgbm",
    ),
    BackendDeclaration(
        "tflite",
        "shoal.backends.tflite:TfliteBackend",
        formats=(ModelFormat("model.tflite"),),
        aliases=("tensorflow_lite",),
        extra="tflite",
        thread_parameter="num_threads",
    ),
    BackendDeclaration(
        "jax",
        "shoal.backends.jax:JaxBackend",
        formats=(ModelFormat("model.jax"),),
        extra="jax",
    ),
    BackendDeclaration("fil", "shoal.backends.tabular.fil:FilBackend"),
    BackendDeclaration("function", "shoal.backends.function.backend:FunctionBackend"),
    BackendDeclaration(
        "generation", "shoal.backends.generation.backend:GenerationBackend", extra="tasks"
    ),
    BackendDeclaration("identity", "shoal.backends.identity:IdentityBackend"),
    BackendDeclaration(
        "dali",
        alternative='Write the pipeline as a Python model (model.py, backend: "python"), in which '
        "nvidia.dali can be imported",
    ),
    *(
        BackendDeclaration(
            name,
            alternative="It is a Python-based backend: copy its model.py and the files beside it "
            f"to the folder {name} in that of --backend-directory. Or use the engine in a Python "
            "model (model.py) of your own, which can stream its responses",
        )
        for name in ("vllm", "tensorrtllm")
    ),
)
BACKENDS = MappingProxyType({backend.name: backend for backend in _DECLARATIONS})

# Every name that `backend` or `platform` may have for a backend, with the backend's own name.
BACKEND_NAMES = MappingProxyType(
    {
        "ensemble": "ensemble",  # a platform without a backend
        **{
            name: backend.name
            for backend in _DECLARATIONS
            for name in (
                backend.name,
                *backend.aliases,
                *(file.platform for file in backend.formats if file.platform),
            )
        },
    }
)


def declared_backend(config: ModelConfig) -> str:
    """The backend of this table whose parameters and rules hold for a model, or the name of
    another one. For a model of a Python-based backend, `python`."""
    if is_python_based(config.backend, config.runtime):
        return PYTHON
    return BACKEND_NAMES.get(config.backend, config.backend)


def is_python_based(backend: str, runtime: str) -> bool:
    """Whether these fields of a config mean a Python-based backend.

    A config that names only the backend gets its `runtime` when the backend is found.
    """
    name = BACKEND_NAMES.get(backend, backend)
    declared = BACKENDS.get(name)
    has_runtimes = declared is not None and "runtime" in declared.config_fields
    return runtime == PYTHON_RUNTIME and name != PYTHON and not has_runtimes

"""Finding a backend by its name.

    config.backend | config.platform --backend_name--> "onnxruntime" --get--> Backend

Backends come from the entry points of the group `shoal.backends`, so an installed package can
add one. Those that ship with Shoal are found even when Shoal runs from a source tree that
nobody installed. A backend's module, and with it the runtime library, is imported when the first
model asks for it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from shoal.backends.base import Backend
from shoal.backends.extras import missing_library
from shoal.errors import ConfigError, ShoalError

GROUP = "shoal.backends"

BUILT_IN = MappingProxyType(
    {
        "fil": "shoal.backends.tabular.fil:FilBackend",
        "function": "shoal.backends.function.backend:FunctionBackend",
        "generation": "shoal.backends.generation.backend:GenerationBackend",
        "identity": "shoal.backends.identity:IdentityBackend",
        "jax": "shoal.backends.jax:JaxBackend",
        "lightgbm": "shoal.backends.tabular.lightgbm:LightgbmBackend",
        "onnxruntime": "shoal.backends.onnxruntime:OnnxRuntimeBackend",
        "openvino": "shoal.backends.openvino.backend:OpenVinoBackend",
        "python": "shoal.backends.python.backend:PythonBackend",
        "pytorch": "shoal.backends.pytorch.backend:PyTorchBackend",
        "sklearn": "shoal.backends.tabular.sklearn:SklearnBackend",
        "tflite": "shoal.backends.tflite:TfliteBackend",
        "xgboost": "shoal.backends.tabular.xgboost:XgboostBackend",
    }
)

# Older configs name a platform instead of a backend; some name one in the backend field.
PLATFORMS = MappingProxyType(
    {
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "torch_aoti": "pytorch",
        "tensorrt_plan": "tensorrt",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
        "ensemble": "ensemble",
    }
)
_ALIASES = MappingProxyType(
    {
        **PLATFORMS,
        "onnx": "onnxruntime",
        "libtorch": "pytorch",
        "scikit-learn": "sklearn",
        "tensorflow_lite": "tflite",
    }
)

# What Triton users may have in their repositories and Shoal does not run, with the way out.
_WAYS_OUT = MappingProxyType(
    {
        "tensorrt": 'Serve the ONNX file the plan was built from, with backend: "onnxruntime" and, '
        "for TensorRT's kernels, optimization { execution_accelerators { "
        'gpu_execution_accelerator: [ { name: "tensorrt" } ] } }',
        "tensorflow": "Convert the model: python -m tf2onnx.convert --saved-model model.savedmodel "
        "--output model.onnx, or tf.lite.TFLiteConverter.from_saved_model for model.tflite",
        "dali": 'Write the pipeline as a Python model (model.py, backend: "python"), in which '
        "nvidia.dali can be imported",
        "vllm": "Use the engine in a Python model (model.py), which can stream its replies",
        "tensorrtllm": "Use the engine in a Python model (model.py), which can stream its replies",
    }
)


def backend_name(backend: str, platform: str = "") -> str:
    """The one name of the backend a config asks for, or "" where it names neither."""
    name = backend or platform
    return _ALIASES.get(name, name)


class BackendRegistry:
    """Every backend there is, each made once, when it is first asked for."""

    def __init__(self, extra: Mapping[str, Callable[[], Backend]] | None = None) -> None:
        """`extra` adds backends by name, before installed ones; tests bring theirs this way."""
        self._extra = dict(extra or {})
        self._made: dict[str, Backend] = {}
        self._lock = threading.Lock()  # guards _made; two models may load at once

    def names(self) -> tuple[str, ...]:
        """The names `get` knows, sorted."""
        return tuple(sorted({*self._extra, *BUILT_IN, *entry_points(group=GROUP).names}))

    def get(self, name: str, *, file: str = "config.pbtxt") -> Backend:
        """The backend called `name` (a platform's name works too).

        Raises ConfigError when there is none, when its runtime is not installed or when its
        module does not load; `file` is where the operator should look.
        """
        name = backend_name(name)
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(name, file)
            return self._made[name]

    def _make(self, name: str, file: str) -> Backend:
        try:
            factory = self._factory(name)
            if factory is None:
                raise self._unknown(name, file)
            return factory()
        except ShoalError:
            raise
        except ImportError as error:
            raise missing_library(name, error, file=file) from error
        except Exception as error:  # a broken plug-in must cost its own models only
            raise ConfigError(
                f"the backend '{name}' failed to start: {type(error).__name__}: {error}",
                file=file,
                field="backend",
            ) from error

    def _factory(self, name: str) -> Callable[[], Backend] | None:
        if name in self._extra:
            return self._extra[name]
        for entry in entry_points(group=GROUP, name=name):
            installed: Callable[[], Backend] = entry.load()
            return installed
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            built_in: Callable[[], Backend] = getattr(importlib.import_module(module), attribute)
            return built_in
        return None

    def _unknown(self, name: str, file: str) -> ConfigError:
        known = ", ".join(self.names())
        fix = f"The backends installed here are: {known}"
        if name in _WAYS_OUT:
            message = f"Shoal has no '{name}' backend"
            fix = f"{_WAYS_OUT[name]}. {fix}"
        elif name:
            message = f"unknown backend '{name}'"
        else:
            message = "no backend is named"
        return ConfigError(message, file=file, field="backend", fix=fix)


_process = BackendRegistry()  # one Backend object serves the whole process


def names() -> tuple[str, ...]:
    """The names of the backends this process has."""
    return _process.names()


def get(name: str, *, file: str = "config.pbtxt") -> Backend:
    """The process's backend called `name`; ConfigError says which there are when it has none."""
    return _process.get(name, file=file)

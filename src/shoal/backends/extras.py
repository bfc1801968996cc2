"""The optional packages behind backends: which extra of Shoal brings which library."""

from __future__ import annotations

from types import MappingProxyType

from shoal.errors import ConfigError

# Backend to extra, for `pip install 'shoal[extra]'`.
EXTRAS = MappingProxyType(
    {
        "generation": "tasks",
        "openvino": "openvino",
        "pytorch": "torch",
        "sklearn": "sklearn",
        "xgboost": "xgboost",
        "lightgbm": "lightgbm",
        "tflite": "tflite",
        "jax": "jax",
    }
)


def missing_library(backend: str, error: ImportError, *, file: str) -> ConfigError:
    """The error for a backend whose library is not installed; it says how to install it."""
    missing = error.name or str(error)
    extra = EXTRAS.get(backend)
    package = f"'shoal[{extra}]'" if extra else missing.partition(".")[0]
    return ConfigError(
        f"the backend '{backend}' cannot be used because {missing!r} is not installed",
        file=file,
        field="backend",
        fix=f"Install it, for instance with: pip install {package}",
    )

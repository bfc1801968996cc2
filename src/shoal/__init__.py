"""Shoal: an inference server you install with pip.

    @shoal.model(batch=32)          a function is a model: `shoal serve app.py`
    shoal.Server("models")          a server in this process

The names below are imported when they are first used, so that `import shoal` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.backends.function.declaration import model as model
    from shoal.backends.function.tensor import Tensor as Tensor
    from shoal.config.options import Options as Options
    from shoal.errors import InvalidArgument as InvalidArgument
    from shoal.errors import ShoalError as ShoalError
    from shoal.inprocess.server import Server as Server

__version__ = "0.1.0"

_HOMES = {
    "InvalidArgument": "shoal.errors",
    "Options": "shoal.config.options",
    "Server": "shoal.inprocess.server",
    "ShoalError": "shoal.errors",
    "Tensor": "shoal.backends.function.tensor",
    "model": "shoal.backends.function.declaration",
}
__all__ = ["InvalidArgument", "Options", "Server", "ShoalError", "Tensor", "__version__", "model"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

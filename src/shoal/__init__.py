"""Shoal: an inference server you install with pip.

    from shoal import Options, Server

The names below are imported when they are first used, so that `import shoal` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.config.options import Options as Options
    from shoal.errors import ShoalError as ShoalError
    from shoal.server import Server as Server

__version__ = "0.1.0"

_HOMES = {
    "Options": "shoal.config.options",
    "Server": "shoal.server",
    "ShoalError": "shoal.errors",
}
__all__ = ["Options", "Server", "ShoalError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)

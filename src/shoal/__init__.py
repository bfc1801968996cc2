"""Shoal: an inference server you install with pip.

    @shoal.model(batch=32)          a function is a model: `shoal serve app.py`
    shoal.Server("models")          a server in this process
    shoal.AsyncServer("models")     the same for asyncio
    shoal.asgi_app("models")        a server as an ASGI application

The names below are imported when they are first used, so that `import shoal` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.backends.function.declaration import model as model
    from shoal.backends.function.tensor import Tensor as Tensor
    from shoal.config.options import Options as Options
    from shoal.errors import AlreadyExists as AlreadyExists
    from shoal.errors import Cancelled as Cancelled
    from shoal.errors import DeadlineExceeded as DeadlineExceeded
    from shoal.errors import Internal as Internal
    from shoal.errors import InvalidArgument as InvalidArgument
    from shoal.errors import NotFound as NotFound
    from shoal.errors import QueueRejected as QueueRejected
    from shoal.errors import ShoalError as ShoalError
    from shoal.errors import Unavailable as Unavailable
    from shoal.errors import Unsupported as Unsupported
    from shoal.inprocess.asgi import asgi_app as asgi_app
    from shoal.inprocess.async_server import AsyncServer as AsyncServer
    from shoal.inprocess.server import Server as Server

try:  # with the number of the commit; a build writes it
    from shoal._version import __version__  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # a source tree in Python's path
    __version__ = "0.2.0"

_HOMES = {
    "AlreadyExists": "shoal.errors",
    "AsyncServer": "shoal.inprocess.async_server",
    "Cancelled": "shoal.errors",
    "DeadlineExceeded": "shoal.errors",
    "Internal": "shoal.errors",
    "InvalidArgument": "shoal.errors",
    "NotFound": "shoal.errors",
    "Options": "shoal.config.options",
    "QueueRejected": "shoal.errors",
    "Server": "shoal.inprocess.server",
    "ShoalError": "shoal.errors",
    "Tensor": "shoal.backends.function.tensor",
    "Unavailable": "shoal.errors",
    "Unsupported": "shoal.errors",
    "asgi_app": "shoal.inprocess.asgi",
    "model": "shoal.backends.function.declaration",
}
__all__ = [
    "AlreadyExists",
    "AsyncServer",
    "Cancelled",
    "DeadlineExceeded",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "Options",
    "QueueRejected",
    "Server",
    "ShoalError",
    "Tensor",
    "Unavailable",
    "Unsupported",
    "__version__",
    "asgi_app",
    "model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

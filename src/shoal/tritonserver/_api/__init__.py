"""Names of Triton's private modules, which programs use in annotations and imports."""

from __future__ import annotations

from shoal.tritonserver import allocators as _allocators
from shoal.tritonserver import enums as _dlpack
from shoal.tritonserver import log as _logging
from shoal.tritonserver import memory as _datautils
from shoal.tritonserver import memory as _memorybuffer
from shoal.tritonserver import model as _model
from shoal.tritonserver import request as _request
from shoal.tritonserver import response as _response
from shoal.tritonserver import server as _server
from shoal.tritonserver import tensor as _tensor

__all__ = [
    "_allocators",
    "_datautils",
    "_dlpack",
    "_logging",
    "_memorybuffer",
    "_model",
    "_request",
    "_response",
    "_server",
    "_tensor",
]

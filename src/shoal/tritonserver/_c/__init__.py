"""The parts of Triton's C bindings that programs import: enumerations, errors and their texts.

The classes of the C API itself (TRITONSERVER_Server and others) are not here: there is no C API.
"""

from __future__ import annotations

from shoal.tritonserver._c import triton_bindings as triton_bindings
from shoal.tritonserver._c.triton_bindings import *  # noqa: F403 - the same names

"""Enumerations and errors by the names of Triton's C bindings, and functions of theirs."""

from __future__ import annotations

import enum

from shoal.core import dtypes
from shoal.tritonserver.enums import *  # noqa: F403 - all of them
from shoal.tritonserver.enums import TRITONSERVER_DataType
from shoal.tritonserver.errors import *  # noqa: F403 - all of them


def TRITONSERVER_DataTypeString(datatype: TRITONSERVER_DataType) -> str:  # noqa: N802 - Triton's
    """The name of a datatype in the protocol."""
    return "<invalid>" if datatype is TRITONSERVER_DataType.INVALID else datatype.name


def TRITONSERVER_StringToDataType(name: str) -> TRITONSERVER_DataType:  # noqa: N802
    """The datatype of that name; INVALID if there is none."""
    return TRITONSERVER_DataType.__members__.get(name, TRITONSERVER_DataType.INVALID)


def TRITONSERVER_DataTypeByteSize(datatype: TRITONSERVER_DataType) -> int:  # noqa: N802
    """The size of an element; 0 for those of any size."""
    known = dtypes.BY_NAME.get(datatype.name)
    return 0 if known is None else known.itemsize


def _name(member: enum.Enum) -> str:
    """The name of a member."""
    return member.name


TRITONSERVER_MemoryTypeString = _name
TRITONSERVER_ParameterTypeString = _name
TRITONSERVER_InstanceGroupKindString = _name
TRITONSERVER_InferenceTraceLevelString = _name
TRITONSERVER_InferenceTraceActivityString = _name

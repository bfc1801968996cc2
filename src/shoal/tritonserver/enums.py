"""The enumerations of Triton's C API, by the names that its Python bindings give them."""

from __future__ import annotations

import enum


class _TritonEnum(enum.IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class TRITONSERVER_DataType(_TritonEnum):  # noqa: N801 - Triton's names, also below
    """The type of a tensor's elements."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class TRITONSERVER_MemoryType(_TritonEnum):  # noqa: N801
    """Where a buffer is."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class TRITONSERVER_ParameterType(_TritonEnum):  # noqa: N801
    """The type of a parameter."""

    STRING = 0
    INT = 1
    BOOL = 2
    DOUBLE = 3
    BYTES = 4


class TRITONSERVER_InstanceGroupKind(_TritonEnum):  # noqa: N801
    """Where instances run."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class TRITONSERVER_LogLevel(_TritonEnum):  # noqa: N801
    """The level of a line of the log."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class TRITONSERVER_LogFormat(_TritonEnum):  # noqa: N801
    """The format of the log."""

    DEFAULT = 0
    ISO8601 = 1


class TRITONSERVER_MetricFormat(_TritonEnum):  # noqa: N801
    """The format of metrics."""

    PROMETHEUS = 0


class TRITONSERVER_MetricKind(_TritonEnum):  # noqa: N801
    """What a metric does."""

    COUNTER = 0
    GAUGE = 1


class TRITONSERVER_ModelControlMode(_TritonEnum):  # noqa: N801
    """When models are loaded."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class TRITONSERVER_RateLimitMode(_TritonEnum):  # noqa: N801
    """Whether executions are limited by resources."""

    OFF = 0
    EXEC_COUNT = 1


class TRITONSERVER_ModelBatchFlag(_TritonEnum):  # noqa: N801
    """Whether a model has a batch dimension."""

    UNKNOWN = 1
    FIRST_DIM = 2


class TRITONSERVER_ModelIndexFlag(_TritonEnum):  # noqa: N801
    """Which models an index lists."""

    READY = 1


class TRITONSERVER_ModelTxnPropertyFlag(_TritonEnum):  # noqa: N801
    """How many responses a model sends."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class TRITONSERVER_RequestFlag(_TritonEnum):  # noqa: N801
    """The place of a request in its sequence."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


class TRITONSERVER_ResponseCompleteFlag(_TritonEnum):  # noqa: N801
    """Whether a response is the last one."""

    FINAL = 1


class TRITONSERVER_InferenceTraceLevel(_TritonEnum):  # noqa: N801
    """What is traced."""

    DISABLED = 0
    MIN = 1
    MAX = 2
    TIMESTAMPS = 4
    TENSORS = 8


class TRITONSERVER_InferenceTraceActivity(_TritonEnum):  # noqa: N801
    """An event of a trace."""

    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_INPUT_END = 3
    COMPUTE_OUTPUT_START = 4
    COMPUTE_END = 5
    REQUEST_END = 6
    TENSOR_QUEUE_INPUT = 7
    TENSOR_BACKEND_INPUT = 8
    TENSOR_BACKEND_OUTPUT = 9


# The public names.
DataType = TRITONSERVER_DataType
InstanceGroupKind = TRITONSERVER_InstanceGroupKind
LogFormat = TRITONSERVER_LogFormat
LogLevel = TRITONSERVER_LogLevel
MemoryType = TRITONSERVER_MemoryType
MetricFormat = TRITONSERVER_MetricFormat
MetricKind = TRITONSERVER_MetricKind
ModelBatchFlag = TRITONSERVER_ModelBatchFlag
ModelControlMode = TRITONSERVER_ModelControlMode
ModelTxnPropertyFlag = TRITONSERVER_ModelTxnPropertyFlag
RateLimitMode = TRITONSERVER_RateLimitMode


class DLDeviceType(enum.IntEnum):
    """DLPack's kinds of devices."""

    kDLCPU = 1  # noqa: N815 - DLPack's names
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815
    kDLOpenCL = 4  # noqa: N815
    kDLVulkan = 7  # noqa: N815
    kDLMetal = 8  # noqa: N815
    kDLVPI = 9  # noqa: N815
    kDLROCM = 10  # noqa: N815
    kDLROCMHost = 11  # noqa: N815
    kDLExtDev = 12  # noqa: N815
    kDLCUDAManaged = 13  # noqa: N815
    kDLOneAPI = 14  # noqa: N815
    kDLWebGPU = 15  # noqa: N815
    kDLHexagon = 16  # noqa: N815

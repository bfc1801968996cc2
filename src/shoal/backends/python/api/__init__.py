"""pb_utils: what Python models import as `triton_python_backend_utils`.

Every name of Triton's module is here, with its meaning. It needs numpy and nothing else, and
works outside a server too, so that a model can be tested like any other class; see
`shoal.testing.python_models`.
"""

from __future__ import annotations

from shoal.backends.python.api.calls import ResponseIterator
from shoal.backends.python.api.config import ModelConfig
from shoal.backends.python.api.errors import TritonError, TritonModelException
from shoal.backends.python.api.helpers import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_model_dir,
    get_output_config_by_name,
    get_output_tensor_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)
from shoal.backends.python.api.logger import Logger
from shoal.backends.python.api.metrics import Metric, MetricFamily, MetricKind
from shoal.backends.python.api.models import is_model_ready, load_model, unload_model
from shoal.backends.python.api.request import (
    REQUEST_RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL,
)
from shoal.backends.python.api.request import (
    REQUEST_RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
)
from shoal.backends.python.api.request import (
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.sender import (
    RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL,
)
from shoal.backends.python.api.sender import InferenceResponseSender
from shoal.backends.python.api.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
COUNTER, GAUGE, HISTOGRAM = MetricKind


class SharedMemory:
    """Exists for Triton's tests. Shoal has no such pool of memory."""

    def free_memory(self) -> int:
        """Always the same: memory is allocated when it is needed."""
        return 1 << 20


shared_memory = SharedMemory()

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "shared_memory",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

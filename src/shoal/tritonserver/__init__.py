"""The module `tritonserver` of NVIDIA's Triton, for programs that embed a server.

    server = tritonserver.Server(model_repository="models").start(wait_until_ready=True)
    for response in server.model("identity").infer(inputs={"string_input": [["hello"]]}):
        print(response.outputs["string_output"].to_string_array())

The package `shoal-tritonserver` makes it available by Triton's name (decision 32); without that,
`from shoal import tritonserver` does. It is a layer over `shoal.Server`.
"""

from __future__ import annotations

from shoal import __version__ as __version__
from shoal.tritonserver import _api as _api
from shoal.tritonserver import _c as _c
from shoal.tritonserver.allocators import MemoryAllocator as MemoryAllocator
from shoal.tritonserver.allocators import default_memory_allocators as default_memory_allocators
from shoal.tritonserver.enums import DataType as DataType
from shoal.tritonserver.enums import DLDeviceType as DLDeviceType
from shoal.tritonserver.enums import InstanceGroupKind as InstanceGroupKind
from shoal.tritonserver.enums import LogFormat as LogFormat
from shoal.tritonserver.enums import LogLevel as LogLevel
from shoal.tritonserver.enums import MemoryType as MemoryType
from shoal.tritonserver.enums import MetricFormat as MetricFormat
from shoal.tritonserver.enums import MetricKind as MetricKind
from shoal.tritonserver.enums import ModelBatchFlag as ModelBatchFlag
from shoal.tritonserver.enums import ModelControlMode as ModelControlMode
from shoal.tritonserver.enums import ModelTxnPropertyFlag as ModelTxnPropertyFlag
from shoal.tritonserver.enums import RateLimitMode as RateLimitMode
from shoal.tritonserver.errors import AlreadyExistsError as AlreadyExistsError
from shoal.tritonserver.errors import InternalError as InternalError
from shoal.tritonserver.errors import InvalidArgumentError as InvalidArgumentError
from shoal.tritonserver.errors import NotFoundError as NotFoundError
from shoal.tritonserver.errors import TritonError as TritonError
from shoal.tritonserver.errors import UnavailableError as UnavailableError
from shoal.tritonserver.errors import UnknownError as UnknownError
from shoal.tritonserver.errors import UnsupportedError as UnsupportedError
from shoal.tritonserver.log import LogMessage as LogMessage
from shoal.tritonserver.memory import MemoryBuffer as MemoryBuffer
from shoal.tritonserver.metrics import Metric as Metric
from shoal.tritonserver.metrics import MetricFamily as MetricFamily
from shoal.tritonserver.model import Model as Model
from shoal.tritonserver.options import ModelLoadDeviceLimit as ModelLoadDeviceLimit
from shoal.tritonserver.options import Options as Options
from shoal.tritonserver.options import RateLimiterResource as RateLimiterResource
from shoal.tritonserver.request import InferenceRequest as InferenceRequest
from shoal.tritonserver.response import InferenceResponse as InferenceResponse
from shoal.tritonserver.server import Server as Server
from shoal.tritonserver.tensor import Tensor as Tensor

"""`tritonserver.InferenceRequest`: inputs and options of one request."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.tritonserver.allocators import MemoryAllocator
from shoal.tritonserver.errors import InvalidArgumentError
from shoal.tritonserver.memory import DeviceOrMemoryType, parse_device_or_memory_type
from shoal.tritonserver.tensor import Tensor

if TYPE_CHECKING:
    from shoal.tritonserver.model import Model

ResponseQueues = queue.SimpleQueue[Any] | asyncio.Queue[Any]


@dataclass
class InferenceRequest:
    """A request for a model. Values of `inputs` are tensors or what can be one."""

    model: Model
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0  # microseconds
    inputs: dict[str, Tensor | Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: ResponseQueues | None = None
    output_memory_allocator: MemoryAllocator | None = None  # of earlier versions of the bindings

    def _to_core(self) -> Request:
        """The server's request. Raises InvalidArgumentError for values that cannot be sent."""
        if self.output_memory_type is not None:
            parse_device_or_memory_type(self.output_memory_type)
        for value in self.parameters.values():
            if type(value) not in (str, int, bool, float):
                raise InvalidArgumentError(
                    f"Unsupported Value. Can't convert {type(value)} to Request Parameter"
                )
        return Request(
            self.model.name,
            {name: _tensor(value)._to_core(name) for name, value in self.inputs.items()},
            DISCARD,
            model_version=self.model.version,
            id=self.request_id or "",
            parameters=dict(self.parameters),
            priority=self.priority,
            timeout_us=self.timeout,
            correlation_id=self.correlation_id or 0,
            flags=int(self.flags),
        )


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor._from_object(value)

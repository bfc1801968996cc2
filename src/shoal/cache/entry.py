"""A cached answer: outputs and parameters of one response, in memory of its own.

    Response --of--> CachedResponse --response--> Response, for another request
                      pack │ ▲ unpack
                           ▼ │
                     bytes for another process

What models and frontends hand around are views of memory that is used again: pooled buffers,
batches that several answers share, regions that clients registered. So an entry is a copy, and its
bytes cannot be changed by anybody.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor

# The objects around the tensors' bytes, measured and rounded up, so that a cache full of small
# answers takes no more memory than it was given.
_ENTRY_BYTES = 512
_OUTPUT_BYTES = 256

# The first bytes of a packed entry; another form gets another number.
_MAGIC = b"shoal-response-1"
_HEAD = struct.Struct("<16sI")


class CachedOutput(NamedTuple):
    """One output tensor."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """One answer. It can be given any number of times, from any thread."""

    outputs: tuple[CachedOutput, ...]
    parameters: tuple[tuple[str, ParameterValue], ...]
    nbytes: int  # what keeping it in memory costs, objects included

    @classmethod
    def of(cls, response: Response) -> CachedResponse:
        """A copy of what `response` says. It must be the only one to its request, without error."""
        outputs = tuple(
            [
                CachedOutput(tensor.name, tensor.datatype, tuple(tensor.shape), bytes(tensor.raw))
                for tensor in response.outputs
            ]
        )
        return cls._made(outputs, tuple(response.parameters.items()))

    @classmethod
    def _made(
        cls,
        outputs: tuple[CachedOutput, ...],
        parameters: tuple[tuple[str, ParameterValue], ...],
    ) -> CachedResponse:
        size = _ENTRY_BYTES + sum([len(output.raw) + _OUTPUT_BYTES for output in outputs])
        size += sum([len(key) + len(str(value)) + 2 * 64 for key, value in parameters])
        return cls(outputs, parameters, size)

    def response(self, request: Request, model_name: str, version: int) -> Response:
        """The answer to `request`, as if the model had just given it."""
        tensors = [
            Tensor(output.name, output.datatype, output.shape, raw=output.raw)
            for output in self.outputs
        ]
        return Response(model_name, version, request.id, tensors, dict(self.parameters))

    def pack(self) -> bytes:
        """The entry as bytes: a JSON head, then the tensors. No code is ever read back from it."""
        head = json.dumps(
            {
                "outputs": [[o.name, o.datatype.name, o.shape, len(o.raw)] for o in self.outputs],
                "parameters": self.parameters,
            }
        ).encode()
        parts = [_HEAD.pack(_MAGIC, len(head)), head, *[output.raw for output in self.outputs]]
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes) -> CachedResponse:
        """The entry that `pack` made these bytes from; ValueError when it was not `pack`."""
        try:
            magic, head_size = _HEAD.unpack_from(packed)
            if magic != _MAGIC:
                raise ValueError("it does not begin like one")
            position = _HEAD.size + head_size
            head = json.loads(packed[_HEAD.size : position])
            outputs = []
            for name, datatype, shape, size in head["outputs"]:
                raw = packed[position : position + size]
                if len(raw) != size:
                    raise ValueError("it is cut off")
                outputs.append(CachedOutput(name, dtypes.BY_NAME[datatype], tuple(shape), raw))
                position += size
            if position != len(packed):
                raise ValueError("it goes on after its end")
            parameters = tuple([(key, value) for key, value in head["parameters"]])
        except (struct.error, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no cached response: {error}") from None
        return cls._made(tuple(outputs), parameters)

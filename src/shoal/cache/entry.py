"""A cached response: its outputs and parameters, in memory of its own.

    Response --of--> CachedResponse --response--> Response, for another request
                      pack │ ▲ unpack
                           ▼ │
                     bytes for another process

The tensors of responses are views of memory that is reused: pooled buffers, batches that several
responses share, regions that clients registered. So an entry is an immutable copy.
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

# Memory of the objects around the tensors' bytes, measured and rounded up, so that a cache of
# small responses stays within its size.
_ENTRY_BYTES = 512
_OUTPUT_BYTES = 256

# The first bytes of a packed entry; another format gets another number.
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
    """One response. It can be used any number of times, from any thread."""

    outputs: tuple[CachedOutput, ...]
    parameters: tuple[tuple[str, ParameterValue], ...]
    nbytes: int  # in memory, including objects

    @classmethod
    def of(cls, response: Response) -> CachedResponse:
        """A copy of `response`, which must be the only one to its request and no error."""
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
        """The response to `request`, as if the model had computed it."""
        tensors = [
            Tensor(output.name, output.datatype, output.shape, raw=output.raw)
            for output in self.outputs
        ]
        return Response(model_name, version, request.id, tensors, dict(self.parameters))

    def pack(self) -> bytes:
        """The entry as bytes: a JSON head, then the tensors. It never contains code."""
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
        """The entry that `pack` made these bytes from; ValueError for any other bytes."""
        try:
            magic, head_size = _HEAD.unpack_from(packed)
            if magic != _MAGIC:
                raise ValueError("it does not begin with the magic number")
            position = _HEAD.size + head_size
            head = json.loads(packed[_HEAD.size : position])
            outputs = []
            for name, datatype, shape, size in head["outputs"]:
                raw = packed[position : position + size]
                if len(raw) != size:
                    raise ValueError("it is truncated")
                outputs.append(CachedOutput(name, dtypes.BY_NAME[datatype], tuple(shape), raw))
                position += size
            if position != len(packed):
                raise ValueError("it has bytes after its end")
            parameters = tuple([(key, value) for key, value in head["parameters"]])
        except (struct.error, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a cached response: {error}") from None
        return cls._made(tuple(outputs), parameters)

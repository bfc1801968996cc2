"""As much of the `tensorrt` package as the backend uses, computing on the CPU.

An engine is a JSON file: `{"inputs": {"x": ["FLOAT", [-1, 2]]}, "outputs": …, "profiles": …}`. It
computes sum and difference of its two inputs; the output `found` has those elements of the first
that are not zero. An input `sizes` is in the CPU's memory: its values are shapes.

Its rules are those of TensorRT's Python API: a context needs a profile, then the shapes of all
inputs, which have to lie within it, then an address or an allocator for every tensor, as integers;
another profile forgets the shapes; a context keeps every allocator that it was given; the first
logger is used for everything; a profile that cannot be set raises RuntimeError.
"""

from __future__ import annotations

import ctypes
import enum
import json
import types
from typing import ClassVar

import numpy as np


class TensorIOMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class TensorLocation(enum.Enum):
    DEVICE = 0
    HOST = 1


class TensorFormat(enum.Enum):
    LINEAR = 0
    CHW32 = 5


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    FP8 = 6
    INT64 = 8


class Severity(enum.Enum):
    ERROR = 1
    WARNING = 2


class ILogger:
    def __init__(self):
        self.started = True


class IOutputAllocator:
    def __init__(self):
        self.started = True


class Context:
    made: ClassVar[list[Context]] = []

    def __init__(self, engine):
        Context.made.append(self)
        self.engine = engine
        self.profile = None
        self.shapes, self.addresses, self.allocators = {}, {}, {}
        self.kept = []  # every allocator
        self.streams = []

    def set_optimization_profile_async(self, profile_index, stream_handle):
        assert type(profile_index) is type(stream_handle) is int
        if self.engine.without_profiles:
            raise RuntimeError("Error in set optimization profile async.")
        self.profile = profile_index
        self.shapes = {}
        return True

    def set_input_shape(self, name, shape):
        assert self.profile is not None
        assert name in self.engine.names("inputs")
        assert isinstance(shape, tuple | list)
        assert all(type(size) is int for size in shape)
        if self.engine.get_tensor_location(name) is TensorLocation.HOST:
            self.shapes[name] = tuple(shape)
            return True
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))
        if fits:
            self.shapes[name] = tuple(shape)
        return fits

    def set_tensor_address(self, name, memory):
        assert type(memory) is int
        assert memory
        self.addresses[name] = memory
        return True

    def set_output_allocator(self, name, output_allocator):
        assert output_allocator.started
        self.allocators[name] = output_allocator
        self.kept.append(output_allocator)
        return True

    def infer_shapes(self):
        return [
            name
            for name in self.engine.names("inputs")
            if name not in self.shapes
            or (
                self.engine.get_tensor_location(name) is TensorLocation.HOST
                and name not in self.addresses
            )
        ]

    def get_tensor_shape(self, name):
        assert not self.infer_shapes()
        first = self.shapes[self.engine.names("inputs")[0]]
        return (-1,) if name == "found" else first

    def execute_async_v3(self, stream_handle):
        assert type(stream_handle) is int
        assert not self.infer_shapes()
        stream = stream_handle
        self.streams.append(stream)
        for name in self.engine.names("inputs") + self.engine.names("outputs"):
            assert name in self.addresses or name in self.allocators, name
        left, right = [self._array(name) for name in self.engine.names("inputs")[:2]]
        values = {"total": left + right, "rest": left - right, "found": left[left != 0]}
        for name in self.engine.names("outputs"):
            array = values[name]
            if name in self.allocators:
                given = self.allocators[name]
                address = given.reallocate_output_async(name, 0, array.nbytes, 256, stream)
                given.notify_shape(name, array.shape)
            else:
                address = self.addresses[name]
            ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return not self.engine.broken

    def _array(self, name):
        shape = self.shapes[name]
        count = int(np.prod(shape)) * 4
        memory = (ctypes.c_char * count).from_address(self.addresses[name])
        return np.frombuffer(memory, np.float32).reshape(shape).copy()


class Engine:
    device_memory_size_v2 = 1000

    def __init__(self, written):
        self._written = written
        self.broken = written.get("broken", False)
        self.without_profiles = written.get("without_profiles", False)
        self.num_io_tensors = len(self.names("inputs") + self.names("outputs"))
        self.num_optimization_profiles = len(written["profiles"])

    def names(self, side):
        return list(self._written[side])

    def get_tensor_name(self, place):
        return (self.names("inputs") + self.names("outputs"))[place]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name in self._written["inputs"] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name):
        return TensorLocation.HOST if name == "sizes" else TensorLocation.DEVICE

    def get_tensor_format(self, name):
        return TensorFormat[self._written.get("formats", {}).get(name, "LINEAR")]

    def get_tensor_dtype(self, name):
        return DataType[self._tensor(name)[0]]

    def get_tensor_shape(self, name):
        return tuple(self._tensor(name)[1])

    def get_tensor_profile_shape(self, name, profile):
        least, most = self._written["profiles"][profile]
        dims = self._tensor(name)[1]
        return [
            tuple(rows if size == -1 else size for size in dims) for rows in (least, most, most)
        ]

    def create_execution_context(self):
        return Context(self)

    def _tensor(self, name):
        return {**self._written["inputs"], **self._written["outputs"]}[name]


class Runtime:
    logger = None  # the first one, for all

    def __init__(self, logger):
        assert logger.started
        self._logger = Runtime.logger = Runtime.logger or logger

    def deserialize_cuda_engine(self, content):
        try:
            return Engine(json.loads(content))
        except ValueError:
            self._logger.log(Severity.ERROR, "magicTag does not match")
            return None


def module():
    """The package."""
    made = types.ModuleType("tensorrt")
    made.__version__ = "11.4.0"
    listed = (TensorIOMode, TensorLocation, TensorFormat, DataType, ILogger, IOutputAllocator)
    for item in (*listed, Runtime):
        setattr(made, item.__name__, item)
    Runtime.logger = None
    Context.made = []
    made.init_libnvinfer_plugins = lambda logger, namespace: True
    return made

"""As much of the `tensorrt` package as the backend uses, computing on the CPU.

An engine is a JSON file: `{"inputs": {"x": ["FLOAT", [-1, 2]]}, "outputs": …, "profiles": …}`. It
computes sum and difference of its two inputs; the output `found` has those elements of the first
that are not zero. Its rules are TensorRT's: shapes have to lie within the profile, and every
tensor needs an address before the engine runs.
"""

from __future__ import annotations

import ctypes
import enum
import json
import types

import numpy as np


class TensorIOMode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


class TensorLocation(enum.Enum):
    DEVICE = 0
    HOST = 1


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    FP8 = 6


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
    made = 0

    def __init__(self, engine):
        Context.made += 1
        self.engine = engine
        self.profile = None
        self.shapes, self.addresses, self.allocators = {}, {}, {}
        self.streams = []

    def set_optimization_profile_async(self, profile, stream):
        self.profile = profile
        return True

    def set_input_shape(self, name, shape):
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))
        if fits:
            self.shapes[name] = tuple(shape)
        return fits

    def set_tensor_address(self, name, address):
        assert address
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name, allocator):
        assert allocator.started
        self.allocators[name] = allocator
        return True

    def infer_shapes(self):
        return []

    def get_tensor_shape(self, name):
        first = self.shapes[self.engine.names("inputs")[0]]
        return (-1,) if name == "found" else first

    def execute_async_v3(self, stream):
        self.streams.append(stream)
        left, right = [self._array(name) for name in self.engine.names("inputs")]
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
        self.num_io_tensors = len(self.names("inputs") + self.names("outputs"))
        self.num_optimization_profiles = len(written["profiles"])

    def names(self, side):
        return list(self._written[side])

    def get_tensor_name(self, place):
        return (self.names("inputs") + self.names("outputs"))[place]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name in self._written["inputs"] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name):
        return TensorLocation.DEVICE

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
    def __init__(self, logger):
        assert logger.started
        self._logger = logger

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
    for item in (TensorIOMode, TensorLocation, DataType, ILogger, IOutputAllocator, Runtime):
        setattr(made, item.__name__, item)
    made.init_libnvinfer_plugins = lambda logger, namespace: True
    return made

"""The small functions of pb_utils: finding tensors, reading configs, converting types."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from shoal.backends.python.api.host import current
from shoal.backends.python.api.request import InferenceRequest
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.tensor import Tensor
from shoal.core import bytes_tensor

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
_BY_NUMBER: dict[int, Any] = {
    number: np.bool_ if kind is bool else kind
    for number, kind in enumerate(TRITON_STRING_TO_NUMPY.values(), start=1)
}


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    """The input called `name`, or None."""
    if type(inference_request) is InferenceRequest:
        return inference_request._input(name)
    tensors: list[Tensor] = inference_request.inputs()  # a test double
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output called `name`, or None."""
    tensors = inference_response.output_tensors()
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An input of a parsed config, or None."""
    return _tensor_config(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An output of a parsed config, or None."""
    return _tensor_config(model_config, "output", name)


def _tensor_config(model_config: dict[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    for tensor in model_config.get(kind, ()):
        if tensor["name"] == name:
            found: dict[str, Any] = tensor
            return found
    return None


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether a parsed config lets the model send any number of responses to a request."""
    policy = model_config.get("model_transaction_policy", {})
    return bool(policy.get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a config's data_type: "TYPE_FP32" is np.float32."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's number, or None."""
    return _BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type's datatype, or None."""
    if data_type in (np.bytes_, np.object_):
        return 13
    return next((number for number, kind in _BY_NUMBER.items() if data_type == kind), None)


def serialize_byte_tensor(input_tensor: np.ndarray) -> bytes | tuple[()] | None:
    """A string tensor's elements, each after its length; None for any other tensor."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    elements = input_tensor.reshape(-1).tolist()
    return bytes_tensor.encode([e if isinstance(e, bytes) else str(e) for e in elements])


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """The elements of a serialized string tensor; struct.error if it is truncated."""
    elements: list[bytes] = []
    position = 0
    while position < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, position)
        position += 4
        elements += struct.unpack_from(f"<{length}s", encoded_tensor, position)
        position += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def get_model_dir() -> str:
    """The folder of the version that is being served: where model.py is."""
    return current().model_folder

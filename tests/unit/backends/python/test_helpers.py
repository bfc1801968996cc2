from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

import c_python_backend_utils
import triton_python_backend_utils as pb_utils

CONFIG = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [2]}],
}
TYPES = {
    "TYPE_BOOL": (1, np.bool_),
    "TYPE_UINT8": (2, np.uint8),
    "TYPE_UINT16": (3, np.uint16),
    "TYPE_UINT32": (4, np.uint32),
    "TYPE_UINT64": (5, np.uint64),
    "TYPE_INT8": (6, np.int8),
    "TYPE_INT16": (7, np.int16),
    "TYPE_INT32": (8, np.int32),
    "TYPE_INT64": (9, np.int64),
    "TYPE_FP16": (10, np.float16),
    "TYPE_FP32": (11, np.float32),
    "TYPE_FP64": (12, np.float64),
    "TYPE_STRING": (13, np.object_),
}


def test_constants():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    codes = [pb_utils.TritonError.UNKNOWN, pb_utils.TritonError.INTERNAL]
    codes += [pb_utils.TritonError.NOT_FOUND, pb_utils.TritonError.INVALID_ARG]
    codes += [pb_utils.TritonError.UNAVAILABLE, pb_utils.TritonError.UNSUPPORTED]
    codes += [pb_utils.TritonError.ALREADY_EXISTS, pb_utils.TritonError.CANCELLED]
    assert [int(code) for code in codes] == list(range(8))


def test_both_names_are_the_same_module_inside():
    assert c_python_backend_utils.Tensor is pb_utils.Tensor
    assert isinstance(c_python_backend_utils.shared_memory.free_memory(), int)
    memory = c_python_backend_utils.MemoryType.TRITONSERVER_MEMORY_CPU
    assert memory == pb_utils.TRITONSERVER_MEMORY_CPU


@pytest.mark.parametrize(("name", "expected"), TYPES.items())
def test_types_convert(name, expected):
    number, kind = expected
    assert np.dtype(pb_utils.triton_string_to_numpy(name)) == np.dtype(kind)
    assert pb_utils.triton_to_numpy_type(number) is kind
    assert pb_utils.numpy_to_triton_type(kind) == number


def test_types_that_do_not():
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.triton_to_numpy_type(14) is None
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_FANCY")


def test_configs_are_read():
    assert pb_utils.get_input_config_by_name(CONFIG, "IN") is CONFIG["input"][0]
    assert pb_utils.get_output_config_by_name(CONFIG, "OUT") is CONFIG["output"][0]
    assert pb_utils.get_input_config_by_name(CONFIG, "OUT") is None
    assert pb_utils.get_output_config_by_name({}, "OUT") is None
    assert not pb_utils.using_decoupled_model_transaction_policy(CONFIG)
    policy = {"model_transaction_policy": {"decoupled": True}}
    assert pb_utils.using_decoupled_model_transaction_policy(policy)


def test_a_stand_in_for_a_request_will_do():
    tensor = pb_utils.Tensor("IN", np.zeros(1))
    request = SimpleNamespace(inputs=lambda: [tensor])
    assert pb_utils.get_input_tensor_by_name(request, "IN") is tensor
    assert pb_utils.get_input_tensor_by_name(request, "OTHER") is None


def test_strings_are_serialized_and_back():
    array = np.array([[b"a", "é"], [3, b""]], object)
    encoded = pb_utils.serialize_byte_tensor(array)
    assert encoded == b"\1\0\0\0a\2\0\0\0\xc3\xa9\1\0\0\x003\0\0\0\0"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a", b"\xc3\xa9", b"3", b""]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)


def test_log_lines_carry_the_models_place(caplog):
    caplog.set_level(logging.DEBUG, "shoal.models")
    pb_utils.Logger.log_info("one")
    pb_utils.Logger.log_warn("two")
    pb_utils.Logger.log_error("three")
    pb_utils.Logger.log_verbose("four")
    pb_utils.Logger.log("five", pb_utils.Logger.WARNING)
    pb_utils.Logger.log("six")
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "ERROR", "DEBUG", "WARNING", "INFO"]
    assert {record.filename for record in caplog.records} == {"test_helpers.py"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.Logger.log("x", None),
        lambda: pb_utils.Logger.log("x", 1),
        lambda: pb_utils.Logger.log_info(None),
        lambda: pb_utils.Logger.log_warn(None),
        lambda: pb_utils.Logger.log_error(None),
        lambda: pb_utils.Logger.log_verbose(None),
    ],
)
def test_log_takes_text_and_a_level(call):
    with pytest.raises(TypeError):
        call()

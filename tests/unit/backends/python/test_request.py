from __future__ import annotations

import json

import numpy as np
import pytest

import triton_python_backend_utils as pb_utils

INPUTS = [pb_utils.Tensor("INPUT0", np.array([1, 2], np.int32))]
GIVEN = {"model_name": "other", "inputs": INPUTS, "requested_output_names": ["OUT"]}


def make(**changes):
    return pb_utils.InferenceRequest(**{**GIVEN, **changes})


def test_defaults():
    request = make()
    assert request.inputs() == INPUTS
    assert request.request_id() == ""
    assert request.correlation_id() == 0
    assert request.flags() == 0
    assert request.timeout() == 0
    assert request.requested_output_names() == {"OUT"}
    assert json.loads(request.parameters()) == {}
    assert request.trace().get_context() is None
    assert not request.is_cancelled()


def test_everything_given_is_there():
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
    request = make(
        request_id="7",
        correlation_id="sequence",
        model_version=3,
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=500,
        preferred_memory=memory,
        parameters={"a": 1, "b": True, "c": "x"},
    )
    assert request.request_id() == "7"
    assert request.correlation_id() == "sequence"
    assert request.flags() == 1
    assert request.timeout() == 500
    assert json.loads(request.parameters()) == {"a": 1, "b": True, "c": "x"}
    request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert request.flags() == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": None},
        {"inputs": [1]},
        {"model_name": None},
        {"requested_output_names": None},
        {"requested_output_names": [None]},
        {"correlation_id": None},
        {"request_id": None},
        {"model_version": None},
        {"flags": None},
        {"timeout": None},
        {"preferred_memory": 1},
    ],
    ids=str,
)
def test_wrong_types(wrong):
    with pytest.raises(TypeError):
        make(**wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"inputs": [None]}, "Input tensor for request with id '' and model name 'other' should"),
        ({"requested_output_names": [""]}, "Requested output name for request"),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"parameters": []}, ", got <class 'list'>"),
        ({"parameters": {1: "x"}}, "keys to have type str, found type <class 'int'>"),
        ({"parameters": {"x": 0.5}}, "bool/int/str, found type <class 'float'>"),
        ({"parameters": {"x": 1 << 63}}, "fit into 64 bits, found x = 9223372036854775808"),
        ({"parameters": {"x": None}}, "bool/int/str, found type <class 'NoneType'>"),
    ],
    ids=str,
)
def test_wrong_values(wrong, text):
    with pytest.raises(pb_utils.TritonModelException, match=text):
        make(**wrong)


def test_empty_lists_are_fine():
    assert make(inputs=[], requested_output_names=[]).requested_output_names() == set()


def test_only_received_requests_have_a_sender():
    with pytest.raises(pb_utils.TritonModelException, match="call exec"):
        make().get_response_sender()


def test_release_flags_are_checked():
    request = make()
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    with pytest.raises(pb_utils.TritonModelException, match="Unsupported release flags 4"):
        request.set_release_flags(4)


def test_outside_a_server_there_is_nobody_to_ask():
    with pytest.raises(pb_utils.TritonModelException, match="no server here to run model 'other'"):
        make().exec()
    with pytest.raises(pb_utils.TritonModelException, match="no server here to load"):
        pb_utils.load_model("other")
    with pytest.raises(pb_utils.TritonModelException, match="no server here to unload"):
        pb_utils.unload_model("other")
    assert not pb_utils.is_model_ready("other")


@pytest.mark.parametrize(
    "call",
    [
        lambda: pb_utils.load_model(None),
        lambda: pb_utils.load_model("m", files={"1/model.py": "text"}),
        lambda: pb_utils.unload_model(1),
        lambda: pb_utils.is_model_ready("m", 1),
    ],
)
def test_model_control_takes_text(call):
    with pytest.raises(TypeError):
        call()


def test_model_control_says_what_is_wrong():
    with pytest.raises(pb_utils.TritonModelException, match="files should be a dictionary"):
        pb_utils.load_model("m", files=["a"])
    with pytest.raises(pb_utils.TritonModelException, match="integral value > 0"):
        pb_utils.is_model_ready("m", "one")


# ---- responses


def test_a_response():
    response = pb_utils.InferenceResponse(INPUTS, parameters={"a": 1})
    assert response.output_tensors() == INPUTS
    assert not response.has_error()
    assert response.error() is None
    assert json.loads(response.parameters()) == {"a": 1}
    assert pb_utils.get_output_tensor_by_name(response, "INPUT0") is INPUTS[0]
    assert pb_utils.get_output_tensor_by_name(response, "other") is None


def test_an_error_response():
    error = pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
    response = pb_utils.InferenceResponse(error=error)
    assert response.has_error()
    assert response.error().message() == "no"
    assert response.error().code() == pb_utils.TritonError.NOT_FOUND
    assert pb_utils.TritonError("x").code() == pb_utils.TritonError.INTERNAL


def test_wrong_responses():
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(None)
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(error="text")
    with pytest.raises(TypeError):
        pb_utils.TritonError(None)
    with pytest.raises(TypeError):
        pb_utils.TritonError("x", None)
    with pytest.raises(pb_utils.TritonModelException, match="should not be empty"):
        pb_utils.InferenceResponse([None])


def test_bytes_and_numpy_integers_are_taken_as_pybind_takes_them():
    names = np.array([b"OUT", b"OTHER"], np.object_)
    request = make(
        model_name=np.array([b"other"], np.object_)[0],
        request_id=b"7",
        requested_output_names=names,
        model_version=np.int64(3),
        flags=np.int32(1),
        timeout=np.uint64(500),
    )
    assert request.request_id() == "7"
    assert request.requested_output_names() == {"OUT", "OTHER"}
    assert (request.flags(), request.timeout()) == (1, 500)
    outgoing = request._outgoing(request._core.reply, waits=True)
    assert (outgoing.model_name, outgoing.model_version) == ("other", 3)
    assert type(outgoing.model_version) is int
    request.set_flags(np.int64(2))
    assert request.flags() == 2
    assert pb_utils.Tensor(b"IN", np.zeros(1)).name() == "IN"
    assert pb_utils.TritonError(b"broken").message() == "broken"


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match="model_name must be UTF-8"):
        make(model_name=b"\xff")

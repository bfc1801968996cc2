"""Control tensors: every kind, every type, and what a client may not choose."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.config import pbtxt
from shoal.core import dtypes
from shoal.core.request import Request
from shoal.errors import InvalidArgument
from shoal.scheduler.sequence_controls import Controls
from tests.support.fakes import make_request

START, END = Request.SEQUENCE_START, Request.SEQUENCE_END


def controls(*entries, max_batch_size=4):
    lines = [
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'
        for name, kind, values in entries
    ]
    text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {" ".join(lines)} }}'
    return Controls(pbtxt.parse_pbtxt(text, "config.pbtxt"))


def values(tensors):
    return {name: tensor.array.reshape(-1).tolist() for name, tensor in tensors.items()}


def request(flags=0, correlation_id: int | str = 1):
    return make_request(flags=flags, correlation_id=correlation_id)[0]


INT32 = [(kind, kind, "int32_false_true: [ 0, 1 ]") for kind in ("START", "END", "READY")]


@pytest.mark.parametrize(
    ("flags", "start", "end"), [(0, 0, 0), (START, 1, 0), (END, 0, 1), (START | END, 1, 1)]
)
def test_flags(flags, start, end):
    made = controls(*INT32)
    assert values(made.tensors(request(flags))) == {"START": [start], "END": [end], "READY": [1]}
    assert values(made.not_ready()) == {"START": [0], "END": [0], "READY": [0]}


@pytest.mark.parametrize(
    ("field", "datatype", "off", "on"),
    [
        ("int32_false_true: [ 0, 1 ]", dtypes.INT32, 0, 1),
        ("int32_false_true: [ 7, -3 ]", dtypes.INT32, 7, -3),
        ("fp32_false_true: [ 0, 1 ]", dtypes.FP32, 0.0, 1.0),
        ("fp32_false_true: [ -0.5, 2.5 ]", dtypes.FP32, -0.5, 2.5),
        ("bool_false_true: [ false, true ]", dtypes.BOOL, False, True),
        ("bool_false_true: [ true, false ]", dtypes.BOOL, True, False),
    ],
)
def test_every_type_of_switch(field, datatype, off, on):
    made = controls(("S", "START", field))
    for flags, expected in ((START, on), (0, off)):
        (tensor,) = made.tensors(request(flags)).values()
        assert (tensor.datatype, tensor.shape) == (datatype, (1, 1))
        assert tensor.array.dtype == datatype.numpy
        assert tensor.array.item() == expected


@pytest.mark.parametrize(
    ("data_type", "correlation_id", "expected"),
    [
        ("TYPE_UINT64", 2**64 - 1, 2**64 - 1),
        ("TYPE_INT64", 2**64 - 1, -1),
        ("TYPE_INT64", 2**63 - 1, 2**63 - 1),
        ("TYPE_UINT32", 2**32 + 5, 5),  # the lower half
        ("TYPE_INT32", 2**32 - 2, -2),
        ("TYPE_STRING", "größer", "größer".encode()),
    ],
)
def test_correlation_id(data_type, correlation_id, expected):
    made = controls(("CORRID", "CORRID", f"data_type: {data_type}"))
    (tensor,) = made.tensors(request(0, correlation_id)).values()
    assert tensor.datatype is dtypes.BY_CONFIG_NAME[data_type]
    assert tensor.array.item() == expected
    nobody = made.not_ready()["CORRID"].array.item()
    assert nobody == (b"" if data_type == "TYPE_STRING" else 0)


def test_without_a_batch_dimension():
    made = controls(*INT32, ("C", "CORRID", "data_type: TYPE_STRING"), max_batch_size=0)
    shapes = {tensor.shape for tensor in made.tensors(request(0, "x")).values()}
    assert shapes == {(1,)}


@pytest.mark.parametrize(
    ("data_type", "correlation_id", "found", "expects"),
    [
        ("TYPE_UINT64", "text", "BYTES", "UINT64"),
        ("TYPE_INT32", "text", "BYTES", "INT32"),
        ("TYPE_STRING", 5, "UINT64", "BYTES"),
        ("TYPE_STRING", 0, "UINT64", "BYTES"),
    ],
)
def test_an_id_of_the_wrong_kind(data_type, correlation_id, found, expects):
    made = controls(("CORRID", "CORRID", f"data_type: {data_type}"))
    with pytest.raises(InvalidArgument) as caught:
        made.check_id(request(0, correlation_id))
    assert str(caught.value) == (
        f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is '{found}', "
        f"but model 'm' expects '{expects}'"
    )


def test_any_kind_of_id_will_do_where_the_model_is_not_told():
    made = controls(*INT32)
    made.check_id(request(0, "text"))
    made.check_id(request(0, 5))


def test_tensors_join_as_bytes():
    """Joining is a matter of bytes then, without numpy in between."""
    made = controls(*INT32, ("C", "CORRID", "data_type: TYPE_UINT64"))
    assert all(tensor.has_raw for tensor in made.tensors(request(START)).values())
    assert np.frombuffer(made.tensors(request(0, 9))["C"].raw, "<u8").tolist() == [9]

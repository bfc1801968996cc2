"""The check at the door: what it refuses, in which words, and what it sets."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core import bytes_tensor, dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import substitute, validate
from shoal.errors import InvalidArgument
from tests.support.fakes import make_request

A = TensorSpec("a", dtypes.INT32, (3,))
B = TensorSpec("b", dtypes.FP32, (-1,))
TEXT = TensorSpec("t", dtypes.BYTES, (1,))
MAYBE = TensorSpec("o", dtypes.INT32, (3,), optional=True)
OUT = TensorSpec("y", dtypes.INT32, (3,))


def signature(*inputs, batch=8):
    return Signature("m", batch, {s.name: s for s in inputs}, {"y": OUT})


def tensor(name, shape, datatype=dtypes.INT32, raw=None):
    if raw is None:
        raw = bytes(max(0, int(np.prod(shape))) * datatype.itemsize)
    return Tensor(name, datatype, tuple(shape), raw=raw)


def check(sig, *tensors, **options):
    request, _ = make_request(*tensors, **options)
    validate(request, sig)
    return request


@pytest.mark.parametrize(
    ("sig", "tensors", "text"),
    [
        (
            signature(A, B),
            [tensor("a", (1, 3))],
            (
                "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'm'. Got "
                "input(s) ['a'], but missing required input(s) ['b']. Please provide all required "
                "input(s)."
            ),
        ),
        (
            signature(A, MAYBE),
            [],
            (
                "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got "
                "input(s) [], but missing required input(s) ['a']"
            ),
        ),
        (signature(A, MAYBE), [tensor("o", (1, 3))], "missing required input(s) ['a']"),
        (
            signature(A),
            [tensor("a", (1, 3), dtypes.FP32)],
            "inference input 'a' data-type is 'FP32', but model 'm' expects 'INT32'",
        ),
        (
            signature(A),
            [tensor("a", (1, 4))],
            (
                "unexpected shape for input 'a' for model 'm'. Expected [-1,3], got [1,4]. NOTE: "
                "Setting a non-zero max_batch_size"
            ),
        ),
        (signature(A), [tensor("a", (3,))], "Expected [-1,3], got [3]"),
        (
            signature(A, batch=0),
            [tensor("a", (1, 3))],
            "unexpected shape for input 'a' for model 'm'. Expected [3], got [1,3].",
        ),
        (signature(A), [tensor("a", ())], "input 'a' has no shape but model requires batch"),
        (
            signature(A),
            [tensor("a", (9, 3))],
            "inference request batch-size must be <= 8 for 'm'",
        ),
        (signature(A), [tensor("a", (0, 3))], "inference request batch-size must be >= 1 for 'm'"),
        (
            signature(A, B),
            [tensor("a", (1, 3)), tensor("b", (2, 1), dtypes.FP32)],
            "input 'b' batch size does not match other inputs for 'm'",
        ),
        (
            signature(A),
            [tensor("a", (1, 3), raw=bytes(8))],
            "input byte size mismatch for input 'a' for model 'm'. Expected 12, got 8",
        ),
        (
            signature(B),
            [tensor("b", (1, -1), dtypes.FP32, raw=b"")],
            "All input dimensions should be specified for input 'b' for model 'm', got [1,-1]",
        ),
        (
            signature(B, batch=0),
            [tensor("b", (2**63,), dtypes.FP32, raw=b"")],
            "has more elements than can be addressed",
        ),
        (
            signature(TEXT),
            [tensor("t", (1, 1), dtypes.BYTES, raw=b"\x05\0\0\0ab")],
            "incomplete string data for inference input 't' for model 'm'",
        ),
        (
            signature(TEXT),
            [tensor("t", (1, 1), dtypes.BYTES, raw=bytes_tensor.encode([b"a", b"b"]))],
            (
                "unexpected number of string elements 2 for inference input 't' for model 'm', "
                "expecting 1"
            ),
        ),
        (
            signature(TEXT),
            [tensor("t", (2, 1), dtypes.BYTES, raw=bytes_tensor.encode([b"abcdefg"]))],
            "expected 2 string elements for inference input 't' for model 'm', got 1",
        ),
        (
            signature(TEXT),
            [tensor("t", (1, 1), dtypes.BYTES, raw=b"\x05\0")],
            "string",
        ),
    ],
)
def test_refused(sig, tensors, text):
    with pytest.raises(InvalidArgument) as caught:
        check(sig, *tensors)
    assert text in caught.value.message
    assert caught.value.message.startswith("[request id: <id_unknown>] ")


def test_unknown_names_are_refused_with_the_known_ones():
    """Clients match on how these two begin, so they carry no prefix."""
    with pytest.raises(
        InvalidArgument, match=r"^unexpected inference output 'q' for model 'm', al"
    ):
        check(signature(A), tensor("a", (1, 3)), id="7", requested_outputs=("q",))
    with pytest.raises(InvalidArgument, match=r"^unexpected inference input 'z' for model 'm', al"):
        check(signature(A), tensor("z", (1, 3)))


def test_rows_and_batch_key():
    request = check(signature(A, B), tensor("a", (2, 3)), tensor("b", (2, 5), dtypes.FP32))
    assert request.rows == 2
    other = check(signature(A, B), tensor("a", (1, 3)), tensor("b", (1, 5), dtypes.FP32))
    assert other.batch_key == request.batch_key  # rows do not matter
    longer = check(signature(A, B), tensor("a", (1, 3)), tensor("b", (1, 6), dtypes.FP32))
    assert longer.batch_key != request.batch_key


def test_requests_with_other_optional_inputs_do_not_share_a_batch():
    sig = signature(A, MAYBE)
    without = check(sig, tensor("a", (1, 3)))
    with_it = check(sig, tensor("a", (1, 3)), tensor("o", (1, 3)))
    assert without.batch_key != with_it.batch_key


def test_fixed_shapes_need_no_key():
    assert check(signature(A), tensor("a", (1, 3))).batch_key == ()


def test_reshape_gives_the_model_its_shape_and_leaves_the_caller_his():
    spec = TensorSpec("a", dtypes.INT32, (3,), reshape=(1, 3, 1))
    given = tensor("a", (2, 3))
    request = check(signature(spec), given)
    assert request.inputs["a"].shape == (2, 1, 3, 1)
    assert given.shape == (2, 3)


def test_scalars_by_reshape():
    spec = TensorSpec("a", dtypes.INT32, (1,), reshape=())
    request = check(signature(spec), tensor("a", (4, 1)))
    assert request.inputs["a"].array.shape == (4,)


def test_zero_elements_are_fine():
    request = check(signature(B), tensor("b", (1, 0), dtypes.FP32))
    assert request.inputs["b"].array.shape == (1, 0)


def test_substitute_fills_in_order():
    assert substitute((-1, 2, -1), (5, 2, 7), (2, -1, -1)) == (2, 5, 7)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([tensor("a", (1, 3))], [tensor("a", (1, 3), dtypes.UINT32)]),
        ([tensor("a", (1, 3))], [tensor("a", (1, 3), raw=bytes(8))]),
        ([tensor("a", (1, 3))], [tensor("a", (1, 4))]),
        ([tensor("a", (1, 3))], [tensor("a", (9, 3))]),
        ([tensor("a", (1, 3))], [tensor("a", (1, 3)), tensor("o", (1, 3), dtypes.FP32)]),
    ],
)
def test_an_invalid_request_is_refused_after_a_valid_one_that_resembles_it(first, then):
    sig = signature(A, MAYBE)
    check(sig, *first)
    with pytest.raises(InvalidArgument):
        check(sig, *then)
    check(sig, *first)


def test_unknown_outputs_are_refused_after_a_valid_request():
    sig = signature(A)
    check(sig, tensor("a", (1, 3)), requested_outputs=("y",))
    with pytest.raises(InvalidArgument, match="unexpected inference output 'z'"):
        check(sig, tensor("a", (1, 3)), requested_outputs=("z",))


def test_a_repeated_request_gets_the_rows_and_the_batch_key_of_the_first():
    sig = signature(A, B)
    requests = [
        check(sig, tensor("a", (rows, 3)), tensor("b", (rows, length), dtypes.FP32))
        for _ in range(2)
        for rows, length in ((1, 2), (4, 2), (4, 5))
    ]
    assert [request.rows for request in requests] == [1, 4, 4] * 2
    assert [request.batch_key for request in requests] == [((2,),), ((2,),), ((5,),)] * 2


def test_the_cache_of_valid_requests_is_bounded():
    sig = signature(B, batch=1)
    for length in range(1000):
        check(sig, tensor("b", (1, length), dtypes.FP32))
    assert sig.validated is not None
    assert 0 < len(sig.validated) <= 256

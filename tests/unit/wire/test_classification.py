import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.wire.classification import classify


def strings(array, count, *, batched=False, labels=()):
    result = classify(Tensor.from_array("y", array), count, batched=batched, labels=labels)
    assert result.datatype is dtypes.BYTES
    assert result.array.shape == result.shape
    return result.array.tolist()


@pytest.mark.parametrize(
    ("array", "count", "expected"),
    [
        (np.array([0.1, 0.7, 0.2], np.float32), 2, [b"0.700000:1", b"0.200000:2"]),
        (np.array([1, 3, 2], np.int32), 3, [b"3:1", b"2:2", b"1:0"]),
        (np.array([1, 3, 2], np.int32), 9, [b"3:1", b"2:2", b"1:0"]),  # no more than there are
        (np.array([2**64 - 1, 0], np.uint64), 1, [b"18446744073709551615:0"]),
        (np.array([-128, 127], np.int8), 1, [b"127:1"]),
        (np.array([5, 5, 5], np.int64), 2, [b"5:0", b"5:1"]),  # equal scores keep their order
        (np.array([1e20, -2.5]), 2, [b"100000000000000000000.000000:0", b"-2.500000:1"]),
        (np.array([math.nan, 1.0, -1.0]), 3, [b"1.000000:1", b"-1.000000:2", b"nan:0"]),
        (np.array([math.inf, 1.0]), 1, [b"inf:0"]),
        (np.array(3, np.int32), 2, [b"3:0"]),
        (np.zeros(0, np.float32), 2, []),
    ],
)
def test_highest_come_first(array, count, expected):
    assert strings(array, count) == expected


def test_rows_of_a_batch_are_classified_one_by_one():
    scores = np.array([[[1, 2], [4, 3]], [[9, 8], [7, 6]]], np.int32)
    assert strings(scores, 2, batched=True) == [[b"4:2", b"3:3"], [b"9:0", b"8:1"]]
    assert strings(scores, 2, batched=False) == [b"9:4", b"8:5"]


def test_an_empty_batch_has_no_rows():
    result = classify(Tensor.from_array("y", np.zeros((0, 3), np.float32)), 2, batched=True)
    assert result.shape == (0, 2)


def test_labels_follow_where_there_is_one():
    scores = np.array([1, 4, 3, 2], np.int32)
    assert strings(scores, 4, labels=("null", "katze 🐈", "")) == [
        "4:1:katze 🐈".encode(),
        b"3:2",
        b"2:3",
        b"1:0:null",
    ]


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.array([b"a"], object), dtypes.BYTES),
        (np.array([True]), dtypes.BOOL),
        (np.zeros(2, np.float16), dtypes.FP16),
        (np.zeros(2, np.uint16), dtypes.BF16),
    ],
)
def test_datatypes_without_an_order_are_refused(array, datatype):
    with pytest.raises(InvalidArgument) as caught:
        classify(Tensor.from_array("y", array, datatype), 1, batched=False)
    assert caught.value.message == (
        f"class result not available for output due to unsupported type '{datatype.name}'"
    )


def test_a_row_has_a_limit_and_a_batch_has_none():
    scores = np.zeros((2, 1_000_000), np.uint8)
    assert strings(scores, 1, batched=True) == [[b"0:0"], [b"0:0"]]
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        strings(scores, 1, batched=False)


def test_the_bytes_are_those_of_a_bytes_tensor():
    result = classify(Tensor.from_array("y", np.array([7], np.int32)), 1, batched=False)
    assert bytes(result.raw) == b"\x03\x00\x00\x007:0"


ordered = st.sampled_from(["<i1", "<i8", "<u1", "<u8", "<f4", "<f8"])


@given(
    ordered.flatmap(lambda d: hnp.arrays(d, st.integers(0, 12))),
    st.integers(1, 14),
    st.lists(st.text("ab", max_size=2), max_size=4),
)
def test_against_a_plain_sort(scores, count, labels):
    def rank(index):
        value = scores[index]
        return (-math.inf if value != value else value, -index)  # noqa: PLR0124 - NaN alone differs from itself

    expected = []
    for index in sorted(range(len(scores)), key=rank, reverse=True)[:count]:
        value = scores[index]
        text = f"{value:f}" if scores.dtype.kind == "f" else f"{value}"
        label = labels[index] if index < len(labels) else ""
        expected.append((f"{text}:{index}" + (f":{label}" if label else "")).encode())
    assert strings(scores, count, labels=labels) == expected

"""Results: arrays by name, classes by score."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client import InvalidInput, Label, Output, ProtocolError, Result


def result(**arrays):
    outputs = {
        name: Output(name, "FP32" if array.dtype.kind == "f" else "BYTES", array.shape, array=array)
        for name, array in arrays.items()
    }
    return Result("m", "1", outputs)


def test_it_is_a_mapping():
    found = result(a=np.zeros(2), b=np.ones(2))
    assert list(found) == ["a", "b"]
    assert len(found) == 2
    assert dict(found)["b"].tolist() == [1, 1]
    assert repr(found) == "Result('m' version '1', {a: FP32 [2], b: FP32 [2]})"


def test_scores():
    found = result(prob=np.array([[0.1, 0.7, 0.2], [0.5, 0.0, 0.5]]))
    labels = ["cat", "dog"]
    assert found.top_k("prob", 2, labels) == [
        [Label(0.7, 1, "dog"), Label(0.2, 2, "")],
        [Label(0.5, 0, "cat"), Label(0.5, 2, "")],
    ]
    assert [label.index for label in found.top_k("prob", 9)[0]] == [1, 2, 0]
    assert result(prob=np.array([1.0, 2.0])).top_k("prob") == [[Label(2.0, 1)]]


def test_classes_of_the_server():
    texts = np.array([[b"0.700000:1:dog: large", b"0.2:2"]], dtype=object)
    assert result(prob=texts).top_k("prob", 2) == [[Label(0.7, 1, "dog: large"), Label(0.2, 2)]]


@pytest.mark.parametrize(
    ("array", "k", "text"),
    [
        (np.array([b"hello"], dtype=object), 1, "contains text, not a classification"),
        (np.zeros(3), 0, "1 or more"),
    ],
)
def test_what_has_no_classes(array, k, text):
    with pytest.raises(InvalidInput, match=text):
        result(x=array).top_k("x", k)


def test_bytes_that_do_not_fit_their_shape():
    found = Result("m", "1", {"x": Output("x", "FP32", [2], b"abc")})
    with pytest.raises(ProtocolError, match=r"is malformed.*takes 8"):
        found["x"]


def test_whether_it_is_the_last():
    assert result().final
    assert not Result("m", "1", {}, parameters={"triton_final_response": False}).final

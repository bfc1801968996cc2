"""Data of requests: where they come from, and what is said when they do not fit."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from shoal.core import bytes_tensor
from shoal.core.dtypes import ALL, BYTES
from shoal.errors import InvalidArgument
from shoal.perf.data import DataOptions, load, parse_shape, rows
from shoal.perf.model_facts import ModelFacts, TensorFacts


def model(*inputs, batch=8, outputs=()):
    tensors = tuple(TensorFacts(*each) for each in inputs)
    return ModelFacts("m", "", batch, tensors, tuple(TensorFacts(*each) for each in outputs))


PAIR = model(("A", "INT32", (2,)), ("B", "FP32", (1,)), outputs=[("C", "INT32", (2,))])
WIDE = model(("X", "FP32", (-1, 2)))


def from_json(tmp_path, document, facts=PAIR, **options):
    file = tmp_path / "data.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return load(facts, DataOptions((str(file),), **options))


# ---- made up


@pytest.mark.parametrize("datatype", [each.name for each in ALL])
@pytest.mark.parametrize("source", ["zero", "random"])
def test_made_up_data_have_the_right_size(datatype, source):
    facts = model(("X", datatype, (3, 4)))
    (content,) = rows(facts, load(facts, DataOptions((source,))).streams[0], 0, 2)
    assert content.shape == (2, 3, 4)
    if datatype == BYTES.name:
        texts = bytes_tensor.decode(content.raw, 24, "X")
        assert {len(text) for text in texts} == {128}
    else:
        assert len(content.raw) == 24 * next(t.itemsize for t in ALL if t.name == datatype)
        if source == "zero":
            assert not any(content.raw)


def test_random_numbers_are_finite():
    facts = model(("X", "FP32", (1000,)))
    raw = load(facts, DataOptions()).streams[0][0]["X"].raw
    values = np.frombuffer(raw, np.float32)
    assert np.isfinite(values).all()
    assert len(set(values.tolist())) > 900


def test_texts():
    facts = model(("T", "BYTES", (2,)))
    made = load(facts, DataOptions(string_length=5)).streams[0][0]["T"].raw
    assert [len(text) for text in bytes_tensor.decode(made, 2, "T")] == [5, 5]
    said = load(facts, DataOptions(string_data="hello")).streams[0][0]["T"].raw
    assert bytes_tensor.decode(said, 2, "T").tolist() == [b"hello", b"hello"]


def test_a_dynamic_dim_needs_a_shape():
    with pytest.raises(InvalidArgument, match=r"'X' has a dynamic dim .* --shape X:1,2"):
        load(WIDE, DataOptions())
    found = load(WIDE, DataOptions(shapes={"X": (5, 2)}))
    assert found.streams[0][0]["X"].shape == (5, 2)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"Y": (1,)}, "does not have; its inputs are 'X'"), ({"X": (5, 3)}, "does not fit 'X'")],
)
def test_wrong_shapes(shapes, words):
    with pytest.raises(InvalidArgument, match=words):
        load(WIDE, DataOptions(shapes=shapes))


def test_optional_inputs_are_left_out_unless_asked_for():
    facts = model(("A", "INT32", (1,)), ("B", "INT32", (-1,), True))
    assert set(load(facts, DataOptions()).streams[0][0]) == {"A"}
    assert set(load(facts, DataOptions(shapes={"B": (3,)})).streams[0][0]) == {"A", "B"}


@pytest.mark.parametrize(
    ("text", "shape"), [("data:3,224,224", ("data", (3, 224, 224))), ("a:b:1", ("a:b", (1,)))]
)
def test_shape_words(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text", ["data", "data:", ":3", "data:a", "data:-1", "data:0", "data:1,,2"]
)
def test_wrong_shape_words(text):
    with pytest.raises(InvalidArgument, match="--shape"):
        parse_shape(text)


# ---- JSON


def test_steps(tmp_path):
    found = from_json(tmp_path, {"data": [{"A": [1, 2], "B": [0.5]}, {"A": [3, 4], "B": 1}]})
    assert found.given
    assert [len(stream) for stream in found.streams] == [2]
    (first, _) = rows(PAIR, found.streams[0], 0, 1)
    assert np.frombuffer(first.raw, np.int32).tolist() == [1, 2]
    (both, _) = rows(PAIR, found.streams[0], 1, 3)  # goes round
    assert both.shape == (3, 2)
    assert np.frombuffer(both.raw, np.int32).tolist() == [3, 4, 1, 2, 3, 4]


def test_streams_shapes_and_base64(tmp_path):
    raw = np.ones((3, 2), np.float32)
    found = from_json(
        tmp_path,
        {
            "data": [
                [{"X": {"content": [[1, 2], [3, 4]], "shape": [2, 2]}}],
                [{"X": {"b64": base64.b64encode(raw.tobytes()).decode()}}, {"X": [1, 2]}],
            ]
        },
        WIDE,
    )
    assert [[step["X"].shape for step in stream] for stream in found.streams] == [
        [(2, 2)],
        [(3, 2), (1, 2)],
    ]
    with pytest.raises(InvalidArgument, match="cannot share a batch"):
        rows(WIDE, found.streams[1], 0, 2)


def test_several_files_and_validation(tmp_path):
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    step = {"A": [1, 2], "B": [1]}
    one.write_text(json.dumps({"data": [step]}))
    two.write_text(json.dumps({"data": [step], "validation_data": [{"C": [7, 8]}]}))
    found = load(PAIR, DataOptions((str(one), str(two))))
    assert len(found.streams) == 2
    assert np.frombuffer(found.expected[0][0]["C"].raw, np.int32).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "is not JSON"),
        ({"data": 3}, 'no list "data"'),
        ([], 'no list "data"'),
        ({"data": []}, "has no steps"),
        ({"data": [[]]}, "has no steps"),
        ({"data": [3]}, "must be an object"),
        ({"data": [{"A": [1, 2]}]}, "no data for input 'B'"),
        ({"data": [{"A": [1, 2], "B": [1], "Z": [1]}]}, "no tensor 'Z'; it has 'A', 'B'"),
        ({"data": [{"A": [1], "B": [1]}]}, "1 values for 'A'"),
        ({"data": [{"A": [1, "x"], "B": [1]}]}, "are not INT32"),
        ({"data": [{"A": [1, 2.5], "B": [1]}]}, "are not INT32"),
        ({"data": [{"A": [1, 2**40], "B": [1]}]}, "are not INT32"),
        ({"data": [{"A": {"b64": "?"}, "B": [1]}]}, "not valid Base64"),
        ({"data": [{"A": {"b64": "AAAA"}, "B": [1]}]}, "3 bytes do not fill"),
        ({"data": [{"A": {}, "B": [1]}]}, '"content" or "b64"'),
        ({"data": [{"A": {"content": [1], "shape": [1]}, "B": [1]}]}, "does not fit 'A'"),
        ({"data": [{"A": {"content": [1], "shape": 3}, "B": [1]}]}, "list of sizes"),
    ],
)
def test_wrong_documents(tmp_path, document, words):
    with pytest.raises(InvalidArgument, match=words):
        from_json(tmp_path, document)


def test_several_dynamic_dims_need_a_shape_in_json_too(tmp_path):
    facts = model(("X", "FP32", (-1, -1)))
    with pytest.raises(InvalidArgument, match="--shape X:1,1"):
        from_json(tmp_path, {"data": [{"X": [1, 2, 3, 4]}]}, facts)


# ---- folders


def test_a_folder(tmp_path):
    (tmp_path / "N").write_bytes(np.array([1, 2], np.int16).tobytes())
    (tmp_path / "T").write_text("one\ntwo\n")
    facts = model(("N", "INT16", (2,)), ("T", "BYTES", (2,)))
    (step,) = load(facts, DataOptions((str(tmp_path),))).streams[0]
    assert bytes_tensor.decode(step["T"].raw, 2, "T").tolist() == [b"one", b"two"]
    assert step["N"].raw == np.array([1, 2], np.int16).tobytes()


def test_wrong_folders(tmp_path):
    facts = model(("N", "INT16", (2,)))
    with pytest.raises(InvalidArgument, match="no file for input 'N'"):
        load(facts, DataOptions((str(tmp_path),)))
    (tmp_path / "N").write_bytes(b"123")
    with pytest.raises(InvalidArgument, match=r"has 3 bytes; input 'N' .* takes 4"):
        load(facts, DataOptions((str(tmp_path),)))


def test_nothing_there():
    with pytest.raises(InvalidArgument, match="no such file or folder"):
        load(PAIR, DataOptions(("nowhere.json",)))
    with pytest.raises(InvalidArgument, match="are single"):
        load(PAIR, DataOptions(("zero", "random")))

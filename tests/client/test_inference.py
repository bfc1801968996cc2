"""Inference through `Client` on Shoal and on Triton, over both protocols."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.client import Client, Input, InvalidInput, Label, ServerError

ONE = np.arange(16, dtype=np.int32).reshape(1, 16)
SAMPLES = {
    "BOOL": np.array([True, False, True]),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-5, 0, 300], np.int16),
    "INT32": np.array([-5, 0, 70_000], np.int32),
    "INT64": np.array([-(1 << 40), 0, 1 << 40]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 1 << 31], np.uint32),
    "UINT64": np.array([0, 1 << 63], np.uint64),
    "FP16": np.array([0.5, -2], np.float16),
    "FP32": np.array([0.5, -2, 1e30], np.float32),
    "FP64": np.array([0.5, -2, 1e300]),
    "STRING": np.array([b"", b"\x00\xff", "größe".encode()], dtype=object),
}


def test_arrays_in_and_out(client):
    result = client.infer("add_sub", {"INPUT0": ONE, "INPUT1": ONE})
    assert set(result) == {"OUTPUT0", "OUTPUT1"}
    np.testing.assert_array_equal(result["OUTPUT0"], ONE * 2)
    np.testing.assert_array_equal(result["OUTPUT1"], ONE * 0)
    assert result["OUTPUT0"].dtype == np.int32
    assert (result.model_name, result.model_version, result.id) == ("add_sub", "1", "")


def test_arrays_that_came_may_be_changed(client):
    array = client.infer("add_sub", {"INPUT0": ONE, "INPUT1": ONE})["OUTPUT0"]
    array += 1
    assert array[0, 0] == 1


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_datatype(client, kind):
    given = SAMPLES[kind]
    array = client.infer("echo", {kind: given})[f"OUT_{kind}"]
    assert array.dtype == given.dtype
    assert array.tolist() == given.tolist()


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind != "FP16"])
def test_every_datatype_without_binary_data(client, kind):
    given = SAMPLES[kind] if kind != "STRING" else np.array(["a", "größe"], dtype=object)
    array = client.infer("echo", {kind: given}, outputs=[f"OUT_{kind}"], binary=False)[
        f"OUT_{kind}"
    ]
    expected = [text.encode() for text in given] if kind == "STRING" else given.tolist()
    assert array.tolist() == expected


def test_several_outputs_of_odd_sizes(client):
    given = {"BOOL": SAMPLES["BOOL"], "FP64": SAMPLES["FP64"], "STRING": SAMPLES["STRING"]}
    result = client.infer("echo", given)
    assert result["OUT_FP64"].flags.aligned
    for kind, array in given.items():
        assert result[f"OUT_{kind}"].tolist() == array.tolist()


def test_lists_become_the_models_datatype(client):
    row = list(range(16))
    result = client.infer("add_sub", {"INPUT0": [row], "INPUT1": ONE})
    assert result["OUTPUT0"].dtype == np.int32
    text = client.infer("echo", {"STRING": ["one", b"two\x00"], "FP16": [1, 2.5]})
    assert text["OUT_STRING"].tolist() == [b"one", b"two\x00"]
    assert text["OUT_FP16"].tolist() == [1, 2.5]


def test_other_layouts_in_memory(client):
    wide = np.arange(64, dtype=np.int32).reshape(2, 32)
    big = wide[:, ::2].astype(">i4")
    result = client.infer("add_sub", {"INPUT0": wide[:, ::2], "INPUT1": big})
    np.testing.assert_array_equal(result["OUTPUT0"], wide[:, ::2] * 2)


def test_raw_bytes_are_sent_as_they_are(client):
    given = Input(ONE.tobytes(), "INT32", ONE.shape)
    result = client.infer("add_sub", {"INPUT0": given, "INPUT1": ONE})
    np.testing.assert_array_equal(result["OUTPUT0"], ONE * 2)


def test_large_tensors(client):
    given = np.arange(1_000_000, dtype=np.float32)
    array = client.infer("echo", {"FP32": given})["OUT_FP32"]
    np.testing.assert_array_equal(array, given)


def test_tensors_without_elements(client):
    array = client.infer("echo", {"FP32": np.empty(0, np.float32)})["OUT_FP32"]
    assert array.shape == (0,)


def test_only_the_requested_outputs(client):
    result = client.infer("add_sub", {"INPUT0": ONE, "INPUT1": ONE}, outputs=["OUTPUT1"])
    assert list(result) == ["OUTPUT1"]
    with pytest.raises(KeyError, match="there is no output 'OUTPUT0'; there are 'OUTPUT1'"):
        result["OUTPUT0"]


def test_ids_versions_and_parameters(client):
    result = client.infer(
        "echo",
        {"INT32": SAMPLES["INT32"]},
        id="nine",
        version=1,
        parameters={"a": 1, "b": "two", "c": True},
    )
    assert result.id == "nine"
    seen = json.loads(result["SEEN"][0])
    assert seen["a"] == 1
    assert seen["b"] == "two"
    assert seen["c"] is True


def test_classes_by_the_server(client):
    scores = np.array([[0.5, 3, 2, 0], [9, 1, 1, 1]], np.float32)
    result = client.infer("scores", {"INPUT": scores}, classes={"OUTPUT": 2})
    assert result.top_k("OUTPUT", 2) == [
        [Label(3.0, 1, "whale"), Label(2.0, 2, "eel")],
        [Label(9.0, 0, "kraken"), Label(1.0, 1, "whale")],
    ]


def test_scores_get_the_labels_of_the_model(client, monkeypatch):
    scores = np.array([[0.5, 3, 2, 0]], np.float32)
    result = client.infer("scores", {"INPUT": scores})
    expected = [[Label(3.0, 1, "whale"), Label(2.0, 2, "eel"), Label(0.5, 0, "kraken")]]
    assert result.top_k("OUTPUT", 3) == expected
    assert result.top_k("OUTPUT", 4)[0][3] == Label(0.0, 3, "")  # the file has three lines
    asked = []
    exchange = client._transport.exchange
    monkeypatch.setattr(
        client._transport, "exchange", lambda step: asked.append(step) or exchange(step)
    )
    assert client.infer("scores", {"INPUT": scores}).top_k("OUTPUT", 3) == expected
    assert len(asked) == 1  # labels are asked for once


def test_a_request_prepared_once(client):
    prepared = client.prepare("add_sub", {"INPUT0": ONE, "INPUT1": ONE})
    for _ in range(3):
        np.testing.assert_array_equal(client.send(prepared)["OUTPUT0"], ONE * 2)


@pytest.mark.parametrize(
    ("model", "inputs", "status", "text"),
    [
        ("nope", {"INPUT0": ONE}, "NOT_FOUND", "nope"),
        ("add_sub", {"INPUT0": ONE}, "INVALID_ARGUMENT", "expected 2 inputs but got 1"),
        ("add_sub", {"INPUT0": ONE, "what": ONE}, "INVALID_ARGUMENT", "what"),
        ("add_sub", {"INPUT0": ONE, "INPUT1": ONE[:, :8]}, "INVALID_ARGUMENT", "unexpected shape"),
        (
            "add_sub",
            {"INPUT0": ONE, "INPUT1": ONE * 1.0},
            "INVALID_ARGUMENT",
            "INPUT1.*FP64.*INT32",
        ),
    ],
)
def test_the_servers_error_is_raised(client, model, inputs, status, text):
    with pytest.raises(ServerError, match=text) as caught:
        client.infer(model, inputs)
    assert caught.value.status == status
    if model != "nope":  # the connection can still be used
        assert client.infer(model, {"INPUT0": ONE, "INPUT1": ONE})


def test_a_decoupled_model_needs_a_stream(client):
    with pytest.raises(ServerError, match="decoupled") as caught:
        client.infer("words", {"TEXT": ["a b"]})
    assert caught.value.status == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"INPUT0": [[1.5] * 16], "INPUT1": ONE}, "input 'INPUT0' takes INT32, found numbers"),
        ({"INPUT0": [[1], [2, 3]], "INPUT1": ONE}, "'INPUT0' is not a regular array"),
        ({"INPUT0": np.array(["2001-01-01"], "M8[D]")}, "an array of datetime64"),
        ({"INPUT0": np.array([object()])}, "an element of type object"),
        ({"INPUT0": Input([1], "INT33")}, "known ones are BOOL"),
        ({"INPUT0": Input(b"abc", "INT32", (1,))}, "takes 4 bytes, found 3"),
        ([ONE], "a mapping from name to value"),
    ],
)
def test_what_cannot_be_sent(client, inputs, text):
    with pytest.raises(InvalidInput, match=text):
        client.infer("add_sub", inputs)


def test_wrong_arguments(client):
    good = {"INPUT0": ONE, "INPUT1": ONE}
    for arguments, text in (
        ({"outputs": "OUTPUT0"}, "a list of names"),
        ({"classes": {"OUTPUT0": 0}}, "a number of classes"),
        ({"sequence_start": True}, "belong to a sequence_id"),
        ({"timeout": 0}, "seconds above 0"),
    ):
        with pytest.raises(InvalidInput, match=text):
            client.infer("add_sub", good, **arguments)


def test_a_model_that_changes_its_types_is_looked_at_again(client):
    with pytest.raises(InvalidInput):
        client.infer("add_sub", {"INPUT0": [["a"] * 16], "INPUT1": ONE})
    client._session.specs["add_sub", ""] = {"INPUT0": "FP32", "INPUT1": "INT32"}  # as it once was
    with pytest.raises(ServerError):
        client.infer("add_sub", {"INPUT0": [list(range(16))], "INPUT1": ONE})
    assert client.infer("add_sub", {"INPUT0": [list(range(16))], "INPUT1": ONE})


def test_default_headers_and_those_of_one_call(url):
    with Client(url, headers={"x-one": "1"}) as client:
        assert client.infer(
            "add_sub", {"INPUT0": ONE, "INPUT1": ONE}, headers={"x-two": "two words"}
        )
        with pytest.raises(InvalidInput, match="x-bad"):
            client.live(headers={"x-bad": "a\r\nb"})

"""Whatever can change an answer changes the key of its request, and nothing else does."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache import key as keys
from shoal.cache.key import combined_identity, content_identity, input_bytes, request_key
from shoal.config.model import ModelConfig, ModelInstanceGroup, ModelParameter
from shoal.core import dtypes
from shoal.core.tensor import Tensor
from tests.support.fakes import make_request

MODEL = b"one load of one model"


def tensor(name="A", values=(1, 2), datatype=dtypes.INT32, shape=None):
    array = np.array(values, datatype.numpy)
    if datatype is dtypes.BYTES:
        return Tensor.from_array(name, array, datatype)
    return Tensor(name, datatype, shape or array.shape, raw=array.tobytes())


def key_of(*tensors, model=MODEL, **options):
    request, _ = make_request(*(tensors or (tensor(),)), **options)
    return request_key(model, request)


PLAIN = key_of()


def test_the_same_request_has_the_same_key():
    assert key_of() == PLAIN
    assert len(PLAIN) == keys.KEY_BYTES == 32


@pytest.mark.parametrize(
    "changed",
    [
        key_of(model=b"another"),
        key_of(tensor("B")),
        key_of(tensor(datatype=dtypes.UINT32)),
        key_of(tensor(values=(1, 3))),
        key_of(tensor(values=(2, 1))),
        key_of(tensor(shape=(1, 2))),
        key_of(tensor(shape=(2, 1))),
        key_of(tensor(values=(1, 2, 0))),
        key_of(tensor(), tensor("B")),
        key_of(requested_outputs=("Y",)),
        key_of(requested_outputs=("Y", "Z")),
        key_of(requested_outputs=("Z", "Y")),
        key_of(parameters={"a": 1}),
        key_of(parameters={"a": "1"}),
        key_of(parameters={"a": 1.0}),
        key_of(parameters={"a": True}),
        key_of(parameters={"b": 1}),
        key_of(parameters={"a": 1, "b": 1}),
    ],
)
def test_what_changes_the_answer_changes_the_key(changed):
    assert changed != PLAIN


def test_all_of_those_differ_from_one_another():
    marks = test_what_changes_the_answer_changes_the_key.pytestmark
    (changes,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    assert len(set(changes)) == len(changes)


@pytest.mark.parametrize(
    "unimportant", [{"id": "x"}, {"priority": 2}, {"timeout_us": 5}, {"model_version": 1}]
)
def test_what_does_not_change_the_answer_does_not_change_the_key(unimportant):
    # The version that answers is part of what stands for the model, not of what was asked.
    assert key_of(**unimportant) == PLAIN


def test_the_order_of_inputs_and_parameters_does_not_matter():
    one, other = tensor("A"), tensor("B", (3, 4))
    assert key_of(one, other) == key_of(other, one)
    assert key_of(parameters={"a": 1, "b": 2}) == key_of(parameters={"b": 2, "a": 1})


def test_how_a_tensor_travelled_does_not_matter():
    array = np.array([[1.5, 2.5]], np.float32)
    binary = Tensor("A", dtypes.FP32, (1, 2), raw=memoryview(array.tobytes()))
    as_json = Tensor.from_array("A", array)
    assert key_of(binary) == key_of(as_json)
    strided = Tensor.from_array("A", np.array([[1.5, 9, 2.5, 9]], np.float32)[:, ::2])
    assert key_of(strided) == key_of(as_json)
    texts = np.array([b"a", b"bc"], object)
    encoded = Tensor("T", dtypes.BYTES, (2,), raw=bytes(Tensor.from_array("T", texts).raw))
    assert key_of(Tensor.from_array("T", texts)) == key_of(encoded)


def test_bytes_cannot_move_from_one_tensor_to_the_next():
    def pair(first, second):
        return key_of(
            Tensor("A", dtypes.UINT8, (len(first),), raw=first),
            Tensor("B", dtypes.UINT8, (len(second),), raw=second),
        )

    assert pair(b"12", b"3") != pair(b"1", b"23")


names = st.text(max_size=4)
values = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.booleans(), st.floats(-2, 2))
asked = st.tuples(
    st.lists(names, max_size=3, unique=True).map(tuple),  # outputs
    st.dictionaries(names, values, max_size=3),  # parameters
    st.dictionaries(names, st.binary(max_size=8), min_size=1, max_size=3),  # inputs
)


def of(wanted):
    outputs, parameters, inputs = wanted
    tensors = [Tensor(n, dtypes.UINT8, (len(raw),), raw=raw) for n, raw in inputs.items()]
    return key_of(*tensors, requested_outputs=outputs, parameters=parameters)


@given(asked, asked)
def test_two_requests_share_a_key_only_if_they_are_the_same(one, other):
    same = (
        one[0] == other[0]
        and sorted(map(repr, one[1].items())) == sorted(map(repr, other[1].items()))
        and one[2] == other[2]
    )
    assert (of(one) == of(other)) is same


def test_lone_surrogates_are_names_too():
    assert key_of(parameters={"\ud800": 1}) != key_of(parameters={"\ud801": 1})


def test_how_much_there_is_to_hash():
    request, _ = make_request(
        tensor("A", (1, 2, 3)),
        Tensor.from_array("B", np.zeros((2, 2), np.float64)),
        Tensor.from_array("T", np.array([b"text"], object)),
    )
    assert input_bytes(request) == 12 + 32


# ---- what stands for a model


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "m"
    (folder / "1" / "deep").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"weights")
    (folder / "1" / "deep" / "part").write_bytes(b"more")
    (folder / "config.pbtxt").write_text("")
    (folder / "labels.txt").write_text("a\nb\n")
    return folder


CONFIG = ModelConfig(name="m")


def identity(folder, config=CONFIG, version=1):
    return content_identity(version, config, folder, folder / "1")


def test_equal_files_mean_an_equal_model_wherever_they_are(model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    (copy / "config.pbtxt").write_text("# what was understood counts, not what is written")
    assert identity(copy) == identity(model)


@pytest.mark.parametrize("file", ["1/model.onnx", "1/deep/part", "labels.txt", "1/new", "new"])
def test_any_file_of_a_model_counts(model, file):
    before = identity(model)
    (model / file).write_bytes(b"changed")
    assert identity(model) != before


def test_config_and_version_count(model):
    plain = identity(model)
    other = ModelConfig(name="m", parameters={"a": ModelParameter("b")})
    assert identity(model, other) != plain
    assert identity(model, version=2) != plain


def test_who_computes_does_not_count(model):
    groups = (ModelInstanceGroup(name="g", count=4),)
    assert identity(model, ModelConfig(name="m", instance_group=groups)) == identity(model)


def test_what_cannot_be_read_is_shared_with_nobody(model):
    (model / "1" / "model.onnx").unlink()
    (model / "1" / "model.onnx").symlink_to("nowhere")
    assert identity(model) != identity(model)
    function = model / "labels.txt"  # no folder: a model that is a part of some program
    assert content_identity(1, CONFIG, model, function) != content_identity(
        1, CONFIG, model, function
    )


def test_an_ensemble_is_its_config_and_its_models(model):
    own = content_identity(1, CONFIG, model, None)
    assert own == content_identity(1, CONFIG, model / "elsewhere", None)
    assert combined_identity(own, [b"a", b"b"]) == combined_identity(own, [b"a", b"b"])
    others = {
        combined_identity(own, parts)
        for parts in ([], [b"a"], [b"a", b"b"], [b"b", b"a"], [b"ab"], [b"", b"ab"], [b"ab", b""])
    }
    assert len(others) == 7

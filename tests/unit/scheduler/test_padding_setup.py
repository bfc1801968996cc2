"""Which dimensions are which length: from the config, from the model file, or because it is plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.pbtxt import parse_pbtxt
from shoal.core.padding import Buckets
from shoal.errors import ConfigError
from shoal.models.spec import build_signature
from shoal.scheduler.padding_setup import padded
from tests.support.repositories import parameter

IDS = 'input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }\n'
MASK = 'input { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }\n'
IMAGE = 'input { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }\n'
STATES = 'output { name: "states" data_type: TYPE_FP32 dims: [ -1, 4 ] }\n'
SCORES = 'output { name: "scores" data_type: TYPE_FP32 dims: [ -1, -1 ] }\n'
POOLED = 'output { name: "pooled" data_type: TYPE_FP32 dims: [ 4 ] }\n'
NAMES = {
    "ids": ("batch", "seq"),
    "mask": ("batch", "seq"),
    "states": ("batch", "seq", None),
    "scores": ("batch", "seq", "seq"),
    "pooled": ("batch", None),
}


def setup(tensors, names=None, **parameters):
    text = 'name: "m" backend: "fake" max_batch_size: 8 dynamic_batching { }\n' + tensors
    text += "".join(parameter(*entry) for entry in {"padding": "true", **parameters}.items())
    config = parse_pbtxt(text, "config.pbtxt")
    return padded(build_signature(config, Path()), config, names or {})


def refused(*arguments, **parameters):
    with pytest.raises(ConfigError) as caught:
        setup(*arguments, **parameters)
    return str(caught.value)


def test_without_padding_nothing_changes():
    signature = setup(IDS + STATES, padding="false")
    assert signature.padding is None
    assert signature.shape_keyed == ("ids",)


def test_names_of_the_model_file():
    signature = setup(IDS + MASK + STATES + SCORES + POOLED, NAMES)
    padding = signature.padding
    assert padding.inputs == {"ids": ((1, "seq"),), "mask": ((1, "seq"),)}
    assert padding.fills == {"ids": 0, "mask": 0}
    assert padding.outputs == {
        "states": ((1, "seq"),),
        "scores": ((1, "seq"), (2, "seq")),
        "pooled": (),
    }
    assert padding.buckets is None
    assert signature.shape_keyed == ()


def test_without_any_names_there_may_be_just_one_length():
    padding = setup(IDS + MASK + STATES + POOLED).padding
    assert padding.inputs == {"ids": ((1, "length"),), "mask": ((1, "length"),)}
    assert padding.outputs == {"states": ((1, "length"),), "pooled": ()}


def test_one_that_is_named_takes_an_output_without_a_name_along():
    padding = setup(
        IDS + STATES, {"ids": ("batch", "seq"), "states": ("batch", None, None)}
    ).padding
    assert padding.outputs == {"states": ((1, "seq"),)}


def test_the_config_has_the_last_word():
    padding = setup(IDS + MASK + STATES, NAMES, padding_axes="mask[m], states[m]").padding
    assert padding.inputs == {"ids": ((1, "seq"),), "mask": ((1, "m"),)}
    assert padding.outputs == {"states": ((1, "m"),)}
    assert setup(IDS + STATES, NAMES, padding_axes="states[_]").padding.outputs == {"states": ()}


def test_dimensions_without_names_are_lengths_of_their_own():
    padding = setup(IMAGE + POOLED).padding
    assert padding.inputs == {"image": ((2, "image.2"), (3, "image.3"))}


def test_a_reshape_gives_the_dimensions_the_model_sees():
    ids = IDS.replace("dims: [ -1 ]", "dims: [ -1 ] reshape { shape: [ 1, -1 ] }")
    states = STATES.replace("dims: [ -1, 4 ]", "dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }")
    padding = setup(ids + states, {"ids": ("b", None, "n"), "states": ("b", None, "n")}).padding
    assert padding.inputs == {"ids": ((2, "n"),)}
    assert padding.outputs == {"states": ((2, "n"),)}


def test_only_the_inputs_that_are_named_are_padded():
    signature = setup(IDS + MASK + POOLED, padding="ids=3", padding_axes="ids[n], mask[m]")
    assert signature.padding.fills == {"ids": 3}
    assert signature.shape_keyed == ("mask",)


def test_ragged_inputs_are_not_padded():
    ragged = MASK.replace("dims", "allow_ragged_batch: true dims")
    assert set(setup(IDS + ragged + POOLED).padding.inputs) == {"ids"}


def test_scattered_outputs_are_not_cut():
    more = 'batch_output { target_name: "states" source_input: "ids" }\n'
    assert setup(IDS + STATES + more, {"states": ("b", "other", None)}).padding.outputs == {}


def test_a_mask_may_be_left_out_by_clients():
    signature = setup(IDS + MASK + POOLED, padding_mask="mask")
    assert signature.padding.masks == {"mask"}
    assert signature.inputs["mask"].optional
    assert not signature.inputs["ids"].optional
    assert signature.required_inputs == 1


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        ({}, Buckets()),
        ({"batch_by_shape_bucket": "32"}, Buckets(width=32)),
        ({"batch_by_shape_bucket": "8,64"}, Buckets(edges=(8, 64))),
    ],
)
def test_buckets(bucket, expected):
    assert setup(IDS + POOLED, batch_by_shape="true", **bucket).padding.buckets == expected


def test_an_output_that_might_follow_either_length_is_refused():
    assert refused(IMAGE + STATES) == (
        "config.pbtxt: parameters['padding_axes']: it is not clear which length dimension 1 of "
        "output 'states' of m follows: it has no name, and the padded lengths are 'image.2', "
        "'image.3'. Write states[image.2] if it is as long as that, with a name for each "
        "variable dimension, or states[_] if it follows none"
    )


def test_an_output_with_another_name_is_refused():
    sentence = refused(IDS + STATES, {**NAMES, "states": ("batch", "seq_out", None)})
    assert "dimension 1 of output 'states' of m follows: it is called 'seq_out', and" in sentence


def test_an_output_with_two_dimensions_without_names_is_refused():
    assert "dimension 1 of output 'scores' of m follows: it has no name" in refused(IDS + SCORES)


def test_a_name_that_no_input_has_is_refused():
    sentence = refused(IDS + STATES, padding_axes="ids[n], states[k]")
    assert (
        "output 'states' of m cannot follow 'k': no padded input has a length of that" in sentence
    )
    assert sentence.endswith("Write one of n, or _ if it follows none")


def test_an_input_that_shares_a_padded_length_must_be_padded():
    assert refused(IDS + MASK + STATES, NAMES, padding="ids=0").endswith(
        "input 'mask' of m has the length 'seq', which is padded in others, and is not padded "
        "itself. Add mask=0"
    )


@pytest.mark.parametrize(
    "tensors", [MASK, IDS.replace("dims", "optional: true dims") + MASK], ids=["alone", "optional"]
)
def test_a_mask_must_have_its_length_from_somebody(tensors):
    sentence = refused(tensors + POOLED, padding_mask="mask")
    assert "the length of 'mask'" in sentence

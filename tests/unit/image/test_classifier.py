"""What a model says of itself, and what the image client makes of it."""

import pytest

from shoal.core import dtypes
from shoal.image.classifier import NoClassifier, read_classifier


def describe(
    shape=(-1, 3, 8, 9),
    format="FORMAT_NONE",
    datatype="FP32",
    output=(-1, 10),
    output_datatype="FP32",
    max_batch_size=4,
):
    metadata = {
        "name": "m",
        "inputs": [{"name": "data", "datatype": datatype, "shape": list(shape)}],
        "outputs": [{"name": "prob", "datatype": output_datatype, "shape": list(output)}],
    }
    config = {"max_batch_size": max_batch_size, "input": [{"name": "data", "format": format}]}
    return metadata, config


@pytest.mark.parametrize(
    ("shape", "format", "channels_first", "channels", "size"),
    [
        ((-1, 3, 8, 9), "FORMAT_NCHW", True, 3, (8, 9)),
        ((-1, 8, 9, 3), "FORMAT_NHWC", False, 3, (8, 9)),
        ((-1, 8, 9, 1), "FORMAT_NHWC", False, 1, (8, 9)),
        ((-1, 3, 8, 9), "FORMAT_NONE", True, 3, (8, 9)),  # guessed from here on
        ((-1, 1, 8, 9), "FORMAT_NONE", True, 1, (8, 9)),
        ((-1, 8, 9, 3), "FORMAT_NONE", False, 3, (8, 9)),
        ((-1, 3, 8, 3), "FORMAT_NONE", True, 3, (8, 3)),
        ((-1, 8, 9, 3), "", False, 3, (8, 9)),
        ((-1, -1, 8, 9), "FORMAT_NCHW", True, 3, (8, 9)),
    ],
)
def test_layouts(shape, format, channels_first, channels, size):
    found = read_classifier(*describe(shape, format))
    assert (found.channels_first, found.channels) == (channels_first, channels)
    assert (found.height, found.width) == size
    assert found.batch_dim
    assert found.max_batch_size == 4


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "batch_dim"),
    [
        ((3, 8, 9), 0, False),
        ((1, 3, 8, 9), 0, True),  # the model's own batch dimension, which no config declares
        ((-1, 3, 8, 9), 0, True),
    ],
)
def test_models_without_batching(shape, max_batch_size, batch_dim):
    metadata, config = describe(shape, output=(10,), max_batch_size=max_batch_size)
    found = read_classifier(metadata, config)
    assert (found.max_batch_size, found.batch_dim) == (0, batch_dim)


def test_a_server_without_configs():
    metadata, _ = describe((-1, 8, 9, 3))
    found = read_classifier(metadata, None)
    assert found.batch_dim
    assert found.max_batch_size > 1
    assert not found.channels_first


@pytest.mark.parametrize("output", [(-1, 10), (-1, 10, 1, 1), (-1, 1, 10)])
def test_the_classes(output):
    assert read_classifier(*describe(output=output)).classes == 10


def test_one_class_and_any_number_of_them():
    assert read_classifier(*describe(output=(-1, 1))).classes == 1
    assert read_classifier(*describe(output=(-1, -1))).classes == -1


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "UINT8", "INT32"])
def test_datatypes(datatype):
    assert read_classifier(*describe(datatype=datatype)).datatype is dtypes.from_name(datatype)


def test_any_size():
    described = describe((-1, 3, -1, -1))
    assert read_classifier(*described, size=(5, 6)).height == 5
    with pytest.raises(NoClassifier, match=r"any size .* choose one with --size HEIGHTxWIDTH"):
        read_classifier(*described)
    with pytest.raises(NoClassifier, match="--size 5x6 does not fit model 'm'"):
        read_classifier(*describe((-1, 3, 8, -1)), size=(5, 6))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": (-1, 8, 9)}, "expected three dimensions"),
        ({"shape": (8, 9), "max_batch_size": 0}, "expected three dimensions"),
        ({"shape": (2, 3, 8, 9), "max_batch_size": 0}, "expected three dimensions"),
        ({"shape": (-1, 4, 8, 9), "format": "FORMAT_NCHW"}, "images of 4 channels"),
        ({"shape": (-1, 5, 8, 9)}, "cannot determine which dimension"),
        ({"datatype": "BYTES"}, "'data' is of datatype BYTES; expected numbers"),
        ({"output_datatype": "BYTES"}, "'prob' is of datatype BYTES; expected numbers"),
        ({"output": (-1, 10, 10)}, "expecting model output to be a vector"),
    ],
)
def test_what_is_no_classifier(change, words):
    with pytest.raises(NoClassifier, match=words):
        read_classifier(*describe(**change))


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_one_input_and_one_output(side):
    metadata, config = describe()
    metadata[side] *= 2
    with pytest.raises(NoClassifier, match=f"expecting 1 {side[:-1]}, got 2"):
        read_classifier(metadata, config)
    metadata[side] = []
    with pytest.raises(NoClassifier, match=r"got 0 \(none\)"):
        read_classifier(metadata, config)

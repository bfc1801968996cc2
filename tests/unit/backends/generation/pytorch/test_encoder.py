"""Photos encoded at once, or behind a step of the decoder."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.generation.files import DecoderPorts
from shoal.errors import BackendFailure
from shoal.generation.decoder import Shape

torch = pytest.importorskip("torch")
decoders = pytest.importorskip("shoal.backends.generation.pytorch.decoder")
encoders = pytest.importorskip("shoal.backends.generation.pytorch.encoder")


class Doubling:
    """A graph that doubles its input."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self):
        self.sizes = []
        self.fails = False

    def __call__(self, feeds):
        self.sizes.append(len(feeds["pixel_values"]))
        if self.fails:
            raise RuntimeError("too bright")
        return {"seen": feeds["pixel_values"] * 2}


@pytest.fixture(params=["fixed", "variable"])
def made(request):
    """An encoder, its decoder and its graph; with sizes that are known or not."""
    graph = Doubling()
    dims = 2 if request.param == "fixed" else "width"
    ports = DecoderPorts((), ("seen",), Shape(0, 1, 1, 8, 9, ((dims,),)))
    decoder = decoders.DeviceDecoder(graph, ports, [], 4)
    sizes = (2,) if request.param == "fixed" else (-1,)
    return encoders.TorchEncoder(graph, "pixel_values", sizes, decoder, 4), decoder, graph


def photos(encoder, *values):
    return [encoder.staged(np.array([value, value], np.float32)) for value in values]


def seen(rows):
    return [context.encoded[0][context.row].tolist() for context in rows]


def test_each_photo_has_its_row(made):
    encoder, _, _ = made
    assert seen(encoder.run(photos(encoder, 1, 2, 3))) == [[2, 2], [4, 4], [6, 6]]
    assert seen(encoder.run(photos(encoder, 5))) == [[10, 10]]


def test_what_was_started_is_encoded_behind_a_step_and_once(made):
    encoder, decoder, graph = made
    given = photos(encoder, 1, 2)
    graph.sizes.clear()
    encoder.start(given)
    assert graph.sizes == []
    decoder.wait()  # as a step does
    assert graph.sizes == [2]
    assert seen(encoder.run(given)) == [[2, 2], [4, 4]]
    decoder.wait()
    assert graph.sizes == [2]


def test_without_a_step_it_is_encoded_at_last(made):
    encoder, decoder, graph = made
    given = photos(encoder, 3)
    encoder.start(given)
    graph.sizes.clear()
    assert seen(encoder.run(given)) == [[6, 6]]
    decoder.wait()
    assert graph.sizes == [1]


def test_others_than_those_that_were_started_are_encoded_themselves(made):
    encoder, decoder, _ = made
    given = photos(encoder, 1, 2)
    encoder.start(given)
    decoder.wait()
    assert seen(encoder.run(given[1:])) == [[4, 4]]


def test_a_failure_behind_a_step_is_reported_by_run(made):
    encoder, decoder, graph = made
    given = photos(encoder, 1)
    graph.fails = True
    encoder.start(given)
    decoder.wait()
    with pytest.raises(BackendFailure, match="the encoder failed: too bright"):
        encoder.run(given)

"""The order in which the decoder of a GPU is called and waited for; its library is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shoal.backends.pytorch.photos.nvjpeg import JpegDecoder, JpegError  # noqa: E402
from shoal.backends.pytorch.photos.planes import PLANES  # noqa: E402
from tests.support import fake_cuda  # noqa: E402


class Library:
    """Notes the calls; `status` is what decoding returns."""

    device = torch.device("cuda", 0)
    handle = 5

    def __init__(self, calls):
        self.status = 0
        self._calls = calls
        self.calls = SimpleNamespace(
            nvjpegDecodeBatched=self._decode, nvjpegJpegStateDestroy=lambda _: None
        )

    def _decode(self, *_):
        self._calls.append("decode")
        return self.status

    def check(self, name, *arguments):
        if name == "nvjpegDecodeBatchedInitialize":
            self._calls.append(f"begin {arguments[2]}")


class Stream(fake_cuda.Stream):
    """Notes when it is waited for."""

    def __init__(self, calls):
        super().__init__()
        self._calls = calls

    def synchronize(self):
        self._calls.append("wait")


@pytest.fixture
def world(monkeypatch):
    """A decoder, and what was called."""
    fake_cuda.replace(monkeypatch)
    calls = []
    library = Library(calls)
    decoder, stream = JpegDecoder(library), Stream(calls)

    def decoding(photos):
        arrays = np.zeros(photos, np.uint64), np.zeros(photos, np.uint64), np.zeros(photos, PLANES)
        return decoder.decoding(*arrays, 0, stream)

    return SimpleNamespace(calls=calls, library=library, decoding=decoding)


def test_the_block_runs_while_the_gpu_decodes(world):
    with world.decoding(3):
        world.calls.append("block")
    assert world.calls == ["begin 3", "decode", "block", "wait"]


def test_states_are_used_again(world):
    for _ in range(5):
        with world.decoding(3), world.decoding(2):
            pass
    assert world.calls.count("decode") == world.calls.count("wait") == 10
    assert {call for call in world.calls if call.startswith("begin")} == {"begin 2", "begin 3"}


def test_a_batch_that_cannot_be_decoded(world):
    world.library.status = 3
    with pytest.raises(JpegError, match="nvjpegDecodeBatched: bad JPEG"), world.decoding(3):
        world.calls.append("block")
    assert world.calls == ["begin 3", "decode", "wait"]
    world.library.status = 0
    with world.decoding(3), world.decoding(3):  # both states: the one that failed begins anew
        pass
    assert world.calls.count("begin 3") == 3


def test_a_block_that_fails_releases_the_decoder(world):
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), world.decoding(3):
            raise ZeroDivisionError
    assert world.calls[-2:] == ["decode", "wait"]

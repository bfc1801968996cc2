"""Whisper on a GPU: the texts of transformers.

    python -m pytest tests/gpu -q

Needs PyTorch with CUDA, transformers, onnx, tokenizers and soundfile; left out where there is no
GPU.
"""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for module in ("transformers", "onnx", "tokenizers", "soundfile"):
    pytest.importorskip(module)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    import transformers

    from shoal.export.exporting import export
    from shoal.testing.server import running_server
    from tests.support.checkpoints import whisper_checkpoint
    from tests.support.speech import RATE, expected_text, file_of, tones

GPU = "instance_group [ { kind: KIND_GPU } ]\n"
HALF = 'parameters { key: "HALF_PRECISION" value: { string_value: "fp16" } }\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server with a small Whisper in both precisions, and the same model of transformers."""
    folder, models = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("models")
    model = whisper_checkpoint(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    export(folder, models / "whisper")
    shutil.copytree(models / "whisper", models / "half")
    for name, more in (("whisper", GPU), ("half", GPU + HALF)):
        with (models / name / "config.pbtxt").open("a") as file:
            file.write(more)
    with running_server(models) as server:
        yield SimpleNamespace(server=server, model=model, tokenizer=tokenizer)


def transcribed(world, samples, query, model="whisper"):
    path = f"/v2/models/{model}/transcribe{query}"
    answer = world.server.post(path, file_of(samples), {"Content-Type": "audio/wav"})
    assert answer.status == 200, answer
    return answer.json


@pytest.mark.parametrize("clients", [1, 12])
def test_texts_are_those_of_transformers(world, clients):
    sounds = [tones(0.7, 300, 900), tones(0.9, 2000, 100, 500), tones(0.5, 3000), tones(0.3, 150)]
    cases = list(itertools.product(sounds, ("en", "de"), ("transcribe", "translate")))

    def ask(case):
        samples, language, purpose = case
        return transcribed(world, samples, f"?language={language}&task={purpose}")["text"]

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, cases))
    assert found == [expected_text(world.model, world.tokenizer, *case) for case in cases]
    assert len(set(found)) > 3


def test_the_language_is_detected_and_long_speech_is_cut(world):
    silence = np.zeros(int(0.2 * RATE), np.float32)
    whole = np.concatenate([tones(0.75, 300, 900), silence, tones(0.7, 700), silence])
    found = transcribed(world, whole, "")
    assert len(found["segments"]) == 2
    for one in found["segments"]:
        samples = whole[round(one["start"] * RATE) : round(one["end"] * RATE)]
        wanted = expected_text(world.model, world.tokenizer, samples, found["language"])
        assert one["text"] == wanted


def test_half_precision(world):
    """Later tokens may differ, the first ones of a clear sound do not."""
    samples = tones(0.7, 300, 900)
    found = transcribed(world, samples, "?language=en", "half")["text"]
    assert found
    assert found[:3] == expected_text(world.model, world.tokenizer, samples)[:3]

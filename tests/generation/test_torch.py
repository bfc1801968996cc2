"""The generation of GPUs, on PyTorch's CPU: everything but CUDA graphs. The same texts."""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.testing.server import running_server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def torch_server(repository, tmp_path_factory):
    """A server whose models believe that the CPU is a GPU."""
    import torch

    from shoal.backends.generation import backend
    from shoal.backends.generation.pytorch import runtime

    folder = tmp_path_factory.mktemp("torch")
    for name in ("captions", "gpt2"):
        shutil.copytree(repository / name, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_is_gpu", lambda _: True)
        patch.setattr(runtime, "gpu_of", lambda *_: torch.device("cpu"))
        with running_server(folder) as running:
            yield running


def test_captions_are_those_of_transformers(torch_server, generate_all, cases):
    found, rows_per_step = generate_all(torch_server, 12)
    for (case, tokens), answer in zip(cases, found, strict=True):
        assert np.atleast_1d(answer["token_ids"]).tolist() == tokens, case
        assert answer["finish_reason"] == ("stop" if tokens[-1] == 3 else "length")
    assert rows_per_step > 3, "requests should share steps"


def test_options_of_beams_and_lengths(torch_server, photos, in_json, expected):
    for index, early in itertools.product(range(3), (False, True)):
        options = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": early}
        body = {"image": in_json(photos[index]), "max_tokens": 18, **options}
        answer = torch_server.post("/v2/models/captions/generate", body).json
        theirs = expected(index, max_new_tokens=18, **options)
        assert np.atleast_1d(answer["token_ids"]).tolist() == theirs
    for index in range(3):
        body = {"image": in_json(photos[index]), "max_tokens": 18, "min_tokens": 18}
        answer = torch_server.post("/v2/models/captions/generate", body).json
        theirs = expected(index, max_new_tokens=18, min_new_tokens=18)
        assert answer["token_ids"] == theirs


def test_texts_are_those_of_transformers(torch_server, checkpoints):
    from tests.support.text_generators import check_texts

    check_texts(torch_server, checkpoints.gpt2, lengths=(7, 50))


def test_the_same_seed_gives_the_same_text(torch_server):
    body = {"text_input": "a", "max_tokens": 20, "min_tokens": 20, "temperature": 1.5, "top_p": 0.9}
    with ThreadPoolExecutor(4) as pool:
        texts = list(
            pool.map(
                lambda seed: torch_server.post(
                    "/v2/models/gpt2/generate", {**body, "seed": seed}
                ).json["text_output"],
                (1, 1, 2, 3),
            )
        )
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_routes_and_streams(torch_server, photos, form):
    body, headers = form(photos[0], max_tokens=6, min_tokens=6, stream="true")
    answer = torch_server.post("/v2/models/captions/caption", body, headers)
    assert answer.status == 200
    assert answer.body.count(b"data: ") == 7
    answer = torch_server.post(
        "/v1/completions", {"model": "gpt2", "prompt": "a", "max_tokens": 4, "temperature": 0}
    )
    assert answer.status == 200, answer
    assert answer.json["usage"]["completion_tokens"] <= 4


def test_whisper_gives_the_same_numbers(tmp_path):
    import onnxruntime
    import torch

    from shoal.backends.generation.pytorch.graph import TorchGraph
    from shoal.export.exporting import export
    from tests.support.checkpoints import whisper_checkpoint

    (tmp_path / "checkpoint").mkdir()
    whisper_checkpoint(tmp_path / "checkpoint")
    folder = export(tmp_path / "checkpoint", tmp_path / "whisper") / "1"
    random = np.random.default_rng(0)
    feeds = {"input_features": random.normal(size=(3, 80, 100)).astype(np.float32)}
    for name in ("encoder", "decoder"):
        path = folder / f"{name}.onnx"
        theirs = onnxruntime.InferenceSession(str(path)).run(None, feeds)
        graph = TorchGraph(path, torch.device("cpu"), torch.float32)
        with torch.inference_mode():
            ours = graph({key: torch.from_numpy(array) for key, array in feeds.items()})
        for one, other in zip(ours.values(), theirs, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-3, atol=1e-3)
        past = random.normal(size=(4, 3, 4, 6, 8)).astype(np.float32)
        feeds = dict(zip(graph.outputs, theirs, strict=True))
        feeds |= {f"past_{number}": array for number, array in enumerate(past)}
        feeds |= {"input_ids": random.integers(0, 99, (3, 2)), "past_lengths": np.array([0, 3, 6])}

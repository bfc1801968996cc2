"""Generation on a GPU: the texts of transformers, with states on the GPU and CUDA graphs.

    python -m pytest tests/gpu -q

Needs PyTorch with CUDA, transformers, onnx, tokenizers and Pillow; left out where there is no GPU.
"""

from __future__ import annotations

import base64
import io
import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for module in ("transformers", "onnx", "tokenizers", "PIL"):
    pytest.importorskip(module)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from PIL import Image

    from shoal.export.exporting import export
    from shoal.testing.server import running_server, wait_until
    from tests.support.text_generators import blip_checkpoint, check_texts, gpt2_checkpoint

GPU = "instance_group [ { kind: KIND_GPU } ]\n"
HALF = 'parameters { key: "HALF_PRECISION" value: { string_value: "%s" } }\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server with small models in each precision, and the same models of transformers."""
    folder, models = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("models")
    blip, gpt2 = blip_checkpoint(folder / "blip"), gpt2_checkpoint(folder / "gpt2")
    for name in ("blip", "gpt2"):
        export(folder / name, models / name)
        for half in ("fp16", "bf16"):
            shutil.copytree(models / name, models / f"{name}_{half}")
            with (models / f"{name}_{half}" / "config.pbtxt").open("a") as file:
                file.write(GPU + HALF % half)
        with (models / name / "config.pbtxt").open("a") as file:
            file.write(GPU)
    random = np.random.default_rng(11)
    pixels = [random.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(6)]
    with running_server(models, model_control_mode="explicit", load_model=("*",)) as server:
        yield SimpleNamespace(server=server, blip=blip, gpt2=gpt2, pixels=pixels, models=models)


def photo(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def generate(world, model, body):
    answer = world.server.post(f"/v2/models/{model}/generate", body)
    assert answer.status == 200, answer
    return np.atleast_1d(answer.json["token_ids"]).tolist()


def theirs(world, index, length, beams):
    given = ((world.pixels[index].astype(np.float32) / 255 - 0.5) / 0.25).transpose(2, 0, 1)[None]
    found = world.blip.generate(
        torch.from_numpy(given), max_new_tokens=length, num_beams=beams, do_sample=False
    )
    return found[0].tolist()[1:]


@pytest.mark.parametrize("clients", [1, 12])
def test_captions_are_those_of_transformers(world, clients):
    cases = list(itertools.product(range(6), (5, 40), (1, 3)))

    def ask(case):
        index, length, beams = case
        body = {"image": photo(world.pixels[index]), "max_tokens": length, "num_beams": beams}
        return generate(world, "blip", body)

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, cases))
    for case, tokens in zip(cases, found, strict=True):
        assert tokens == theirs(world, *case), case


def test_texts_are_those_of_transformers(world):
    check_texts(world.server, world.gpt2, lengths=(7, 50))


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_half_precision(world, half):
    for index in range(3):
        body = {"image": photo(world.pixels[index]), "max_tokens": 12, "min_tokens": 12}
        assert len(generate(world, f"blip_{half}", body)) == 12
    body = {"text_input": "hello", "max_tokens": 12, "min_tokens": 12}
    assert len(generate(world, f"gpt2_{half}", body)) == 12


def test_the_same_seed_gives_the_same_text(world):
    body = {"text_input": "a", "max_tokens": 20, "min_tokens": 20, "temperature": 1.5, "top_k": 50}
    with ThreadPoolExecutor(4) as pool:
        texts = list(
            pool.map(lambda seed: generate(world, "gpt2", {**body, "seed": seed}), (1, 1, 2, 3))
        )
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts))) == 3


def test_memory_is_returned_when_a_model_is_unloaded(world):
    held = torch.cuda.memory_allocated()
    assert world.server.unload("gpt2_bf16").status == 200
    wait_until(lambda: torch.cuda.memory_allocated() < held, "the memory is free")

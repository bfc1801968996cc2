"""Small models that write texts, exported once; transformers' own answers to compare with."""

from __future__ import annotations

import base64
import io
import itertools
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from shoal.testing.server import running_server

MEAN, STD = 0.5, 0.25


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A BLIP and a GPT-2 on disk and in memory."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, models this small wait for each other's threads
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that are imported here
        pytest.importorskip("transformers")
        from tests.support.text_generators import blip_checkpoint, gpt2_checkpoint

        folder = tmp_path_factory.mktemp("checkpoints")
        blip = blip_checkpoint(folder / "blip")
        gpt2 = gpt2_checkpoint(folder / "gpt2")
    yield SimpleNamespace(folder=folder, blip=blip, gpt2=gpt2)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def repository(checkpoints, tmp_path_factory):
    """Both of them as models, BLIP in one file too, and as the ancestor's config has it."""
    from shoal.export.exporting import export
    from shoal.export.writing import ExportOptions

    folder = tmp_path_factory.mktemp("models")
    blip = checkpoints.folder / "blip"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(blip, folder / "captions")
        export(blip, folder / "single", options=ExportOptions(single_file=True))
        export(checkpoints.folder / "gpt2", folder / "gpt2")
    return folder


@pytest.fixture(scope="session")
def server(repository):
    """A server with all of them."""
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="session")
def photos():
    """PNG files of the size that the model takes, so that nothing is resized."""
    random = np.random.default_rng(11)
    return [photo(random.integers(0, 256, (32, 32, 3), np.uint8)) for _ in range(8)]


def photo(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def pixel_values(photos):
    """What the model is given for each photo."""
    found = [np.asarray(Image.open(io.BytesIO(data)), np.float32) / 255 for data in photos]
    return np.stack([((each - MEAN) / STD).transpose(2, 0, 1) for each in found])


@pytest.fixture(scope="session")
def tokenizer(repository):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(repository / "captions" / "tokenizer.json"))


@pytest.fixture(scope="session")
def expected(checkpoints, pixel_values, tokenizer):
    """The tokens that transformers generates for photo number `index`."""
    import torch

    def generate(index, prompt="", **options):
        words = tokenizer.encode(prompt, add_special_tokens=False).ids
        # transformers puts its own first token in and takes the last one away.
        given = torch.tensor([[4, *words, 3]])
        found = checkpoints.blip.generate(
            torch.from_numpy(pixel_values[index : index + 1]),
            input_ids=given,
            do_sample=False,
            **options,
        )
        return found[0].tolist()[1 + len(words) :]

    return generate


@pytest.fixture(scope="session")
def cases(expected):
    """What is asked for, and what transformers makes of it."""
    asked = [
        {"index": index, "prompt": prompt, "num_beams": beams, "max_tokens": length}
        for index, prompt, beams, length in itertools.product(
            range(6), ("", "a photo of"), (1, 3), (5, 24)
        )
    ]
    answers = [
        expected(
            case["index"],
            case["prompt"],
            num_beams=case["num_beams"],
            max_new_tokens=case["max_tokens"],
        )
        for case in asked
    ]
    lengths = {len(tokens) for tokens in answers}
    assert len(lengths) > 5, "the model should write texts of many lengths"
    assert any(tokens[-1] != 3 for tokens in answers)
    assert any(tokens[-1] == 3 for tokens in answers)
    return list(zip(asked, answers, strict=True))


@pytest.fixture(scope="session")
def in_json():
    """A photo's bytes as JSON holds them."""
    return lambda data: base64.b64encode(data).decode()


@pytest.fixture(scope="session")
def generate_all(photos, in_json, cases):
    """Has a server generate the captions of all cases, for so many clients at once: the answers,
    and how many rows a step of the decoder had on average."""

    def generate(running, clients):
        def ask(case):
            options = {name: value for name, value in case.items() if name != "index"}
            body = {"image": in_json(photos[case["index"]]), **options}
            answer = running.post("/v2/models/captions/generate", body)
            assert answer.status == 200, answer
            return answer.json

        before = running.statistics("captions")["generation"]["decoder"]
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, [case for case, _ in cases]))
        after = running.statistics("captions")["generation"]["decoder"]
        steps = after["execution_count"] - before["execution_count"]
        rows = after["row_count"] - before["row_count"]
        return found, rows / steps

    return generate


@pytest.fixture(scope="session")
def form():
    """A multipart form: the body and its header."""

    def made(*files, **values):
        edge = "edge-of-a-part"
        parts = []
        for number, data in enumerate(files):
            parts.append(
                f'Content-Disposition: form-data; name="image"; filename="{number}.png"\r\n'
                f"Content-Type: image/png\r\n\r\n".encode()
                + data
            )
        for name, value in values.items():
            parts.append(f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode())
        body = b"".join(b"--%b\r\n%b\r\n" % (edge.encode(), part) for part in parts)
        body += f"--{edge}--\r\n".encode()
        return body, {"Content-Type": f"multipart/form-data; boundary={edge}"}

    return made


@pytest.fixture
def copied(repository, tmp_path):
    """A copy of one of the models, to be changed; returns the repository and its folder."""
    import shutil

    def copy(name):
        folder = tmp_path / "models" / name
        shutil.copytree(repository / name, folder)
        return Path(tmp_path / "models"), folder

    return copy

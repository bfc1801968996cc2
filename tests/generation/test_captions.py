"""…/caption: photos of people, captions for people, with both kinds of model."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.repositories import add_onnx

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers

BOTH = pytest.mark.parametrize("model", ["captions", "single"])


@pytest.fixture
def ask(server, form):
    def post(model, *files, query="", **values):
        body, headers = form(*files, **values)
        return server.post(f"/v2/models/{model}/caption{query}", body, headers)

    return post


def events(answer):
    assert answer.status == 200, answer
    return [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]


@BOTH
def test_several_photos_in_one_call(ask, photos, model):
    answer = ask(model, *photos[:5])
    assert answer.status == 200, answer
    found = answer.json
    assert (found["model_name"], found["model_version"]) == (model, "1")
    assert [entry["file"] for entry in found["captions"]] == [f"{n}.png" for n in range(5)]
    alone = [ask(model, photo).json["captions"][0]["caption"] for photo in photos[:5]]
    assert [entry["caption"] for entry in found["captions"]] == alone
    assert len(set(alone)) > 2


@BOTH
def test_a_stream_of_pieces_and_the_caption(ask, photos, model):
    for query, values in (("?stream=true", {}), ("", {"stream": "true", "prompt": "a photo of"})):
        *pieces, last = events(ask(model, photos[0], query=query, **values))
        whole = ask(model, photos[0], **{k: v for k, v in values.items() if k != "stream"})
        expected = whole.json["captions"][0]
        assert last == {"model_name": model, "model_version": "1", **expected}
        text = "".join(piece["text"] for piece in pieces)
        assert values.get("prompt", "") + text == expected["caption"]
        assert len(pieces) > 3


@BOTH
def test_beams_stream_their_end(ask, photos, model):
    piece, last = events(ask(model, photos[0], num_beams=3, stream="true", max_tokens=8))
    assert piece == {"text": last["caption"]}
    assert last["score"] < 0


@BOTH
@pytest.mark.parametrize("stream", [{}, {"stream": "true"}])
def test_wrong_calls(ask, server, photos, model, stream):
    for values, sentence in (
        ({"max_tokens": 0}, "'max_tokens' must be a whole number from 1 to 63, not '0'"),
        ({"max_tokens": "many"}, "not 'many'"),
        ({"num_beams": 99}, "'num_beams' must be a whole number from 1 to"),
        ({"prompt": "a photo of " * 40}, "the prompt has 121 tokens"),
        ({"prompt": "a" * 2001}, "'prompt' has 2,001 characters"),
    ):
        answer = ask(model, photos[0], **values, **stream)
        assert (answer.status, sentence in answer.error) == (400, True), answer
    assert "there is no image in the request" in ask(model, **stream).error
    assert "the image '0.png' is text" in ask(model, b"no photo", **stream).error
    cut = ask(model, photos[0][:200], **stream)
    assert (cut.status, "is truncated" in cut.error) == (400, True)
    many = ask(model, *photos[:2] * 9, **stream)
    assert (many.status, "at most 16 are allowed" in many.error) == (400, True)


def test_a_stream_is_for_one_photo(ask, photos):
    answer = ask("captions", *photos[:2], stream="true")
    assert (answer.status, "'stream' supports one" in answer.error) == (400, True)


def test_one_bad_photo_is_named(ask, photos):
    answer = ask("captions", photos[0], b"BM", photos[1])
    assert (answer.status, "'1.png'" in answer.error) == (400, True)


def test_large_photos_in_other_formats(ask):
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (300, 500, 3), np.uint8))
    for kind in ("JPEG", "WEBP", "BMP"):
        file = io.BytesIO()
        image.save(file, kind)
        answer = ask("captions", file.getvalue())
        assert answer.status == 200, answer


def test_steps_of_single_captions_share_batches(copied, photos, form):
    models, _ = copied("single")
    with running_server(models) as running:
        body, headers = form(*photos, min_tokens=12, max_tokens=12)
        assert running.post("/v2/models/single/caption", body, headers).status == 200
        counted = running.statistics("single")
        assert counted["inference_count"] == 8 * 12
        assert counted["execution_count"] < 8 * 12 / 2
        task = counted["task"]
        assert task["name"] == "image-to-text"
        assert task["success"]["count"] == 1
        assert task["preprocess"]["count"] == 8


def test_lengths_differ_and_still_share(copied, photos, form):
    """A long prompt and none in the same batches, thanks to padding; the mask makes it exact."""
    models, _ = copied("single")
    with running_server(models) as running:
        asked = [form(photos[n], prompt="a photo of " * (n % 3), max_tokens=9) for n in range(6)]
        alone = [running.post("/v2/models/single/caption", *each).json for each in asked]
        before = running.statistics("single")
        calls = [running.call("POST", "/v2/models/single/caption", *each) for each in asked]
        assert [call.response().json for call in calls] == alone
        after = running.statistics("single")
        inferences = after["inference_count"] - before["inference_count"]
        assert after["execution_count"] - before["execution_count"] < inferences


def test_the_ancestors_config_loads_as_it_is(repository, tmp_path, pixel_values, tokenizer):
    """No task, no padding: just tensors."""
    vocabulary = tokenizer.get_vocab_size()
    folder = tmp_path / "models" / "blip"
    shutil.copytree(repository / "single" / "1", folder / "1")
    (folder / "config.pbtxt").write_text(
        """
name: "blip"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "pixel_values" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] },
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ -1, VOCABULARY ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [ { count: 1 kind: KIND_CPU } ]
""".replace("VOCABULARY", str(vocabulary))
    )
    inputs = {
        "pixel_values": pixel_values[:2],
        "input_ids": np.array([[2, 7, 9]] * 2),
        "attention_mask": np.ones((2, 3), np.int64),
    }
    with running_server(tmp_path / "models") as running:
        request = Infer()
        for name, array in inputs.items():
            request.add(name, array, binary=True)
        logits = outputs(request.send(running, "blip"))["logits"]
        refused = running.post("/v2/models/blip/caption", b"")
    assert logits.shape == (2, 3, vocabulary)
    assert (refused.status, "names no task" in refused.error) == (400, True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            [
                ("max_batch_size: 16", "max_batch_size: 0"),
                ("dynamic_batching { }", ""),
                ('parameters { key: "padding" value: { string_value: "true" } }', ""),
                ("[ -1 ]", "[ -1, -1 ]"),
                ("[ 3,", "[ -1, 3,"),
                ("[ -1, 1", "[ -1, -1, 1"),
            ],
            "the task 'image-to-text' needs a batch dimension",
        ),
        (
            [('"attention_mask" data_type: TYPE_INT64', '"attention_mask" data_type: TYPE_INT32')],
            "",
        ),
    ],
)
def test_single_models_that_do_not_fit(copied, changes, sentence):
    models, folder = copied("single")
    path = folder / "config.pbtxt"
    text = path.read_text()
    for old, new in changes:
        text = text.replace(old, new)
    path.write_text(text)
    with running_server(models, model_control_mode="explicit") as running:
        answer = running.load("single")
        assert (answer.status, sentence in answer.error) == (400, True), answer


def test_a_model_that_writes_nothing(tmp_path):
    task = 'parameters { key: "task" value: { string_value: "image-to-text" } }\nmax_batch_size: 4'
    folder = add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"), task)
    from tests.support.text_generators import word_tokenizer

    word_tokenizer().save(str(folder / "tokenizer.json"))
    with running_server(tmp_path, model_control_mode="explicit") as running:
        answer = running.load("sum")
    assert answer.status == 400
    assert "cannot use a model with the inputs 'INPUT0', 'INPUT1'" in answer.error
    assert "shoal export blip" in answer.error


def test_a_client_that_disconnects_frees_its_slot(copied, photos, form):
    models, folder = copied("captions")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"16"', '"1"'))
    with running_server(models) as running:
        body, headers = form(photos[0], stream="true", max_tokens=63, min_tokens=63)
        for _ in range(5):
            call = running.call("POST", "/v2/models/captions/caption", body, headers)
            call.socket.recv(1)
            call.disconnect()
        answer = running.post("/v2/models/captions/caption", body, headers)
        assert events(answer)[-1]["tokens"] == 63


@pytest.mark.curl
def test_with_curl(copied, photos, tmp_path):
    models, _ = copied("captions")
    (tmp_path / "cat.png").write_bytes(photos[0])
    with running_server(models) as running:
        short = f"http://{running.http_address}/caption"
        command = ["curl", "-sS", short, "-F", f"image=@{tmp_path}/cat.png"]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert re.fullmatch(r"[a-z !\".,?':;()-]+", found["captions"][0]["caption"])
        raw = ["curl", "-sS", short, "--data-binary", f"@{tmp_path}/cat.png"]
        again = json.loads(subprocess.run(raw, capture_output=True, check=True).stdout)
        assert again["captions"][0]["caption"] == found["captions"][0]["caption"]

"""The demo's classifier of photos, as people use it: with curl and requests, on real photos."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from onnx import helper
from PIL import Image

from shoal.cli.demo import models as demo_models
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.repositories import add_onnx

WAIT_SECS = 45
TASK = 'parameters { key: "task" value { string_value: "image-classification" } }'
CATS = {"tabby cat", "tiger cat", "Egyptian cat"}


@pytest.fixture(scope="module")
def photos():
    """Real photos as JPEG files, by name."""
    datasets = pytest.importorskip("sklearn.datasets")
    data = pytest.importorskip("skimage.data")
    pictures = {name: getattr(data, name)() for name in ("chelsea", "coffee", "rocket")}
    pictures |= {name: datasets.load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    return {name: encode(Image.fromarray(pixels)) for name, pixels in pictures.items()}


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 92} | options if kind == "JPEG" else options))
    return file.getvalue()


def decode(data):
    return Image.open(io.BytesIO(data))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    (repository / "photos").symlink_to(demo_models().folder / "photos")
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def url(server):
    return f"http://{server.http_address}/v2/models/photos/classify"


def post(url, files=None, **options):
    if files is not None:
        options["files"] = [("image", (name, data)) for name, data in files]
    return requests.post(url, timeout=WAIT_SECS, **options)


def labels(answer):
    assert answer.status_code == 200, answer.text
    return [[label["label"] for label in image["labels"]] for image in answer.json()["images"]]


def error(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


# ---- what is on the photos


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("chelsea", CATS),
        ("coffee", {"espresso"}),
        ("rocket", {"missile", "projectile"}),
        ("china", {"palace"}),
        ("flower", {"daisy"}),
    ],
)
def test_real_photos(url, photos, name, right):
    (found,) = labels(post(url, [(f"{name}.jpg", photos[name])]))
    assert found[0] in right


def test_a_cat_and_its_likely_names(url, photos):
    answer = post(url, [("cat.jpg", photos["chelsea"])]).json()
    assert answer["model_name"] == "photos"
    assert answer["model_version"] == "1"
    (image,) = answer["images"]
    assert image["file"] == "cat.jpg"
    assert len(image["labels"]) == 5
    assert {label["label"] for label in image["labels"][:3]} == CATS
    scores = [label["score"] for label in image["labels"]]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores[:3]) > 0.85
    assert image["labels"][0]["index"] in (281, 282, 285)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("PNG", lambda image: image),
        ("PNG", lambda image: image.convert("RGBA")),
        ("PNG", lambda image: image.quantize(128)),
        ("PNG", lambda image: image.convert("L")),
        (
            "PNG",
            lambda image: Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) << 8),
        ),
        ("JPEG", lambda image: image.convert("CMYK")),
        ("JPEG", lambda image: image.convert("L")),
        ("WEBP", lambda image: image),
        ("BMP", lambda image: image),
        ("GIF", lambda image: image),
    ],
    ids=["png", "alpha", "palette", "grey", "16-bit", "cmyk", "grey-jpeg", "webp", "bmp", "gif"],
)
def test_a_cat_is_a_cat_in_every_format(url, photos, kind, change):
    image = change(decode(photos["chelsea"]))
    (found,) = labels(post(url, [("cat", encode(image, kind))]))
    assert found[0] in CATS


def test_a_photo_taken_upside_down(url, photos):
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = encode(decode(photos["coffee"]).rotate(180), exif=exif)
    straight = post(url, [("a.jpg", photos["coffee"])]).json()["images"][0]["labels"][0]
    again = post(url, [("b.jpg", turned)]).json()["images"][0]["labels"][0]
    assert again["label"] == straight["label"] == "espresso"
    assert again["score"] == pytest.approx(straight["score"], abs=0.03)


@pytest.mark.parametrize("name", ["coffee", "china"])
def test_a_large_photo_gets_the_labels_of_its_small_copy(url, photos, name):
    """It is decoded at a fraction of its size; what is seen on it stays the same."""
    image = decode(photos[name])
    large = image.resize((image.width * 6, image.height * 6), Image.Resampling.BICUBIC)
    fast, whole = (
        post(url, [("large", data)]).json()["images"][0]["labels"]
        for data in (encode(large), encode(large, "PNG", compress_level=1))
    )
    assert fast[0]["label"] == whole[0]["label"]
    assert fast[0]["score"] == pytest.approx(whole[0]["score"], abs=0.03)


# ---- ways to send them


def test_several_photos_in_one_request(url, photos):
    names = ["flower", "chelsea", "coffee", "china", "flower"]
    answer = post(url, [(f"{name}.jpg", photos[name]) for name in names])
    assert [image["file"] for image in answer.json()["images"]] == [f"{n}.jpg" for n in names]
    first = [found[0] for found in labels(answer)]
    assert first[0] == first[4] == "daisy"
    assert first[1] in CATS
    assert first[2:4] == ["espresso", "palace"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "image/jpeg"},
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {},
    ],
)
def test_bare_bodies(url, photos, headers):
    answer = post(f"{url}?top=1", data=photos["flower"], headers=headers)
    assert labels(answer) == [["daisy"]]
    assert answer.json()["images"][0]["file"] == ""


def test_base64_in_json(url, photos):
    text = base64.b64encode(photos["flower"]).decode()
    assert labels(post(url, json={"image": text, "top": 1})) == [["daisy"]]
    answer = post(url, json={"images": [text, f"data:image/jpeg;base64,{text}"], "top": 1})
    assert labels(answer) == [["daisy"], ["daisy"]]


def test_the_short_route(server, photos):
    address = f"http://{server.http_address}"
    assert labels(post(f"{address}/classify?top=1", data=photos["flower"])) == [["daisy"]]
    versioned = f"{address}/v2/models/photos/versions/1/classify?top=1"
    assert labels(post(versioned, data=photos["flower"])) == [["daisy"]]


def test_top(url, photos):
    files = [("a.jpg", photos["flower"])]
    assert len(labels(post(f"{url}?top=1000", files))[0]) == 1000
    assert len(labels(post(url, files, data={"top": "3"}))[0]) == 3
    for wrong in ("0", "1001", "-1", "all"):
        assert error(post(f"{url}?top={wrong}", files)) == (
            f"'top' must be a whole number from 1 to 1000, not '{wrong}'"
        )


@pytest.fixture
def curl(tmp_path, photos):
    """Run curl in a folder with cat.jpg, broken.jpg and notes.txt; its output as JSON."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    (tmp_path / "cat.jpg").write_bytes(photos["chelsea"])
    (tmp_path / "broken.jpg").write_bytes(photos["chelsea"][:9000])
    (tmp_path / "notes.txt").write_text("no photo, only words\n")

    def run(*words):
        done = subprocess.run(
            ["curl", "--silent", "--show-error", *words],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)

    return run


def test_with_curl(url, curl):
    for words in (
        ("-F", "image=@cat.jpg"),
        ("-F", "image=<cat.jpg;type=image/jpeg"),
        ("--data-binary", "@cat.jpg"),
        ("-T", "cat.jpg", "-X", "POST"),
    ):
        (image,) = curl(url, *words)["images"]
        assert image["labels"][0]["label"] in CATS
    two = curl(
        url, "-F", "image=@cat.jpg", "-F", "image=@cat.jpg;filename=other.jpg", "-F", "top=1"
    )
    assert [image["file"] for image in two["images"]] == ["cat.jpg", "other.jpg"]
    assert [len(image["labels"]) for image in two["images"]] == [1, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("-X", "POST"),
            "there is no image in the request. Send one with curl -F image=@photo.jpg",
        ),
        (("-F", "image=cat.jpg"), "write an @ before its name: curl -F image=@cat.jpg"),
        (("-F", "top=3"), "there is no image in the request"),
        (("-F", "image=@notes.txt"), "the image 'notes.txt' is text. Send a JPEG, PNG, WebP"),
        (("-F", "image=@broken.jpg"), "the image 'broken.jpg' is truncated"),
        (("--data-binary", "@broken.jpg"), "the image is truncated: its JPEG data ends too early"),
        (
            ("-F", "image=@cat.jpg", "-F", "image=@broken.jpg"),
            "the image 'broken.jpg' is truncated",
        ),
        (("-d", "@cat.jpg"), "Send a file with curl --data-binary @FILE"),
        (("-d", '{"image": "cat.jpg"}'), "'image' is not base64"),
        (("-d", '{"image": '), "failed to parse the request JSON buffer"),
        (("-H", "Content-Type: application/pdf", "-d", "%PDF-1.4"), "is a PDF document"),
    ],
)
def test_wrong_use_with_curl(url, curl, words, sentence):
    assert sentence in curl(url, *words)["error"]


# ---- wrong use


def test_a_bad_photo_affects_no_other(url, photos):
    good = ("good.jpg", photos["flower"])
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda bad: post(url, [good, ("bad.jpg", b"GIF89a")] if bad else [good]),
                [False, True] * 8,
            )
        )
    for place, answer in enumerate(answers):
        if place % 2:
            assert "the image 'bad.jpg' is truncated" in error(answer)
        else:
            assert labels(answer)[0][0] == "daisy"


def test_a_decompression_bomb(url):
    bomb = encode(Image.new("1", (8_000, 8_000)), "PNG")
    assert len(bomb) < 20_000
    text = error(post(url, [("bomb.png", bomb)]))
    assert "the image 'bomb.png' has 8,000 x 8,000 pixels, at most 50,000,000" in text


def test_too_many_photos_and_too_large_ones(url, photos):
    assert "has 65 images, at most 64" in error(post(url, [("a", b"x")] * 65))
    large = photos["flower"] + bytes(20_000_001)
    assert "bytes, at most 20,000,000 are allowed; send a smaller one" in error(
        post(url, data=large)
    )


def test_other_operations_and_other_models(server, url):
    address = f"http://{server.http_address}"
    answer = post(f"{address}/v2/models/photos/answer", json={})
    assert "has the task 'image-classification', which offers 'classify'" in error(answer)
    assert post(f"{address}/v2/models/none/classify", json={}).status_code == 404
    assert requests.get(url, timeout=WAIT_SECS).status_code == 405


# ---- beside the model's other sides


def test_tensors_go_on_working(server):
    body = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "datatype": "FP32",
                    "shape": [1, 3, 224, 224],
                    "data": np.zeros(3 * 224 * 224).tolist(),
                }
            ],
            "outputs": [{"name": "logits", "parameters": {"classification": 1}}],
        }
    )
    answer = server.post("/v2/models/photos/infer", body)
    assert answer.status == 200, answer.body
    assert len(answer.json["outputs"][0]["data"]) == 1


def test_answers_are_as_the_openapi_document_promises(server, url, photos):
    validators = pytest.importorskip("jsonschema.validators")
    document = server.get("/openapi.json").json
    operation = document["paths"]["/v2/models/{model}/classify"]["post"]
    answer = post(url, [("a.jpg", photos["flower"])]).json()
    for schema, value in (
        (operation["responses"]["200"]["content"]["application/json"]["schema"], answer),
        (
            operation["requestBody"]["content"]["application/json"]["schema"],
            {"images": ["aGVycmluZw=="]},
        ),
    ):
        rooted = {**schema, "components": document["components"]}
        validators.Draft202012Validator(rooted).validate(value)


def test_counts_and_metrics(server, url, photos):
    before = server.statistics("photos")
    at = {"model": "photos", "version": "1", "task": "image-classification"}
    calls = server.metric("shoal_task_success_total", **at) or 0
    post(url, [("a", photos["flower"]), ("b", photos["coffee"])])
    post(url, [("a", b"")])
    task, task_before = server.statistics("photos")["task"], before["task"]
    grown = {
        kind: task[kind]["count"] - task_before[kind]["count"]
        for kind in ("success", "fail", "preprocess", "postprocess")
    }
    assert grown == {"success": 1, "fail": 1, "preprocess": 3, "postprocess": 1}
    assert task["preprocess"]["ns"] > task_before["preprocess"]["ns"]
    assert server.statistics("photos")["inference_count"] == before["inference_count"] + 2
    assert server.metric("shoal_task_success_total", **at) == calls + 1
    for kind in ("success", "failure", "preprocess", "postprocess"):
        assert server.metric(f"shoal_task_{kind}_total", **at) >= 1
        assert server.metric(f"shoal_task_{kind}_seconds_total", **at) > 0


def counts(door):
    told = door.statistics.snapshot()
    return {kind: told[kind]["count"] for kind in told if kind != "name"}


@pytest.mark.one_process
def test_a_client_that_disconnects_ends_its_call(server, url, photos):
    """What it asked for is given up, and the next one is answered."""
    door = server.model("photos").task
    wait_until(lambda: door.calls == 0, "the calls before it are over")
    before = counts(door)
    asked = threading.Event()

    async def never(*_):
        asked.set()
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(door.task.context, "infer", never)
        call = server.call("POST", "/v2/models/photos/classify", photos["china"])
        assert asked.wait(WAIT_SECS)
        call.disconnect()
        wait_until(lambda: door.calls == 0, "it is over")
    assert counts(door)["fail"] == before["fail"] + 1
    assert labels(post(f"{url}?top=1", [("a.jpg", photos["flower"])])) == [["daisy"]]


# ---- models of other kinds


def mean_colours(channels_last=False, datatype="FP32", batch=True):
    """Not much of a classifier: it tells how much there is of each colour."""
    first = ("N",) if batch else (1,)
    dims = (*first, 4, 4, 3) if channels_last else (*first, 3, 4, 4)
    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=1),
        helper.make_node("Transpose", ["numbers"], ["planes"], perm=[0, 3, 1, 2])
        if channels_last
        else helper.make_node("Identity", ["numbers"], ["planes"]),
        helper.make_node("GlobalAveragePool", ["planes"], ["scores"]),
    ]
    return onnx_models.model(
        nodes,
        inputs=[onnx_models.value("image", datatype, dims)],
        outputs=[onnx_models.value("scores", "FP32", (*first, 3, 1, 1))],
    )


def add_classifier(repository, name, built, config, **task):
    folder = add_onnx(repository, name, built, f"{config} {TASK}")
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")


def colour(*values, size=(12, 9)):
    return encode(Image.new("RGB", size, values), "PNG")


@pytest.fixture
def repository(tmp_path):
    return tmp_path / "models"


def test_many_calls_share_executions(repository, photos):
    """Dynamic batching joins the photos of many calls while the model is busy."""
    shutil.copytree(demo_models().folder / "photos", repository / "photos")
    with running_server(repository) as server:
        url = f"http://{server.http_address}/classify?top=1"
        start = threading.Barrier(24)

        def ask(_):
            start.wait(WAIT_SECS)
            return post(url, data=photos["flower"])

        with ThreadPoolExecutor(24) as threads:
            answers = list(threads.map(ask, range(24)))
        assert [labels(answer) for answer in answers] == [[["daisy"]]] * 24
        counted = server.statistics("photos")
        assert counted["inference_count"] == 24
        assert counted["execution_count"] < 24


def test_new_settings_are_read_when_the_model_is_loaded_again(repository, photos):
    shutil.copytree(demo_models().folder / "photos", repository / "photos")
    settings = repository / "photos" / "task.json"
    with running_server(
        repository, model_control_mode="explicit", load_model=("photos",)
    ) as server:
        url = f"http://{server.http_address}/classify"
        assert len(labels(post(url, data=photos["flower"]))[0]) == 5
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"top": 2}))
        assert server.load("photos").status == 200
        assert len(labels(post(url, data=photos["flower"]))[0]) == 2
        settings.write_text('{"tops": 2}')
        refused = server.load("photos")
        assert refused.status == 400
        assert "task.json: tops: no such setting" in refused.error
        assert len(labels(post(url, data=photos["flower"]))[0]) == 2  # the old one goes on


def test_two_classifiers_need_their_names(repository):
    for name in ("one", "two"):
        add_classifier(repository, name, mean_colours(), "max_batch_size: 4")
    with running_server(repository) as server:
        address = f"http://{server.http_address}"
        body = colour(9, 9, 200)
        assert error(post(f"{address}/classify", data=body)) == (
            "several models offer 'classify' (one, two): say which one with "
            "/v2/models/NAME/classify"
        )
        assert labels(post(f"{address}/v2/models/two/classify?top=1", data=body)) == [["blue"]]
    with running_server(repository, model_control_mode="explicit") as server:
        answer = post(f"http://{server.http_address}/classify", data=body)
        assert answer.status_code == 404
        assert "no loaded model offers 'classify'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("built", "config"),
    [
        (mean_colours(), "max_batch_size: 4"),
        (mean_colours(channels_last=True), "max_batch_size: 2"),
        (mean_colours(channels_last=True, datatype="UINT8"), "max_batch_size: 4"),
        (mean_colours(batch=False), "max_batch_size: 0"),
        (mean_colours(), "max_batch_size: 0"),
        (mean_colours(channels_last=True, batch=False), "max_batch_size: 0"),
    ],
    ids=["nchw", "nhwc", "uint8", "fixed", "open", "fixed-nhwc"],
)
def test_models_of_other_shapes(repository, built, config):
    add_classifier(repository, "colours", built, config, scale=1, scores="as-is")
    with running_server(repository) as server:
        files = [("a", colour(200, 1, 2)), ("b", colour(3, 210, 5)), ("c", colour(1, 1, 220))]
        answer = post(f"http://{server.http_address}/classify?top=1", files)
        assert labels(answer) == [["red"], ["green"], ["blue"]]
        scores = [image["labels"][0]["score"] for image in answer.json()["images"]]
        assert scores == pytest.approx([200, 210, 220], abs=0.01)


def test_a_model_that_is_no_classifier_is_not_loaded(repository):
    add_onnx(repository, "echo", onnx_models.identity("FP32", (5,)), f"max_batch_size: 2 {TASK}")
    with running_server(repository, exit_on_error=False) as server:
        (entry,) = server.index()
        assert entry["state"] == "UNAVAILABLE"
        assert "photos need three: channels, height and width" in entry["reason"]

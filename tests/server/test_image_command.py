"""`shoal image` against real servers: both protocols, every way to send, small models of all layouts."""

from __future__ import annotations

import http.server
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from shoal.cli.main import main
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.onnx_models import value
from tests.support.repositories import add_onnx

Image = pytest.importorskip("PIL.Image")

COLOURS = {"blue.png": (0, 0, 255), "green.png": (0, 255, 0), "red.jpg": (250, 0, 0)}
LABELS = b"red\ngreen\nblue\n"
CONFIG = """
max_batch_size: {batch}
input {{ name: "image" data_type: TYPE_{datatype} format: FORMAT_{format} dims: [ {dims} ] }}
output {{ name: "prob" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }}
"""


def colour_model(dims, datatype="FP32", *, channels_first=True):
    """Which of red, green and blue there is most of: three logits, the mean of each by 64."""
    source = "image"
    nodes = []
    if datatype != "FP32":
        nodes.append(helper.make_node("Cast", [source], ["numbers"], to=1))
        source = "numbers"
    if not channels_first:
        nodes.append(helper.make_node("Transpose", [source], ["planes"], perm=[0, 3, 1, 2]))
        source = "planes"
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"], axis=1),
        helper.make_node("Mul", ["flat", "scale"], ["prob"]),
    ]
    return onnx_models.model(
        nodes,
        inputs=[value("image", datatype, ("batch", *dims))],
        outputs=[value("prob", "FP32", ("batch", 3))],
        constants={"scale": np.array(1 / 64, np.float32)},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    files = {"labels.txt": LABELS}

    def add(name, dims, datatype="FP32", format="NCHW", batch=8, *, channels_first=True):
        built = colour_model(dims, datatype, channels_first=channels_first)
        listed = ", ".join(str(dim) if isinstance(dim, int) else "-1" for dim in dims)
        config = CONFIG.format(batch=batch, datatype=datatype, format=format, dims=listed)
        if batch == 0:
            config = config.replace("[ ", "[ -1, ")
        add_onnx(folder, name, built, config, files=files)

    add("nchw", (3, 8, 10))
    add("nhwc", (8, 10, 3), format="NHWC", channels_first=False)
    add("bytes", (8, 10, 3), "UINT8", "NONE", channels_first=False)
    add("half", (3, 8, 10), "FP16", "NONE")
    add("single", (3, 8, 10), format="NONE", batch=0)
    add("any_size", (3, "h", "w"))
    add_onnx(folder, "sum", onnx_models.add_sub("FP32"))
    with running_server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in COLOURS.items():
        Image.new("RGB", (30, 20), colour).save(folder / name)
    return folder


@pytest.fixture
def image(server, capsys):
    """Run the command over a protocol; returns its code, its lines and its errors."""

    def run(*words, protocol="http"):
        address = server.http_address if protocol == "http" else server.grpc_address
        code = main(["image", "-u", address, "-i", protocol, *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def seen(lines):
    """The label of each image, in the order of printing."""
    return [line.split("(")[1].split(")")[0] for line in lines if line.startswith("Image ")]


WAYS = [
    pytest.param("http", (), id="http"),
    pytest.param("http", ("--async",), id="http-async"),
    pytest.param("grpc", (), id="grpc"),
    pytest.param("grpc", ("--async",), id="grpc-async"),
    pytest.param("grpc", ("--streaming",), id="grpc-streaming"),
]


@pytest.mark.parametrize(("protocol", "way"), WAYS)
def test_a_folder(image, photos, protocol, way):
    code, lines, error = image("-m", "nchw", *way, photos, protocol=protocol)
    assert (code, error) == (0, "")
    assert seen(lines) == ["blue", "green", "red"]
    assert [line for line in lines if line.startswith("Request")] == [
        f"Request {number}, batch size 1" for number in (1, 2, 3)
    ]
    assert lines[-4:] == [
        "Prediction totals:",
        "\tcnt=1\t(2) blue",
        "\tcnt=1\t(1) green",
        "\tcnt=1\t(0) red",
    ]


@pytest.mark.parametrize(("protocol", "way"), WAYS)
def test_batches_are_filled_by_repeating_images(image, photos, server, protocol, way):
    before = server.statistics("nchw")["inference_count"]
    code, lines, _ = image("-m", "nchw", "-b", 2, *way, photos, protocol=protocol)
    assert code == 0
    assert seen(lines) == ["blue", "green", "red", "blue"]
    assert "\tcnt=2\t(2) blue" in lines
    assert server.statistics("nchw")["inference_count"] - before == 4


@pytest.mark.parametrize(("protocol", "way"), WAYS)
def test_more_requests_than_are_under_way_at_once(image, photos, protocol, way):
    code, lines, _ = image("-m", "nchw", *way, *[photos] * 17, protocol=protocol)
    assert code == 0
    assert seen(lines) == ["blue", "green", "red"] * 17
    assert "\tcnt=17\t(0) red" in lines


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["nhwc", "bytes", "half", "single"])
def test_layouts_and_datatypes(image, photos, model, protocol):
    code, lines, error = image("-m", model, photos, protocol=protocol)
    assert (code, error) == (0, "")
    assert seen(lines) == ["blue", "green", "red"]


def test_several_classes_as_probabilities(image, photos):
    code, lines, _ = image("-m", "nchw", "-c", 2, "--softmax", "-x", 1, photos / "green.png")
    assert code == 0
    assert lines[1] == f"Image '{photos / 'green.png'}':"
    assert lines[2].startswith("    1 (green) = 0.96")
    assert len(lines) == 6
    assert sum(float(line.split("=")[1]) for line in lines[2:4]) <= 1


def test_values_are_the_servers_own(image, photos):
    _, lines, _ = image("-m", "nchw", "-s", "UNIT", photos / "green.png")
    assert lines[1].endswith("1 (green) = 0.015625")


def test_any_size(image, photos):
    assert image("-m", "any_size", "--size", "12x14", photos)[0] == 0
    code, _, error = image("-m", "any_size", photos)
    assert code == 1
    assert "choose one with --size HEIGHTxWIDTH" in error


def test_what_the_model_takes(image, photos):
    _, _, error = image("-m", "bytes", "-v", photos / "green.png")
    assert error == (
        "model 'bytes': input 'image' takes UINT8 images of 8x10, 3 channels (NHWC), up to 8 per "
        "request; output 'prob'\n"
    )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-m", "nope"), "unknown model: 'nope' is not found; the server has any_size, bytes, "),
        (("-m", "nchw", "-x", "7"), "unknown model: 'nchw' version 7 is not found\n"),
        (("-m", "sum"), "model 'sum' is not an image classifier: expecting 1 input, got 2"),
        (
            ("-m", "nchw", "-b", "9"),
            "-b 9 is more than model 'nchw' takes: its max_batch_size is 8",
        ),
        (("-m", "single", "-b", "2"), "model 'single' doesn't support batching; leave -b 2 out"),
        (("-m", "bytes", "-s", "VGG"), "use -s NONE"),
    ],
)
def test_mistakes(image, photos, words, text, protocol):
    code, lines, error = image(*words, photos, protocol=protocol)
    assert code == 1
    assert lines == []
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("protocol", "way"), WAYS)
def test_a_broken_image_is_named(image, photos, tmp_path, protocol, way):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes((photos / "red.jpg").read_bytes()[:200])
    code, lines, error = image(
        "-m", "nchw", *way, photos / "red.jpg", broken, photos, protocol=protocol
    )
    assert code == 1
    assert "broken.jpg'" in error
    assert "Prediction totals:" not in lines


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_server(photos, capsys, protocol):
    assert main(["image", "-m", "x", "-u", "127.0.0.1:1", "-i", protocol, str(photos)]) == 1
    assert capsys.readouterr().err.startswith("error: no server answers at 127.0.0.1:1")


def test_a_terminal_sees_a_bar(server, photos):
    """The bar goes to the terminal alone: what is printed can still be piped."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shoal", "image", "-m", "nchw", "-u", server.http_address]
    with subprocess.Popen(
        [*command, str(photos)], stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        printed = process.stdout.read()
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0
    assert "\x1b" not in printed
    assert seen(printed.splitlines()) == ["blue", "green", "red"]
    assert b"] 3/3" in shown
    assert shown.endswith(b"\r\x1b[K")


class PlainServer(http.server.BaseHTTPRequestHandler):
    """A server of the plain protocol: it has neither configs nor an index, and does not classify."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        metadata = {
            "name": "plain",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
            "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
        }
        known = self.path == "/v2/models/plain"
        self.answer(200 if known else 404, metadata if known else {"error": "no such thing"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/infer"):
            self.answer(404, {"error": "no such thing"})
            return
        length = int(self.headers["Inference-Header-Content-Length"])
        rows = json.loads(body[:length])["inputs"][0]["shape"][0]
        means = np.frombuffer(body[length:], np.float32).reshape(rows, 3, -1).mean(axis=2)
        scores = {"name": "scores", "datatype": "FP32", "shape": [rows, 3]}
        document = {"model_name": "plain", "model_version": "1"}
        self.answer(200, {**document, "outputs": [{**scores, "data": means.ravel().tolist()}]})

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *arguments):
        """Say nothing."""


def test_servers_that_know_the_plain_protocol_only(photos, capsys):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), PlainServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        words = ["image", "-u", f"127.0.0.1:{server.server_port}"]
        try:
            assert main([*words, "-m", "plain", "-b", "2", "-s", "UNIT", str(photos)]) == 0
            assert main([*words, "-m", "nope", str(photos)]) == 1
        finally:
            server.shutdown()
            thread.join()
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1] == f"Image '{photos / 'blue.png'}': 2 = 1.000000"
    assert "\tcnt=2\t(2)" in captured.out
    assert captured.err == "error: no such thing\n"


REAL = Path(__file__).resolve().parents[3] / "shared" / "models" / "image-classification"


@pytest.mark.skipif(
    not REAL.is_dir(), reason="needs the EfficientNet-Lite0 model beside the checkout"
)
@pytest.mark.parametrize(("protocol", "way"), WAYS[::4])
def test_real_photos(tmp_path, capsys, protocol, way):
    samples = pytest.importorskip("sklearn.datasets")
    folder = Path(samples.__file__).parent / "images"
    model = tmp_path / "efficientnet" / "1"
    model.mkdir(parents=True)
    shutil.copy(REAL / "model.onnx", model)
    shutil.copy(REAL / "labels.txt", model.parent)
    (model.parent / "config.pbtxt").write_text(
        'max_batch_size: 8 input { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } '
        'output { name: "logits" data_type: TYPE_FP32 dims: [ 1000 ] label_filename: "labels.txt" }'
    )
    with running_server(tmp_path) as running:
        address = running.http_address if protocol == "http" else running.grpc_address
        words = ["-m", "efficientnet", "-s", "LITE", "--crop", "--softmax", "-b", "2", *way]
        assert main(["image", "-u", address, "-i", protocol, *words, str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "698 (palace) = 0.31" in lines[1]
    assert "985 (daisy) = 0.36" in lines[2]

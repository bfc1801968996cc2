"""The workload `photos` of `benchmarks.gpu`: photos a second, from JPEG to labels.

    python -m benchmarks.gpu --workloads photos --frontends 1,4 [--photos 1000000]

ResNet-50 with random weights in FP16, and photos of 500 x 375 pixels and about 100 KB. What the
server answers when it prepares photos on the CPU is what it must answer on the GPU: the same best
label for each photo, with nearly the same score. Then `checked` sends them and checks every answer.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from benchmarks.loads import checked
from benchmarks.serving import Server, serve
from shoal.backends.pytorch.library import quiet

CONNECTIONS = 256
PHOTOS = 64  # different ones
SIZE = (500, 375)
CLEAR = 0.02  # half precision decides between scores that are closer
_CONFIG = """
backend: "pytorch"
max_batch_size: {batch}
dynamic_batching {{ max_queue_delay_microseconds: 2000 preferred_batch_size: [ {batch} ] }}
input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] }}
instance_group [ {{ kind: {kind} count: {count} }} ]
parameters {{ key: "task" value {{ string_value: "image-classification" }} }}
{more}
"""
_HALF = """
parameters { key: "HALF_PRECISION" value { string_value: "fp16" } }
parameters { key: "CHANNELS_LAST" value { string_value: "1" } }
"""


def photo(number: int) -> Image.Image:
    """Shapes on a gradient, with noise; different for each number."""
    random = np.random.default_rng(number)
    width, height = SIZE
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    ends = random.uniform(0, 220, (4, 3))
    pixels = sum(
        (weight * np.ones((height, width)))[:, :, None] * colour
        for weight, colour in zip(
            ((1 - across) * (1 - down), across * (1 - down), (1 - across) * down, across * down),
            ends,
            strict=True,
        )
    )
    image = Image.fromarray(np.asarray(pixels).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = random.integers(0, width - 40), random.integers(0, height - 40)
        box = [int(x), int(y), int(x + random.integers(20, 160)), int(y + random.integers(20, 160))]
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        (draw.ellipse if random.integers(2) else draw.rectangle)(box, fill=colour)
    noise = random.integers(-40, 41, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: Any) -> bytes:
    """As a JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 91, **options})
    return file.getvalue()


def resnet(device: str) -> Any:
    """ResNet-50 with random weights that tells the photos of this benchmark apart; without a GPU,
    one layer."""
    torch.manual_seed(0)
    if device == "cuda":
        import torchvision

        network = torchvision.models.resnet50(weights=None).eval()
    else:
        network = torch.nn.Sequential(torch.nn.AvgPool2d(32), torch.nn.Flatten())
        network.add_module("fc", torch.nn.Linear(147, 1000))
    resized = [np.asarray(photo(number).resize((224, 224))) for number in range(PHOTOS)]
    rows = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    rows = (rows - mean[:, None, None]) / deviation[:, None, None]
    classify, network.fc = network.fc, torch.nn.Identity()
    with torch.no_grad():
        # Without training all photos have nearly the same features: rank by what is different.
        features = network.to(device)(rows.to(device)).cpu()
        centered = features - features.mean(0)
        classify.weight *= 4 / (centered @ classify.weight.T).std()
        classify.bias.copy_(-classify.weight @ features.mean(0))
    network.fc = classify
    return network.to(device)


def write(folder: Path, asked: argparse.Namespace) -> None:
    """Two models of one network: `photos`, and `cpu`, for which photos are prepared on the CPU."""
    network = resnet(asked.device)
    example = torch.zeros(2, 3, 224, 224, device=asked.device)
    with quiet, torch.no_grad():
        traced = torch.jit.trace(network, example)
    for name, count, task in (("photos", asked.instances, {}), ("cpu", 1, {"decoder": "pillow"})):
        version = folder / name / "1"
        version.mkdir(parents=True)
        traced.save(str(version / "model.pt"))
        more = _HALF if asked.device == "cuda" else ""
        config = _CONFIG.format(
            kind=asked.kind, count=count, batch=asked.batch, more=more + asked.more
        )
        (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
        (version.parent / "task.json").write_text(json.dumps(task), encoding="utf-8")


def classified(port: int, model: str, file: bytes) -> list[dict[str, Any]]:
    """The labels of one photo."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    path = f"/v2/models/{model}/classify"
    connection.request("POST", path, file, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.status != 200:
        raise SystemExit(f"{path}: status {response.status}: {content[:300]!r}")
    labels: list[dict[str, Any]] = json.loads(content)["images"][0]["labels"]
    return labels


def compared(port: int, files: Sequence[bytes]) -> tuple[dict[bytes, str], str]:
    """The photos with a clear best label, prepared on the CPU, and how much the GPU's answers
    differ."""
    labels: dict[bytes, str] = {}
    differences, other = [], 0
    for file in files:
        expected, found = classified(port, "cpu", file), classified(port, "photos", file)
        if expected[0]["score"] - expected[1]["score"] > CLEAR:
            labels[file] = expected[0]["label"]
        other += expected[0]["label"] != found[0]["label"]
        scores = {one["label"]: one["score"] for one in found}
        differences.append(abs(expected[0]["score"] - scores.get(expected[0]["label"], 0.0)))
    text = (
        f"{len(files)} photos prepared on the CPU and on the GPU: {other} with another best label, "
        f"scores differ by {max(differences):.4f} at most. {len(labels)} of them are sent, whose "
        f"best score is {CLEAR} above the next."
    )
    return labels, text


def photos(asked: argparse.Namespace) -> list[str]:
    """ResNet-50: photos of 100 KB to labels."""
    from benchmarks.gpu import gpu_busy

    lines = [
        "| front ends | connections | photos | photos/s | p50, ms | p99, ms | CPU µs | GPU busy |",
        "|---:" * 8 + "|",
    ]
    notes = []
    files = [encoded(photo(number)) for number in range(PHOTOS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "models", asked)
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        for ends in asked.frontends:
            with serve(str(folder / "models"), f"--frontend-processes={ends}") as server:
                labels, text = compared(server.http_port, files)
                notes.append(text)
                print(text, flush=True)
                sent = requests(folder, server.http_port, labels)
                checked.run(server.http_port, CONNECTIONS, 2, sent)
                before, counted = cpu_of_each(server), statistics_of(server)
                with gpu_busy() as samples:
                    load, wrong = checked.run(
                        *(server.http_port, CONNECTIONS),
                        *(3600 if asked.photos else asked.seconds, sent, asked.photos),
                    )
                used = [now - then for now, then in zip(cpu_of_each(server), before, strict=True)]
                used_us = sum(used) / max(1, load.requests) * 1e6
                busy = f"{statistics.mean(samples):.0%}" if samples else ""
                rates = (
                    f"{load.per_second:,.0f} | {load.p50_us / 1000:.2f} | {load.p99_us / 1000:.2f}"
                )
                counts = f"| {ends} | {CONNECTIONS} | {load.requests:,}"
                lines.append(f"{counts} | {rates} | {used_us:.0f} | {busy} |")
                text = times(counted, statistics_of(server))
                cores = ", ".join(f"{secs / load.seconds:.2f}" for secs in used if secs)
                text += f" Cores in use, by process: {cores}."
                print(lines[-1], load.errors or "", wrong[:400], text, flush=True)
                if load.errors:
                    notes.append(f"Not answered as expected: {load.errors}")
                notes.append(text)
    size = statistics.mean(map(len, files)) / 1000
    title = f"**Photos of {SIZE[0]} x {SIZE[1]}, {size:.0f} KB, ResNet-50 FP16, best 5 labels**"
    return [title, "", *lines, "", *notes, ""]


def requests(folder: Path, port: int, labels: Mapping[bytes, str]) -> list[tuple[Path, str]]:
    """Files with whole requests, and what their answers must contain."""
    sent = []
    for number, (file, label) in enumerate(labels.items()):
        head = (
            f"POST /v2/models/photos/classify HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: image/jpeg\r\nContent-Length: {len(file)}\r\n\r\n"
        )
        path = folder / f"request-{number}"
        path.write_bytes(head.encode() + file)
        sent.append((path, f'"labels":[{{"label":"{label}",'))
    return sent


def statistics_of(server: Server) -> dict[str, Any]:
    """The model's statistics."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", "/v2/models/photos/stats")
    found: dict[str, Any] = json.loads(connection.getresponse().read())["model_stats"][0]
    connection.close()
    return found


def times(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """How many photos a batch had, and how long one was in the queue and in the model."""

    def ms(kind: str) -> float:
        one, other = (stats["inference_stats"][kind] for stats in (before, after))
        return float(other["ns"] - one["ns"]) / max(1, other["count"] - one["count"]) / 1e6

    batches = after["execution_count"] - before["execution_count"]
    mean = (after["inference_count"] - before["inference_count"]) / max(1, batches)
    return (
        f"Photos in a batch, on average: {mean:.1f}. Of a photo's time in the model's process, "
        f"{ms('queue'):.1f} ms were in its queue and {ms('compute_infer'):.1f} ms in an instance."
    )


def cpu_of_each(server: Server) -> list[float]:
    """User and system time of each of its processes so far."""
    return [one.user + one.system for one in (own.cpu_times() for own in server.family())]

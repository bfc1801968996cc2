"""Captions per second, with the token loop in the client and on the server.

    python -m benchmarks.captions [--clients 8] [--captions 40] [--turns 3] [--name captions]

A BLIP with random weights is exported twice from one checkpoint: as one file that is called once
for each token (`pixel_values`, `input_ids`, `attention_mask` -> `logits`), and as encoder and
decoder with past states. One server from this tree has both. Four methods are measured alternately:

- the client's loop: prepare the photo, infer, take the likeliest token, append it, and again, with
  tritonclient over gRPC and the config that was possible without server-side generation;
- the same with `padding`, so that steps of different lengths share batches;
- the server's loop around that file (`…/caption`);
- the server's loop with past states and continuous batching (`…/caption`).

All captions have the same number of tokens and every one is compared with the one that
transformers generates. Prints a table with the machine and the commit; with --name writes it to
benchmarks/results/, too. Fails if the last method is less than three times as fast as the first.
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.places import RESULTS
from benchmarks.serving import Server, serve

BAR = 3.0  # times the client's loop
PHOTOS = 8
START, STOP = 2, 3  # tokens
CLIENT, PADDED = "the client's loop", "the client's loop, `padding`"
ANEW, STATES = "the server's loop, same file", "the server's loop, past states"

PLAIN = """\
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  {{ name: "pixel_values" data_type: TYPE_FP32 dims: [ 3, {side}, {side} ] }},
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}
]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ -1, {vocabulary} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


@dataclass(frozen=True)
class Task:
    """The input and the expected tokens, for all methods."""

    side: int
    vocabulary: int
    tokens: int
    photos: list[bytes]
    expected: list[list[int]]  # the tokens of each caption


def make(folder: Path, tokens: int) -> Task:
    """Write the models to `folder`; the task with its expected captions."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(1)
    from shoal.export.exporting import export
    from shoal.export.writing import ExportOptions
    from tests.support.text_generators import BlipSize, blip_checkpoint

    size = BlipSize(
        image=224,
        patch=16,
        vision_width=384,
        vision_layers=6,
        width=384,
        layers=6,
        heads=6,
        positions=128,
        vocabulary=30524,
        gain=0.4,
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        model = blip_checkpoint(Path(checkpoint), size)
        export(checkpoint, folder / "captions")
        export(checkpoint, folder / "single", options=ExportOptions(single_file=True))
    plain = folder / "plain" / "1"
    plain.mkdir(parents=True)
    (plain / "model.onnx").hardlink_to(folder / "single" / "1" / "model.onnx")
    config = PLAIN.format(side=size.image, vocabulary=size.vocabulary)
    (plain.parent / "config.pbtxt").write_text(config)
    photos = make_photos()
    expected: list[list[int]] = []
    with torch.no_grad():
        for photo in photos:
            pixels = torch.from_numpy(prepare(photo, size.image))
            found = model.generate(
                pixels, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False
            )
            expected.append(found[0].tolist()[1:])
    return Task(size.image, size.vocabulary, tokens, photos, expected)


def make_photos() -> list[bytes]:
    """JPEG files of 640 x 480 pixels with soft random colours."""
    from PIL import Image

    random = np.random.default_rng(5)
    made = []
    for _ in range(PHOTOS):
        small = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8))
        file = io.BytesIO()
        small.resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
        made.append(file.getvalue())
    return made


def prepare(photo: bytes, side: int) -> np.ndarray:
    """The input tensor for a photo, prepared as its checkpoint says: [1, 3, side, side]."""
    from shoal.core import dtypes
    from shoal.tasks.images.preparation import ImagePreparation
    from shoal.tasks.settings import TaskSettings

    settings = TaskSettings(
        {
            "crop": "none",
            "interpolation": "bicubic",
            "scale": "1/255",
            "mean": 0.5,
            "std": 0.25,
        },
        Path(),
    )
    return ImagePreparation.of(settings, (3, side, side), dtypes.FP32)(photo)[None]


Ask = Callable[[int], None]  # one caption, of the photo with that number; raises if it is wrong


def clients_loop(server: Server, task: Task, model: str) -> Ask:
    """One client of the first two methods."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")

    def tensor(name: str, array: np.ndarray, datatype: str) -> Any:
        made = triton.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array)
        return made

    def ask(number: int) -> None:
        pixels = tensor("pixel_values", prepare(task.photos[number], task.side), "FP32")
        ids = [START]
        for _ in range(task.tokens):
            row = np.array([ids], np.int64)
            inputs = [
                pixels,
                tensor("input_ids", row, "INT64"),
                tensor("attention_mask", np.ones_like(row), "INT64"),
            ]
            logits = client.infer(model, inputs).as_numpy("logits")[0, -1].copy()
            if len(ids) <= task.tokens:
                logits[STOP] = -np.inf  # all captions are equally long
            ids.append(int(logits.argmax()))
        check(ids[1:], task, number)

    return ask


def servers_loop(server: Server, task: Task, model: str) -> Ask:
    """One client of the other two methods."""
    from tokenizers import Tokenizer

    from tests.support.text_generators import word_tokenizer

    tokenizer: Tokenizer = word_tokenizer(task.vocabulary)
    texts = [tokenizer.decode(ids).strip() for ids in task.expected]
    connection = http.client.HTTPConnection(server.address)
    path = f"/v2/models/{model}/caption?max_tokens={task.tokens}&min_tokens={task.tokens}"

    def ask(number: int) -> None:
        connection.request("POST", path, task.photos[number], {"Content-Type": "image/jpeg"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(str(answer))
        if answer["captions"][0]["caption"] != texts[number]:
            raise SystemExit(f"{model}: the caption of photo {number} is wrong: {answer}")

    return ask


def check(ids: Sequence[int], task: Task, number: int) -> None:
    """Raise SystemExit for tokens that transformers did not generate."""
    if list(ids) != task.expected[number]:
        raise SystemExit(f"the caption of photo {number} is {ids}, not {task.expected[number]}")


WAYS: dict[str, Callable[[Server, Task], Ask]] = {
    CLIENT: lambda server, task: clients_loop(server, task, "plain"),
    PADDED: lambda server, task: clients_loop(server, task, "single"),
    ANEW: lambda server, task: servers_loop(server, task, "single"),
    STATES: lambda server, task: servers_loop(server, task, "captions"),
}


def rate(clients: Sequence[Ask], captions: int) -> float:
    """Captions per second; each client sends the next request when it has its response."""
    numbers = iter(range(captions))

    def work(ask: Ask) -> None:
        for number in numbers:
            ask(number % PHOTOS)

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(work, clients))
    return captions / (time.perf_counter() - begun)


def report(
    found: dict[str, list[float]], used: dict[str, list[float]], asked: argparse.Namespace
) -> list[str]:
    """Medians over the rounds; ratios are those within a round."""
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    lines = [
        (
            f"Captions of {asked.tokens} tokens, {asked.clients} clients, a BLIP of 6 + 6 layers "
            f"of width 384 with 30,524 words for photos of 224 x 224 pixels: {machine}"
        ),
        "",
        "| | captions/s | against the client's loop | server CPU ms a caption | turns |",
        "|---|---:|---:|---:|---|",
    ]
    for way, figures in found.items():
        ratio = median_ratio(figures, found[CLIENT])
        turns = " ".join(f"{figure:.2f}" for figure in figures)
        lines.append(
            f"| {way} | {statistics.median(figures):.2f} | {ratio:.1f} x "
            f"| {statistics.median(used[way]):.0f} | {turns} |"
        )
    return lines


def median_ratio(figures: Sequence[float], others: Sequence[float]) -> float:
    """The median of the speed-ups within a round."""
    return statistics.median(one / other for one, other in zip(figures, others, strict=True))


def main(words: Sequence[str] | None = None) -> None:
    """Measure the methods alternately, print the medians and check the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--captions", type=int, default=40, help="per round and method")
    parser.add_argument("--tokens", type=int, default=12, help="per caption")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--name", default="", help="write the table to benchmarks/results/NAME.md")
    asked = parser.parse_args(words)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    used: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        task = make(Path(folder) / "models", asked.tokens)
        with serve(str(Path(folder) / "models"), grpc=True) as server:
            clients = {
                way: [make_client(server, task) for _ in range(asked.clients)]
                for way, make_client in WAYS.items()
            }
            for way in WAYS:  # they have never run yet
                rate(clients[way], asked.clients)
            for turn, way in itertools.product(range(asked.turns), WAYS):
                before = server.cpu_secs()
                figure = rate(clients[way], asked.captions)
                found[way].append(figure)
                used[way].append((server.cpu_secs() - before) / asked.captions * 1e3)
                print(f"  turn {turn + 1}, {way}: {figure:.2f}/s", file=sys.stderr, flush=True)
    lines = report(found, used, asked)
    print("\n".join(lines))
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text("\n".join(lines) + "\n")
    if median_ratio(found[STATES], found[CLIENT]) < BAR:
        raise SystemExit(f"the server's loop is less than {BAR:g} times as fast as the client's")


if __name__ == "__main__":
    main()

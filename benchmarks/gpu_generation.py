"""Captions per second of a BLIP of the base size on a GPU, beside transformers' `generate`.

    python -m benchmarks.gpu_generation [--seconds 5] [--frontends 1,4] [--name gpu_generation]

Needs PyTorch with CUDA, transformers, Pillow, wrk and what `shoal export` needs. The model has the
size of blip-image-captioning-base and random weights; every caption has the same number of tokens.

- transformers: one photo after the other, from the bytes of a JPEG to the text, as a server without
  batches would; and `generate` for 64 prepared photos at once;
- `shoal serve`: `…/caption` with JPEGs from wrk, over 1, 16 and 64 connections.

Both compute in FP16. Captions of the server are compared with those of transformers: in half
precision, some may differ. With --name the table is written to benchmarks/results/, too.
`--device cpu --quick` checks this program without a GPU.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.captions import make_photos, prepare
from benchmarks.gpu import gpu_busy
from benchmarks.loads import program, wrk
from benchmarks.machine import describe
from benchmarks.measures import Load
from benchmarks.places import RESULTS, WORK
from benchmarks.serving import Server, serve

CONNECTIONS = (1, 16, 64)
BATCH = 64
WARM_UP_SECS = 2
GOAL = 10.0  # times transformers, with 64 clients

CONFIG = """\
instance_group [ {{ kind: {kind} }} ]
parameters {{ key: "HALF_PRECISION" value: {{ string_value: "{half}" }} }}
{more}
"""


def make(folder: Path, asked: argparse.Namespace) -> Any:
    """Write the model's folder; the same model of transformers, where it is to run."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from shoal.export.exporting import export
    from shoal.export.writing import ExportOptions
    from tests.support.text_generators import BlipSize, blip_checkpoint

    base = BlipSize(
        image=384,
        patch=16,
        vision_width=768,
        vision_layers=12,
        width=768,
        layers=12,
        heads=12,
        inner=4,
        positions=512,
        vocabulary=30524,
        gain=0.1,
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        model = blip_checkpoint(Path(checkpoint), BlipSize() if asked.quick else base)
        export(checkpoint, folder / "captions", options=ExportOptions(max_sequences=BATCH))
    with (folder / "captions" / "config.pbtxt").open("a") as file:
        file.write(CONFIG.format(kind=asked.kind, half=asked.half, more=asked.more))
    dtype = torch.float16 if asked.device == "cuda" else torch.float32
    return model.to(asked.device, dtype)


def generated(model: Any, photos: Sequence[bytes], tokens: int) -> list[list[int]]:
    """The tokens of each photo, generated together."""
    side = model.config.vision_config.image_size
    pixels = np.concatenate([prepare(photo, side) for photo in photos])
    return tokens_of(model, torch.from_numpy(pixels), tokens)


def tokens_of(model: Any, pixels: torch.Tensor, tokens: int) -> list[list[int]]:
    """The tokens for prepared photos."""
    given = pixels.to(model.device, model.dtype)
    with torch.inference_mode():
        found = model.generate(given, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)
    return [row[1:] for row in found.tolist()]


def rate(work: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Captions per second, and the median milliseconds of a call; `work` returns how many."""
    work()
    count, took = 0, []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        count += work()
        took.append(time.perf_counter() - start)
    return count / (time.perf_counter() - begun), statistics.median(took) * 1000


def plain(
    model: Any, photos: Sequence[bytes], asked: argparse.Namespace
) -> tuple[float, list[str], list[str]]:
    """Captions per second of transformers one by one, its captions, and the rows of the table."""
    from tests.support.text_generators import word_tokenizer

    tokenizer = word_tokenizer(model.config.text_config.vocab_size)
    texts = [
        tokenizer.decode(generated(model, [photo], asked.tokens)[0]).strip() for photo in photos
    ]
    turns = itertools.cycle(photos)

    def one() -> int:
        tokenizer.decode(generated(model, [next(turns)], asked.tokens)[0])
        return 1

    alone, alone_ms = rate(one, asked.seconds)
    side = model.config.vision_config.image_size
    many = itertools.islice(turns, BATCH)
    pixels = torch.from_numpy(np.concatenate([prepare(photo, side) for photo in many]))
    together, together_ms = rate(lambda: len(tokens_of(model, pixels, asked.tokens)), asked.seconds)
    at_once = f"transformers, {BATCH} prepared photos at a time"
    rows = [
        f"| transformers, one photo at a time | 1 | {alone:,.1f} | {alone_ms:.1f} | | | 1 | |",
        f"| {at_once} | | {together:,.1f} | {together_ms:.1f} | | | {BATCH} | |",
    ]
    print("\n".join(rows), flush=True)
    return alone, texts, rows


def ask(server: Server, path: str, photo: bytes) -> dict[str, Any]:
    """The caption of a photo."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", path, photo, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{path}: {content}")
    caption: dict[str, Any] = content["captions"][0]
    return caption


def send(
    server: Server, path: str, photos: Sequence[bytes], connections: int, seconds: int
) -> Load:
    """Send the photos in turn over so many connections. Raises SystemExit for errors."""
    files = [str(program.body_file(photo, number)) for number, photo in enumerate(photos)]
    file = WORK / "gpu_generation.lua"
    file.write_text(wrk.script(files, {"Content-Type": "image/jpeg"}), encoding="utf-8")
    line = [program.find(wrk.NAME, "wrk"), "-t1", f"-c{connections}", f"-d{seconds}s"]
    line += ["--timeout", "60s", "-s", str(file), f"http://127.0.0.1:{server.http_port}{path}"]
    load = wrk.parse(program.run(line, seconds + 90))
    if load.errors:
        raise SystemExit(f"{path} with {connections} connections: {load.errors}")
    return load


def served(
    asked: argparse.Namespace, folder: Path, photos: Sequence[bytes], texts: Sequence[str]
) -> tuple[list[str], float, int]:
    """A row for each number of connections, the best rate at the most of them, and how many
    captions are those of transformers."""
    path = f"/v2/models/captions/caption?max_tokens={asked.tokens}&min_tokens={asked.tokens}"
    lines: list[str] = []
    best, same = 0.0, 0
    for ends in asked.frontends:
        with serve(str(folder), f"--frontend-processes={ends}") as server:
            found = [ask(server, path, photo) for photo in photos]
            if any(caption["tokens"] != asked.tokens for caption in found):
                raise SystemExit(f"captions should have {asked.tokens} tokens: {found}")
            captions = [caption["caption"] for caption in found]
            same = sum(one == other for one, other in zip(captions, texts, strict=True))
            for connections in asked.connections:
                send(server, path, photos, connections, min(WARM_UP_SECS, asked.seconds))
                used = server.cpu_secs()
                before = steps(server)
                with gpu_busy() as samples:
                    load = send(server, path, photos, connections, asked.seconds)
                used_ms = (server.cpu_secs() - used) / load.requests * 1000
                rows, runs = (now - then for now, then in zip(steps(server), before, strict=True))
                busy = f"{statistics.mean(samples):.0%}" if samples else ""
                lines.append(
                    f"| `shoal serve`, {ends} front end{'s' if ends > 1 else ''} | {connections} "
                    f"| {load.per_second:,.0f} | {load.p50_us / 1000:.1f} "
                    f"| {load.p99_us / 1000:.1f} | {used_ms:.1f} | {rows / max(1, runs):.1f} "
                    f"| {busy} |"
                )
                print(lines[-1], flush=True)
                if connections == max(asked.connections):
                    best = max(best, load.per_second)
    return lines, best, same


def steps(server: Server) -> tuple[int, int]:
    """Rows and runs of the decoder."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("GET", "/v2/models/captions/stats")
    stats = json.loads(connection.getresponse().read())["model_stats"][0]["generation"]["decoder"]
    return stats["row_count"], stats["execution_count"]


def main(words: Sequence[str] | None = None) -> None:
    """Measure transformers, then the server, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20, help="per caption")
    parser.add_argument("--frontends", default="1", help="numbers of front-end processes")
    parser.add_argument("--half", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--more", default="", help="added to the model's config")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small model, for a second each")
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    asked.frontends = [int(number) for number in asked.frontends.split(",")]
    asked.kind = "KIND_GPU" if asked.device == "cuda" else "KIND_CPU"
    asked.connections = CONNECTIONS
    if asked.quick:
        asked.seconds, asked.connections = 1, (1, 8)
    WORK.mkdir(parents=True, exist_ok=True)
    photos = make_photos()
    with tempfile.TemporaryDirectory() as folder:
        alone, texts, rows = plain(make(Path(folder), asked), photos, asked)
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        found, best, same = served(asked, Path(folder), photos, texts)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "no GPU"
    ends = ",".join(map(str, asked.frontends))
    command = f"python -m benchmarks.gpu_generation --seconds {asked.seconds} --frontends {ends}"
    size = f"a BLIP of the base size in {asked.half.upper()}"
    times = f"{best / alone:.0f} times as many captions as transformers one by one"
    lines = [
        f"{card}, PyTorch {torch.__version__}, {machine}; load by wrk from the same machine.",
        "",
        f"Captions of {asked.tokens} tokens for JPEGs of 640 x 480 pixels, {size}: `{command}`",
        "",
        "| | clients | captions/s | p50, ms | p99, ms | CPU ms | rows a step | GPU busy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
        *found,
        "",
        f"With {max(asked.connections)} clients the server generates {times}.",
        f"{same} of {len(texts)} captions are the same as those of transformers.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.name:
        (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")
    if asked.device == "cuda" and best < GOAL * alone:
        raise SystemExit(f"the server should be {GOAL:g} times as fast as transformers")


if __name__ == "__main__":
    main()

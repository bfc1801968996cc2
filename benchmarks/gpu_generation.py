"""Captions and texts per second on a GPU, beside transformers' `generate`.

    python -m benchmarks.gpu_generation [--workloads captions,texts] [--seconds 5]
        [--frontends 1,4] [--name gpu_generation]

Needs PyTorch with CUDA, transformers, Pillow, wrk and what `shoal export` needs. Models have random
weights and the sizes of blip-image-captioning-base and gpt2; every text has the same number of
tokens. For each of them:

- transformers: one after the other, for captions from the bytes of a JPEG to the text, as a server
  without batches would; and `generate` for 64 prepared inputs at once;
- `shoal serve`: requests from wrk, over 1, 16 and 64 connections.

Both compute in FP16. Texts of the server are compared with those of transformers: in half
precision, some may differ. With --name the tables are written to benchmarks/results/, too.
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
from dataclasses import dataclass
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
TEXT_TOKENS = 64
PROMPT_BYTES = 32  # and as many tokens

CONFIG = """\
instance_group [ {{ kind: {kind} }} ]
parameters {{ key: "HALF_PRECISION" value: {{ string_value: "{half}" }} }}
{more}
"""


@dataclass(frozen=True)
class Workload:
    """One model, its requests, and the same done by transformers."""

    unit: str  # what a response is
    title: str
    path: str
    content_type: str
    bodies: list[bytes]
    tokens: int  # of each response
    one: Callable[[int], str]  # the text for the request with this number, by transformers
    many: Callable[[], int]  # generates BATCH of them, prepared before
    read: Callable[[dict[str, Any]], tuple[str, int]]  # text and tokens of a response

    @property
    def model(self) -> str:
        """Its name on the server."""
        return self.path.split("/")[3]


def captions(asked: argparse.Namespace, folder: Path) -> Workload:
    """A BLIP of the base size that describes JPEGs of 640 x 480 pixels."""
    from tests.support.text_generators import BlipSize, blip_checkpoint, word_tokenizer

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
    size = BlipSize() if asked.quick else base
    model = exported(asked, folder / "captions", lambda path: blip_checkpoint(path, size))
    tokenizer = word_tokenizer(model.config.text_config.vocab_size)
    photos, tokens = make_photos(), asked.tokens

    def generate(pixels: torch.Tensor) -> list[list[int]]:
        given = pixels.to(model.device, model.dtype)
        return [row[1:] for row in generated(model, given, tokens)]

    def one(number: int) -> str:
        pixels = torch.from_numpy(prepare(photos[number], size.image))
        text: str = tokenizer.decode(generate(pixels)[0])
        return text.strip()

    prepared = [prepare(photo, size.image) for photo in photos]
    batch = torch.from_numpy(np.concatenate((prepared * BATCH)[:BATCH]))

    def read(response: dict[str, Any]) -> tuple[str, int]:
        caption = response["captions"][0]
        return caption["caption"], caption["tokens"]

    return Workload(
        "captions",
        f"Captions of {tokens} tokens for JPEGs of 640 x 480 pixels, a BLIP of the base size",
        f"/v2/models/captions/caption?max_tokens={tokens}&min_tokens={tokens}",
        "image/jpeg",
        photos,
        tokens,
        one,
        lambda: len(generate(batch)),
        read,
    )


def texts(asked: argparse.Namespace, folder: Path) -> Workload:
    """A GPT-2 of the smallest size that continues prompts."""
    from tests.support.text_generators import byte_tokenizer, gpt2_checkpoint

    size = {} if asked.quick else {"n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    scale = 8.0 if asked.quick else 2.0
    vocabulary = 0 if asked.quick else 50257
    model = exported(
        asked,
        folder / "texts",
        lambda path: gpt2_checkpoint(path, vocabulary=vocabulary, scale=scale, **size),
    )
    tokenizer = byte_tokenizer()
    random = np.random.default_rng(1)
    prompts = ["".join(map(chr, random.integers(97, 123, PROMPT_BYTES))) for _ in range(8)]
    ids = torch.tensor([tokenizer.encode(prompt).ids for prompt in prompts])

    def generate(given: torch.Tensor) -> list[list[int]]:
        found = generated(model, given.to(model.device), TEXT_TOKENS, pad_token_id=0)
        return [row[given.shape[1] :] for row in found]

    batch = ids.repeat(BATCH // len(ids), 1)
    options = {"max_tokens": TEXT_TOKENS, "min_tokens": TEXT_TOKENS}

    def read(response: dict[str, Any]) -> tuple[str, int]:
        tokens = response["token_ids"]
        return tokenizer.decode(tokens), len(tokens)

    return Workload(
        "texts",
        f"Texts of {TEXT_TOKENS} tokens after prompts of {PROMPT_BYTES}, a GPT-2 of 124 million "
        "parameters",
        "/v2/models/texts/generate",
        "application/json",
        [json.dumps({"text_input": prompt, **options}).encode() for prompt in prompts],
        TEXT_TOKENS,
        lambda number: tokenizer.decode(generate(ids[number : number + 1])[0]),
        lambda: len(generate(batch)),
        read,
    )


WORKLOADS = {"captions": captions, "texts": texts}


def exported(asked: argparse.Namespace, folder: Path, make: Callable[[Path], Any]) -> Any:
    """Write the model's folder; the same model of transformers, where it is to run."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from shoal.export.exporting import export
    from shoal.export.writing import ExportOptions

    with tempfile.TemporaryDirectory() as checkpoint:
        model = make(Path(checkpoint))
        export(checkpoint, folder, options=ExportOptions(max_sequences=BATCH))
    with (folder / "config.pbtxt").open("a") as file:
        file.write(CONFIG.format(kind=asked.kind, half=asked.half, more=asked.more))
    return model.to(asked.device, torch.float16 if asked.device == "cuda" else torch.float32)


def generated(model: Any, given: torch.Tensor, tokens: int, **more: Any) -> list[list[int]]:
    """What transformers generates, with the tokens that it was given."""
    with torch.inference_mode():
        found = model.generate(
            given, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False, **more
        )
    rows: list[list[int]] = found.tolist()
    return rows


def rate(work: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Texts per second, and the median milliseconds of a call; `work` returns how many."""
    work()
    count, took = 0, []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        count += work()
        took.append(time.perf_counter() - start)
    return count / (time.perf_counter() - begun), statistics.median(took) * 1000


def plain(work: Workload, asked: argparse.Namespace) -> tuple[float, list[str], list[str]]:
    """Texts per second of transformers one by one, its texts, and the rows of the table."""
    expected = [work.one(number) for number in range(len(work.bodies))]
    turns = itertools.cycle(range(len(work.bodies)))
    alone, alone_ms = rate(lambda: len([work.one(next(turns))]), asked.seconds)
    together, together_ms = rate(work.many, asked.seconds)
    at_once = f"transformers, {BATCH} prepared inputs at a time"
    rows = [
        f"| transformers, one at a time | 1 | {alone:,.1f} | {alone_ms:.1f} | | | 1 | |",
        f"| {at_once} | | {together:,.1f} | {together_ms:.1f} | | | {BATCH} | |",
    ]
    print("\n".join(rows), flush=True)
    return alone, expected, rows


def call(server: Server, method: str, path: str, body: bytes = b"", content_type: str = "") -> Any:
    """The JSON of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request(method, path, body, {"Content-Type": content_type} if content_type else {})
    response = connection.getresponse()
    content = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{path}: {content}")
    return content


def send(server: Server, work: Workload, connections: int, seconds: int) -> Load:
    """Send the requests in turn over that number of connections. Raises SystemExit for errors."""
    files = [str(program.body_file(body, number)) for number, body in enumerate(work.bodies)]
    file = WORK / "gpu_generation.lua"
    file.write_text(wrk.script(files, {"Content-Type": work.content_type}), encoding="utf-8")
    line = [program.find(wrk.NAME, "wrk"), "-t1", f"-c{connections}", f"-d{seconds}s"]
    address = f"http://127.0.0.1:{server.http_port}{work.path}"
    load = wrk.parse(program.run([*line, "--timeout", "60s", "-s", str(file), address], 90))
    if load.errors:
        raise SystemExit(f"{work.path} with {connections} connections: {load.errors}")
    return load


def served(
    work: Workload, asked: argparse.Namespace, folder: Path, expected: Sequence[str]
) -> tuple[list[str], float, int]:
    """A row for each number of connections, the best rate at the most of them, and how many texts
    are those of transformers."""
    lines: list[str] = []
    best, same = 0.0, 0
    for ends in asked.frontends:
        with serve(str(folder), f"--frontend-processes={ends}") as server:
            found = [
                work.read(call(server, "POST", work.path, body, work.content_type))
                for body in work.bodies
            ]
            if any(tokens != work.tokens for _, tokens in found):
                raise SystemExit(f"{work.unit} should have {work.tokens} tokens: {found}")
            same = sum(text == other for (text, _), other in zip(found, expected, strict=True))
            for connections in asked.connections:
                lines.append(measured(server, work, connections, ends, asked.seconds))
                print(lines[-1], flush=True)
                if connections == max(asked.connections):
                    best = max(best, float(lines[-1].split("|")[3].replace(",", "")))
    return lines, best, same


def measured(server: Server, work: Workload, connections: int, ends: int, seconds: int) -> str:
    """One row of the table."""
    send(server, work, connections, min(WARM_UP_SECS, seconds))
    used, before = server.cpu_secs(), steps(server, work.model)
    with gpu_busy() as samples:
        load = send(server, work, connections, seconds)
    used_ms = (server.cpu_secs() - used) / load.requests * 1000
    rows, runs = (now - then for now, then in zip(steps(server, work.model), before, strict=True))
    busy = f"{statistics.mean(samples):.0%}" if samples else ""
    return (
        f"| `shoal serve`, {ends} front end{'s' if ends > 1 else ''} | {connections} "
        f"| {load.per_second:,.0f} | {load.p50_us / 1000:.1f} | {load.p99_us / 1000:.1f} "
        f"| {used_ms:.1f} | {rows / max(1, runs):.1f} | {busy} |"
    )


def steps(server: Server, model: str) -> tuple[int, int]:
    """Rows and runs of the decoder."""
    stats = call(server, "GET", f"/v2/models/{model}/stats")["model_stats"][0]
    found = stats["generation"]["decoder"]
    return found["row_count"], found["execution_count"]


def table(name: str, asked: argparse.Namespace) -> tuple[list[str], bool]:
    """The lines about one workload, and whether the server is fast enough."""
    with tempfile.TemporaryDirectory() as folder:
        work = WORKLOADS[name](asked, Path(folder))
        alone, expected, rows = plain(work, asked)
        found, best, same = served(work, asked, Path(folder), expected)
    times = f"{best / alone:.0f} times as many {work.unit} as transformers one by one"
    lines = [
        f"{work.title}, in {asked.half.upper()}:",
        "",
        f"| | clients | {work.unit}/s | p50, ms | p99, ms | CPU ms | rows a step | GPU busy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
        *found,
        "",
        f"With {max(asked.connections)} clients the server generates {times}.",
        f"{same} of {len(expected)} {work.unit} are those of transformers.",
        "",
    ]
    return lines, best >= GOAL * alone


def main(words: Sequence[str] | None = None) -> None:
    """Measure transformers, then the server, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"of {list(WORKLOADS)}")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20, help="per caption")
    parser.add_argument("--frontends", default="1", help="numbers of front-end processes")
    parser.add_argument("--half", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--more", default="", help="added to the config of the models")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small model, for a second each")
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    asked = parser.parse_args(words)
    command = f"python -m benchmarks.gpu_generation --seconds {asked.seconds}"
    command += f" --workloads {asked.workloads} --frontends {asked.frontends}"
    asked.frontends = [int(number) for number in asked.frontends.split(",")]
    asked.kind = "KIND_GPU" if asked.device == "cuda" else "KIND_CPU"
    asked.connections = CONNECTIONS
    if asked.quick:
        asked.seconds, asked.connections = 1, (1, 8)
    WORK.mkdir(parents=True, exist_ok=True)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "no GPU"
    head = f"{card}, PyTorch {torch.__version__}, {machine}; load by wrk from the same machine."
    lines, slow = [head, "", f"`{command}`", ""], []
    for name in asked.workloads.split(","):
        found, fast_enough = table(name, asked)
        lines += found
        if not fast_enough:
            slow.append(name)
        if asked.device == "cuda":
            torch.cuda.empty_cache()
        if asked.name:
            (RESULTS / f"{asked.name}.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    if asked.device == "cuda" and slow:
        raise SystemExit(f"{slow}: should be {GOAL:g} times as fast as transformers")


if __name__ == "__main__":
    main()

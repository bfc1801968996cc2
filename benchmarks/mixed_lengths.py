"""How much padding and batching by shape speed up texts of different lengths.

    python -m benchmarks.mixed_lengths [--requests 2000] [--shortest 3 --longest 10] [--turns 3]
    python -m benchmarks.mixed_lengths --backend pytorch --device gpu --shortest 8 --longest 128

One server from this tree has the same text encoder several times: plain, padded, batched by shape,
and both. They are measured alternately under the same load, an asyncio client that sends token ids
of random length from a fixed seed, short texts (search queries) by default. Every response is
compared with the one of the runtime for that text alone. Prints a table with the machine and the
commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import models
from benchmarks.load_check import read_response
from benchmarks.machine import describe
from benchmarks.serving import serve

TEXTS = 256  # different ones
TOLERANCE = 1e-3
FORMS: dict[str, dict[str, str]] = {
    "plain": {},
    "padding": {"padding": "true"},
    "batch_by_shape": {"batch_by_shape": "true"},
    "both": {"padding": "true", "batch_by_shape": "true"},
}
CONFIG = "max_batch_size: %d\ndynamic_batching { }\ninstance_group { kind: KIND_%s }\n"
PARAMETER = 'parameters { key: "%s" value: { string_value: "%s" } }\n'


def texts(shortest: int, longest: int) -> list[np.ndarray]:
    """Token ids of texts whose lengths are spread evenly, in random order."""
    random = np.random.default_rng(models.SEED)
    lengths = random.integers(shortest, longest, TEXTS, endpoint=True)
    return [random.integers(0, models.VOCABULARY, (1, length)) for length in lengths]


def right_answers(file: Path, asked: Sequence[np.ndarray], device: str) -> list[np.ndarray]:
    """The output of the model for each text alone."""
    if file.suffix == ".pt":
        from benchmarks import torch_text

        return torch_text.answers(asked, device)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return [
        session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        for ids in asked
    ]


def request_bytes(model: str, ids: np.ndarray) -> bytes:
    """A binary infer request for one text."""
    tensor = {
        "datatype": "INT64",
        "shape": list(ids.shape),
        "parameters": {"binary_data_size": ids.nbytes},
    }
    names = ("input_ids", "attention_mask")
    header = json.dumps(
        {
            "inputs": [{"name": name, **tensor} for name in names],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = header + ids.tobytes() + np.ones_like(ids).tobytes()
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def converse(
    port: int, numbers: Iterator[int], asked: Sequence[bytes], right: Sequence[np.ndarray]
) -> None:
    """One connection: sends each text and checks the response, until none is left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        writer.write(asked[number % TEXTS])
        status, header_length, body = await read_response(reader)
        if status != 200:
            raise SystemExit(body.decode(errors="replace"))
        answer = np.frombuffer(body[header_length:], np.float32)
        if not np.allclose(answer, right[number % TEXTS], atol=TOLERANCE):
            raise SystemExit(f"text {number % TEXTS}: the answer is wrong")
    writer.close()
    await writer.wait_closed()


async def load(
    port: int,
    connections: int,
    requests: int,
    asked: Sequence[bytes],
    right: Sequence[np.ndarray],
) -> float:
    """Requests a second."""
    numbers = iter(range(requests))  # shared: each connection takes what is next
    begun = time.perf_counter()
    await asyncio.gather(*(converse(port, numbers, asked, right) for _ in range(connections)))
    return requests / (time.perf_counter() - begun)


def repository(folder: Path, max_batch_size: int, backend: str, device: str) -> Path:
    """Write the encoder with every config; the path of its file."""
    made = folder / "made"
    made.mkdir()
    more = ""
    if backend == "pytorch":
        from benchmarks import torch_text

        file, more = made / "model.pt", torch_text.CONFIG
        torch_text.write(file)
    else:
        file = models.make("text", made).rename(made / "model.onnx")
    for form, parameters in FORMS.items():
        version = folder / "models" / form / "1"
        version.mkdir(parents=True)
        (version / file.name).hardlink_to(file)
        config = CONFIG % (max_batch_size, device.upper()) + more
        config += "".join(PARAMETER % entry for entry in parameters.items())
        (version.parent / "config.pbtxt").write_text(config)
    return file


def main(words: Sequence[str] | None = None) -> None:
    """Measure the configs alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="in each turn")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shortest", type=int, default=3, help="tokens")
    parser.add_argument("--longest", type=int, default=10, help="tokens")
    parser.add_argument("--max-batch-size", type=int, default=32)
    parser.add_argument("--backend", choices=("onnxruntime", "pytorch"), default="onnxruntime")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    asked = parser.parse_args(words)
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    used: dict[str, list[float]] = {form: [] for form in FORMS}
    wanted = texts(asked.shortest, asked.longest)
    with tempfile.TemporaryDirectory() as folder:
        file = repository(Path(folder), asked.max_batch_size, asked.backend, asked.device)
        right = right_answers(file, wanted, asked.device)
        requests = {form: [request_bytes(form, ids) for ids in wanted] for form in FORMS}
        with serve(str(Path(folder) / "models")) as server:
            port, many = server.http_port, asked.connections
            for form in FORMS:  # they have never run yet
                asyncio.run(load(port, many, 4 * many, requests[form], right))
            for _ in range(asked.turns):
                for form in FORMS:
                    before = server.cpu_secs()
                    turn = load(port, many, asked.requests, requests[form], right)
                    found[form].append(asyncio.run(turn))
                    used[form].append((server.cpu_secs() - before) / asked.requests * 1e3)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print(
        f"{asked.backend} on {asked.device}, {asked.shortest} to {asked.longest} tokens, "
        f"{asked.connections} connections"
    )
    print("| form | requests/s | against plain | server CPU ms a request | turns |")
    print("|---|---:|---:|---:|---|")
    for form, figures in found.items():
        ratio = statistics.median(
            rate / plain for rate, plain in zip(figures, found["plain"], strict=True)
        )
        turns = " ".join(f"{figure:.0f}" for figure in figures)
        rate, busy = statistics.median(figures), statistics.median(used[form])
        print(f"| {form} | {rate:.0f} | {ratio:.2f} | {busy:.2f} | {turns} |")


if __name__ == "__main__":
    main()

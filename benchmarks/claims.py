"""Our targets, and whether a run reaches them. Reads measurements only.

A claim that a run did not measure (a missing peer, a skipped workload) is reported as not
measured, never as reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.loads import open_loop
from benchmarks.measures import ratio, summarise

OURS = "shoal"
LIMIT = "onnxruntime"
TRITON, TRITON_CPP = "triton", "triton-onnx"
TINY, LARGE, COMPUTE = "W1", "W4", ("W2", "W3")
# Against Triton's C++ backend: workload, load generator, protocol, clients, figure, target.
CPP_BARS = (
    ("W1", "wrk", "http", 64, "per_second", 2.0),
    ("W1", "h2load", "grpc", 64, "per_second", 2.0),
    ("W1", "perf_analyzer", "http", 1, "p50_us", 0.5),
    ("W1", "perf_analyzer", "grpc", 1, "p50_us", 0.5),
    ("JSON", "wrk", "http", 64, "per_second", 2.0),
    *[("MLP", "wrk", "http", clients, "per_second", 1.0) for clients in (1, 16, 64)],
    *[("MLP", "h2load", "grpc", clients, "per_second", 1.0) for clients in (1, 16, 64)],
    ("models-1-alone", "wrk", "http", 64, "per_second", 1.0),
    ("models-100", "wrk", "http", 64, "per_second", 1.5),
    ("W4", "h2load", "grpc", 16, "per_second", 1.5),
    ("W4", "perf_analyzer", "grpc", 16, "per_second", 1.5),
    ("W4-echo", "h2load", "grpc", 16, "per_second", 1.5),
    ("W4-echo", "perf_analyzer", "grpc", 16, "per_second", 1.5),
)
TAIL_BAR_MS = 5.0
TAIL_CLIENTS = 64
NO_SERVER = "responder"


@dataclass(frozen=True)
class Claim:
    """A statement, the figure of a run, and the target."""

    sentence: str
    measured: float | None
    bar: float
    at_least: bool = True  # else: at most

    @property
    def verdict(self) -> str:
        """yes, no, or not measured."""
        if self.measured is None:
            return "not measured"
        held = self.measured >= self.bar if self.at_least else self.measured <= self.bar
        return "yes" if held else "no"


def judge(records: list[dict[str, Any]]) -> list[Claim]:
    """All claims, in the order of the workloads."""
    claims = [*_against_triton(records), *_against_cpp(records)]
    claims += _against_python_peers(records)
    claims += _against_limit(records)
    claims += _large_tensors(records)
    claims += _many_models(records)
    claims += _tails(records)
    return claims


def _against_triton(records: list[dict[str, Any]]) -> Iterable[Claim]:
    for protocol in ("http", "grpc"):
        for concurrency in (16, 64):
            cell = (TINY, "perf_analyzer", protocol, concurrency)
            where = f"W1, {protocol}, {concurrency} clients (perf_analyzer)"
            rate = ratio(records, cell, OURS, TRITON)
            yield Claim(f"{where}: throughput over Triton's Python backend", rate, 2.5)
            cpu = ratio(records, cell, OURS, TRITON, "cpu_us")
            yield Claim(f"{where}: CPU per request over Triton's", cpu, 0.3, at_least=False)
        cell = (TINY, "perf_analyzer", protocol, 1)
        latency = ratio(records, cell, OURS, TRITON, "p50_us")
        sentence = f"W1, {protocol}, 1 client (perf_analyzer): p50 over Triton's"
        yield Claim(sentence, latency, 1.0, at_least=False)


def _against_cpp(records: list[dict[str, Any]]) -> Iterable[Claim]:
    for workload, tool, protocol, clients, figure, bar in CPP_BARS:
        measured = ratio(records, (workload, tool, protocol, clients), OURS, TRITON_CPP, figure)
        word = "throughput" if figure == "per_second" else "p50"
        sentence = (
            f"{workload}, {protocol}, {clients} client{'s' * (clients > 1)} ({tool}): {word} over "
            f"Triton's C++ backend"
        )
        yield Claim(sentence, measured, bar, at_least=figure == "per_second")


def _tails(records: list[dict[str, Any]]) -> Iterable[Claim]:
    found = [
        one["p999_us"] / 1e3
        for one in summarise(records)
        if (one["workload"], one["tool"], one["peer"]) == ("tails", open_loop.NAME, OURS)
        and one["p999_us"] is not None
    ]
    sentence = "tails, http, 70 % of the peak rate (open_loop): p99.9 in ms"
    yield Claim(sentence, found[0] if found else None, TAIL_BAR_MS, at_least=False)
    cell = ("tails", open_loop.EQUAL, "http", TAIL_CLIENTS)
    measured = ratio(records, cell, OURS, TRITON_CPP, "p999_us")
    sentence = "tails, http, equal rates (open_loop): p99.9 over Triton's C++ backend"
    yield Claim(sentence, measured, 1.0, at_least=False)


def _against_python_peers(records: list[dict[str, Any]]) -> Iterable[Claim]:
    """Compared with the best peer."""
    others = {one["peer"] for one in records} - {OURS, TRITON, TRITON_CPP, LIMIT, NO_SERVER}
    for concurrency in (1, 16, 64):
        cell = (TINY, "wrk", "http", concurrency)
        ratios = {one: ratio(records, cell, OURS, one) for one in others}
        known = {one: value for one, value in ratios.items() if value is not None}
        closest = min(known, key=lambda one: known[one], default="")
        who = f"the closest Python peer{f' ({closest})' if closest else ''}"
        sentence = f"W1, http, {concurrency} clients (wrk): throughput over {who}"
        yield Claim(sentence, known.get(closest), 3.0)


def _against_limit(records: list[dict[str, Any]]) -> Iterable[Claim]:
    """Shoal's throughput over the plain loop's, and over the best peer's."""
    rows = summarise(records)
    for workload in COMPUTE:
        here = [one for one in rows if one["workload"] == workload]
        limits = [one["per_second"] for one in here if one["peer"] == LIMIT]
        for protocol in ("http", "grpc"):
            ours = [
                one["per_second"]
                for one in here
                if one["peer"] == OURS and one["protocol"] == protocol
            ]
            share = ours[0] / limits[0] if ours and limits else None
            yield Claim(f"{workload}, {protocol}: share of the plain loop", share, 0.95)
        best = [
            one["per_second"]
            for one in here
            if one["peer"] not in {OURS, LIMIT} and one["protocol"] == "http"
        ]
        ours = [
            one["per_second"] for one in here if one["peer"] == OURS and one["protocol"] == "http"
        ]
        ahead = ours[0] / max(best) if ours and best else None
        yield Claim(f"{workload}, http: throughput over the best peer", ahead, 1.0)


def _many_models(records: list[dict[str, Any]]) -> Iterable[Claim]:
    """What a request costs in addition to ONNX Runtime alone, compared with one model whose
    requests are not batched either."""
    cpu_us = {(one["workload"], one["peer"]): one["cpu_us"] for one in summarise(records)}

    def own_us(workload: str) -> float | None:
        ours, runtime = cpu_us.get((workload, OURS)), cpu_us.get((workload, LIMIT))
        return None if ours is None or runtime is None else ours - runtime

    one = own_us("models-1-alone")
    for models in (100, 1_000):
        many = own_us(f"models-{models}")
        sentence = (
            f"models-{models}: server CPU per request without ONNX Runtime's, over that of one "
            "model without batching"
        )
        yield Claim(sentence, many / one if many and one else None, 1.2, at_least=False)


def _large_tensors(records: list[dict[str, Any]]) -> Iterable[Claim]:
    for row in summarise(records):
        if row["workload"] == LARGE and row["peer"] == OURS:
            sentence = f"W4, {row['protocol']} ({row['tool']}): server CPU us per request"
            yield Claim(sentence, row["cpu_us"], 300.0, at_least=False)

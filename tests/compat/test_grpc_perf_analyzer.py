"""NVIDIA's perf_analyzer over gRPC, in each of its three modes."""

from __future__ import annotations

import pytest

MODES = {"sync": ["--sync"], "async": ["--async"], "streaming": ["--async", "--streaming"]}


@pytest.mark.perf_analyzer
@pytest.mark.parametrize("world", ["native"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer(world, mode, perf_analyzer, tmp_path):
    table = tmp_path / "table.csv"
    words = ("-m", "sum", "-u", world.address, "-i", "grpc", *MODES[mode])
    perf_analyzer(*words, "--concurrency-range", 4, "-f", table)
    names, numbers = (line.split(",") for line in table.read_text().splitlines()[:2])
    measured = dict(zip(names, numbers, strict=True))
    assert float(measured["Inferences/Second"]) > 0

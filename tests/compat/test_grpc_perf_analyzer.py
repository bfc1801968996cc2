"""NVIDIA's perf_analyzer over gRPC, in each of its three modes."""

from __future__ import annotations

import subprocess

import pytest

MODES = {"sync": ["--sync"], "async": ["--async"], "streaming": ["--async", "--streaming"]}


@pytest.mark.perf_analyzer
@pytest.mark.parametrize("world", ["native"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer(world, mode, tmp_path):
    table = tmp_path / "table.csv"
    run = subprocess.run(
        [
            *("perf_analyzer", "-m", "sum", "-u", world.address, "-i", "grpc", *MODES[mode]),
            *("--concurrency-range", "4", "--measurement-mode", "count_windows"),
            *("--measurement-request-count", "200", "--stability-percentage", "999"),
            *("--max-trials", "3", "-f", str(table)),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    names, numbers = (line.split(",") for line in table.read_text().splitlines()[:2])
    measured = dict(zip(names, numbers, strict=True))
    assert float(measured["Inferences/Second"]) > 0

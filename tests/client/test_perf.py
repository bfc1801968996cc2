"""`shoal perf` finds its way on Shoal and on NVIDIA's Triton alike."""

from __future__ import annotations

import re

import pytest

from shoal.cli import perf

WINDOWS = ("--measurement-mode", "count_windows", "--measurement-request-count", "20")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ("-m add_sub --concurrency-range 1:7:6 -b 2", ""),
        ("-m add_sub --request-rate-range 200", ""),
        ("-m add_sub --concurrency-range 3 --shared-memory system", ""),
        ("-m counter --concurrency-range 2 --sequence-length 4 --input-data zero", ""),
        ("-m add_sub --concurrency-range 7 --streaming", "grpc"),
        ("-m words --streaming --string-data tell", "grpc"),
    ],
)
def test_a_run(server, capsys, protocol, words, needs):
    if needs and protocol != needs:
        pytest.skip(f"needs {needs}")
    address = getattr(server, protocol).removeprefix("grpc://")
    line = ["-u", address, "-i", protocol, *words.split(), *WINDOWS, "-s", "9999", "-r", "3"]
    code = perf.run(line)
    printed = capsys.readouterr()
    assert code == 0, printed.out + printed.err
    requests = int(re.findall(r"Request count: (\d+)", printed.out)[-1])
    served = int(re.findall(r"Successful request count: (\d+)", printed.out)[-1])
    assert requests >= 60
    assert served == pytest.approx(requests, abs=40)  # the two are read at different moments

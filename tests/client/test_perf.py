"""`shoal perf` finds its way on Shoal and on NVIDIA's Triton alike."""

from __future__ import annotations

import re

import pytest

from shoal.cli import perf

# Any three windows will do, however little they agree.
WINDOWS = (
    *("--measurement-mode", "count_windows", "--measurement-request-count", "20"),
    *("-s", "1000000000", "-r", "3"),
)


def run(server, protocol, capsys, *words):
    """How many requests were measured, and how many the server says it served meanwhile."""
    address = getattr(server, protocol).removeprefix("grpc://")
    code = perf.run(["-u", address, "-i", protocol, *words])
    printed = capsys.readouterr()
    assert code == 0, printed.out + printed.err
    requests = int(re.findall(r"Request count: (\d+)", printed.out)[-1])
    served = int(re.findall(r"Successful request count: (\d+)", printed.out)[-1])
    return requests, served


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
    requests, served = run(server, protocol, capsys, *words.split(), *WINDOWS)
    assert requests >= 60
    assert served > 0  # the load goes on while it is asked, so this is another number


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_server_has_counted_what_was_sent(server, capsys, protocol):
    words = ["-m", "add_sub", "--concurrency-range", "3", "--request-count", "60"]
    requests, served = run(server, protocol, capsys, *words)
    assert requests == 60
    # A Python model's last execution is counted when it has been answered.
    assert 60 - 3 <= served <= 60

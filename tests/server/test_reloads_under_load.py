"""The short form of `python -m benchmarks.reloads`: no request is lost, nothing grows."""

import pytest
from benchmarks import reloads

from tests.chaos.schedule import long_run

RELOADS, WARM_UP = 12, 2  # the fewest readings from which growth can be told, and some
LIMIT = 0.3  # one thread or descriptor that each reload leaves behind is more


# Not those of PyTorch: importing it takes longer than all of these. The program has them. Starting
# processes takes as long as all others: `make chaos` does, and tests/server/test_isolation.py.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=long_run if name == "python-process" else ())
        for name in reloads.KINDS
        if name != "pytorch"
    ],
)
def test_reloads_under_load(name, monkeypatch):
    kind = reloads.KINDS[name]
    if not kind.installed:
        pytest.skip(f"{kind.library} is not installed")
    monkeypatch.setattr(reloads, "SETTLE_SECS", 0.1)
    outcome = reloads.run([kind], RELOADS, WARM_UP)
    assert outcome.problems(LIMIT) == []
    assert set(outcome.traffic[name].requests) == {"HTTP", "HTTP, JSON", "gRPC"}

"""When requests are due."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.perf.schedule import constant, custom, poisson, read_intervals


def first(schedule, count):
    return list(islice(schedule.offsets(), count))


def test_constant():
    assert first(constant(100), 4) == [0, 10_000_000, 20_000_000, 30_000_000]


def test_a_rate_without_a_round_interval_does_not_drift():
    assert first(constant(3), 30_001)[-1] == 10_000_000_000_000


def test_custom_goes_round():
    assert first(custom([1, 5]), 5) == [0, 1000, 6000, 7000, 12000]
    assert custom([1000, 5000]).rate == pytest.approx(333.33, abs=0.01)


def test_poisson_has_the_rate_and_no_rhythm():
    offsets = first(poisson(1000), 20_001)
    gaps = [after - before for before, after in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1e6, rel=0.05)
    assert deviation == pytest.approx(1e6, rel=0.1)  # as large as the mean: that is Poisson's mark


@given(st.sampled_from([constant(70), poisson(70, 3), custom([3, 1, 4])]), st.integers(1, 5))
def test_shares_make_up_the_whole(schedule, shares):
    parts = [first(schedule.part(share, shares), 20) for share in range(shares)]
    whole = sorted(offset for part in parts for offset in part)
    assert whole == first(schedule, 20 * shares)


@pytest.mark.parametrize(
    ("content", "words"),
    [("10\nsoon\n", "line 2: 'soon'"), ("", "no interval above 0"), ("0\n0\n", "above 0")],
)
def test_wrong_intervals(tmp_path, content, words):
    file = tmp_path / "intervals"
    file.write_text(content)
    with pytest.raises(InvalidArgument, match=words):
        read_intervals(str(file))


def test_missing_intervals(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_intervals(str(tmp_path / "none"))

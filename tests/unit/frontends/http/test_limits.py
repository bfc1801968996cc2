import pytest

from shoal.frontends.http.limits import HttpLimits


def test_a_negative_limit_is_refused_by_name():
    with pytest.raises(ValueError, match="head_timeout_secs is -1"):
        HttpLimits(head_timeout_secs=-1)


def test_no_body_limit_is_allowed():
    assert HttpLimits(max_body_bytes=None).max_body_bytes is None


@pytest.mark.parametrize(
    ("shortest", "sweep"),
    [
        (2.0, 0.5),  # a quarter of the shortest clock
        (30.0, 1.0),  # but at least once a second
        (0.001, 0.02),  # and never in a tight loop
        (0.0, 1.0),  # a clock that never runs out does not count
    ],
)
def test_sweep_period(shortest, sweep):
    limits = HttpLimits(head_timeout_secs=shortest, linger_secs=0, write_stall_secs=100)
    assert limits.sweep_secs == pytest.approx(sweep)

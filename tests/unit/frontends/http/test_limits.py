from pathlib import Path

import pytest

from shoal.config.options import Options
from shoal.frontends.http.limits import HttpLimits
from shoal.settings import http_limits


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


def test_the_documented_time_outs_are_those_of_the_server():
    limits = http_limits(Options())
    assert limits == HttpLimits()
    page = Path(__file__).parents[4].joinpath("docs", "http-api.md").read_text()
    for option, secs in {
        "--http-head-timeout-secs": limits.head_timeout_secs,
        "--http-body-timeout-secs": limits.body_idle_timeout_secs,
        "--http-write-timeout-secs": limits.write_stall_secs,
        "--http-idle-timeout-secs": limits.keepalive_idle_secs,
    }.items():
        assert f"| {secs:g} s | `{option}` |" in page
    assert 2 * limits.sweep_secs <= 2  # how late the page allows them to be

"""The policy over patterns of arrivals, in the simulation of the benchmark."""

import pytest
from benchmarks import ray_scaling
from benchmarks.ray_scaling import PATTERNS, SERVICE_SECS, START_SECS, of_shoal, simulate

from shoal.ray.config import ScalingConfig


def served(name, secs=None, **scaling):
    pattern, whole = PATTERNS[name]
    return simulate(pattern, secs or whole, of_shoal(ScalingConfig(**scaling)))


def test_a_step_is_answered_once_replicas_can_have_started():
    found = served("steps", 300.0)
    # They take START_SECS; what has waited until then needs some more seconds.
    assert START_SECS <= found.seconds_out <= 2 * START_SECS
    assert found.highest <= 2.5 * 400 * SERVICE_SECS


def test_a_slow_rise_never_leaves_the_target():
    found = served("ramp", 300.0)
    assert found.seconds_out == 0
    assert found.replica_secs < 1.6 * sum((50 + at) * SERVICE_SECS / 0.7 for at in range(300))


def test_bursts_find_the_replicas_of_the_one_before():
    found = served("bursts", 600.0)
    assert found.seconds_out <= 1.5 * START_SECS  # of the first burst alone


def test_fewer_replicas_after_the_delay():
    quick = served("bursts", 200.0, down_delay_secs=20.0)
    slow = served("bursts", 200.0, down_delay_secs=100.0)
    assert quick.replica_secs < slow.replica_secs
    assert quick.seconds_out > slow.seconds_out


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_less_than_the_default_policy_of_ray_needs():
    pytest.importorskip("ray", reason="Ray is not installed")
    pattern, _ = PATTERNS["steps"]
    theirs = simulate(pattern, 200.0, ray_scaling.of_ray())
    ours = served("steps", 200.0)
    assert ours.seconds_out < theirs.seconds_out
    assert ours.replica_secs < theirs.replica_secs

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ray.config import ScalingConfig
from shoal.ray.policy import Policy, wanted
from shoal.ray.readings import Reading

SCALING = ScalingConfig(target_utilisation=0.5, drain_secs=2.0, down_delay_secs=10.0)


def busy(utilisation=0.0, queue_secs=0.0):
    return Reading(utilisation, queue_secs, 0.0, 0.0)


def decide(readings, present, state=None, now=0.0, limits=(1, 10), scaling=SCALING):
    return wanted(readings, present, limits, state or {}, now, scaling)


def test_work_that_arrives_is_spread_to_the_target():
    assert decide([busy(0.9)], 1)[0] == 2
    assert decide([busy(0.5)], 1)[0] == 1
    assert decide([busy(0.9), busy(0.9)], 2)[0] == 4


def test_work_that_waits_needs_more_replicas():
    scaling = ScalingConfig(target_utilisation=1.0)
    # 3 s of work: what is above the second that may wait, within 2 s.
    assert decide([busy(1.0, 3.0), busy(1.0)], 2, scaling=scaling)[0] == 3
    assert decide([busy(1.0, 1.0), busy(1.0)], 2, scaling=scaling)[0] == 2
    # A third one is starting, and may be enough.
    assert decide([busy(1.0, 3.0), busy(1.0)], 3, scaling=scaling)[0] == 3


def test_queues_that_grow_show_how_much_more_arrives():
    scaling = ScalingConfig(target_utilisation=1.0, most_added=10.0)
    _, state = decide([busy(1.0, 0.0)], 1, now=0.0, scaling=scaling)
    assert decide([busy(1.0, 6.0)], 1, state, now=2.0, limits=(1, 20), scaling=scaling)[0] == 7


def test_it_grows_by_a_factor_at_most():
    assert decide([busy(1.0, 100.0)], 1)[0] == 2
    assert decide([busy(1.0, 100.0)] * 4, 4)[0] == 8
    assert decide([busy(1.0, 100.0)] * 8, 8)[0] == 10  # the limit


def test_down_only_after_fewer_were_enough_all_the_time():
    count, state = decide([busy(0.1)] * 4, 4, now=0.0)
    assert count == 4
    count, state = decide([busy(0.4)] * 4, 4, state, now=5.0)  # 3.2
    assert count == 4
    count, state = decide([busy(0.1)] * 4, 4, state, now=9.9)
    assert count == 4
    count, state = decide([busy(0.1)] * 4, 4, state, now=10.1)  # 4 were needed five seconds ago
    assert count == 4
    count, state = decide([busy(0.1)] * 4, 4, state, now=15.5)
    assert count == 1


def test_up_after_the_delay():
    scaling = ScalingConfig(target_utilisation=0.5, up_delay_secs=3.0)
    count, state = decide([busy(1.0)], 1, now=0.0, scaling=scaling)
    assert count == 1
    count, state = decide([busy(0.2)], 1, state, now=1.0, scaling=scaling)
    count, state = decide([busy(1.0)], 1, state, now=2.0, scaling=scaling)
    count, state = decide([busy(1.0)], 1, state, now=4.0, scaling=scaling)
    assert count == 1
    assert decide([busy(1.0)], 1, state, now=5.0, scaling=scaling)[0] == 2


def test_nothing_changes_without_readings():
    assert decide([], 3, {"known_since": 1.0}) == (3, {"known_since": 1.0})


@given(
    st.lists(st.builds(busy, st.floats(0, 1), st.floats(0, 1e4)), max_size=20),
    st.integers(1, 50),
    st.integers(1, 5),
    st.integers(0, 40),
)
def test_always_within_the_limits(readings, present, least, more):
    count, _ = decide(readings, present, limits=(least, least + more))
    assert least <= count <= least + more


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10), st.floats(0, 1))
def test_more_load_never_gives_fewer(loads, extra):
    fewer = decide([busy(load) for load in loads], len(loads), limits=(1, 100))[0]
    more = decide([busy(min(1.0, load + extra)) for load in loads], len(loads), limits=(1, 100))[0]
    assert more >= fewer


class Context:
    target_num_replicas = 2
    capacity_adjusted_min_replicas = 1
    capacity_adjusted_max_replicas = 9
    policy_state: dict = {}  # noqa: RUF012 - as Ray's
    current_time = 100.0

    def __init__(self, metrics):
        self.aggregated_metrics = metrics


def test_as_ray_calls_it():
    policy = Policy(target_utilisation=0.5, drain_secs=2.0)
    metrics = {
        "utilisation": {"a": 1.0, "b": 0.9},
        "queue_secs": {"a": 0.1},
        "pending": {},
        "rate": {},
    }
    count, state = policy(Context(metrics))
    assert count == 4
    assert state["known_since"] == 100.0
    assert policy(Context(None))[0] == 2
    assert math.isfinite(state["known_since"])
    with pytest.raises(TypeError):
        Policy(unknown=1)

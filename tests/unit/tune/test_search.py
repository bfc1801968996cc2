"""The search against the whole grid, on models whose every answer is known."""

from __future__ import annotations

import random

import pytest

from shoal.errors import InvalidArgument, ShoalError
from shoal.tune.goal import LATENCY, THROUGHPUT, Goal, Measurement
from shoal.tune.search import Implied, Search
from shoal.tune.space import ConfigPoint

# Each of these rewards something else: rows, threads, instances, waiting, or none of them.
SHAPES = {
    "an accelerator: executions cost, rows do not": {"fixed_us": 3000, "row_us": 20},
    "rows cost, threads help": {"fixed_us": 50, "row_us": 2000, "serial": 0.02},
    "threads do not help, instances do": {"fixed_us": 50, "row_us": 1000, "serial": 0.95},
    "memory ends at eight rows": {"fixed_us": 2000, "row_us": 150, "bend": 8},
    "tiny": {"fixed_us": 30, "row_us": 3, "arrival_us": 20},
    "crowding hurts": {"fixed_us": 400, "row_us": 300, "crowd": 0.6, "serial": 0.3},
    "waiting pays": {"fixed_us": 20000, "row_us": 50, "arrival_us": 400, "serial": 0.9},
}
START = ConfigPoint(4, 0, 1, 4)


def goals():
    return {
        "throughput": (Goal(THROUGHPUT), (32,)),
        "throughput within a limit": (Goal(THROUGHPUT, limit_us=15_000), (1, 8, 32)),
        "latency": (Goal(LATENCY), (8,)),
    }


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("wanted", list(goals()))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_as_good_as_the_grid_in_a_fifth_of_it(
    simulated, bench, space, shape, wanted, noise, counted
):
    goal, levels = goals()[wanted]
    chosen_space = space(levels)
    model = simulated(**SHAPES[shape], noise=noise, counted=counted)
    for seed in range(3 if noise else 1):
        grid = bench(model, seed).grid(chosen_space, goal)
        asked = bench(model, seed + 100)
        finding = Search(chosen_space, goal, asked).run(START)
        assert asked.count == len(finding.tries)
        assert asked.count <= chosen_space.size / 5
        found = asked.true(finding.chosen)
        # What noise hides from a grid, it hides from a search, too.
        close = Goal(goal.objective, goal.limit_us, margin=0.03 + noise)
        if goal.limit_us and not goal.met(grid):
            continue  # the grid itself fell for noise at the limit
        assert not close.better(grid, found), (finding.chosen.point, grid.point)


@pytest.mark.parametrize("wanted", list(goals()))
def test_models_of_all_kinds(simulated, bench, space, wanted):
    rng = random.Random(wanted)
    goal, levels = goals()[wanted]
    chosen_space = space(levels)
    worse = []
    for seed in range(16):
        model = simulated(
            fixed_us=10 ** rng.uniform(1, 4.3),
            row_us=10 ** rng.uniform(0.5, 3.5),
            serial=rng.random(),
            crowd=rng.random(),
            bend=rng.choice([4, 8, 16, 1000]),
            arrival_us=10 ** rng.uniform(1, 3),
            noise=0.01,
        )
        grid = bench(model, seed).grid(chosen_space, goal)
        asked = bench(model, seed + 100)
        finding = Search(chosen_space, goal, asked).run(START)
        assert asked.count <= chosen_space.size / 5
        close = Goal(goal.objective, goal.limit_us, margin=0.04)
        if goal.met(grid) and close.better(grid, asked.true(finding.chosen)):
            worse.append((model, finding.chosen.point, grid.point))
    assert not worse


def test_a_small_grid_has_a_fifth_too(simulated, bench, space):
    small = space(batches=(1, 2, 4, 8, 16, 32), instances=(1, 2), threads=(1, 2))
    model = simulated(fixed_us=3000, row_us=20)
    asked = bench(model)
    finding = Search(small, Goal(), asked).run(ConfigPoint(1, 0, 1, 2))
    assert asked.count <= small.size / 5
    grid = bench(model).grid(small, Goal())
    assert finding.chosen.per_second >= grid.per_second * 0.97


def test_a_model_that_does_not_batch(simulated, bench, space):
    plain = space(batches=(0,), delays_us=(0,))
    asked = bench(simulated(fixed_us=1000, row_us=1000, serial=0.9))
    finding = Search(plain, Goal(), asked).run(ConfigPoint(0, 0, 1, 4))
    assert finding.chosen.point.batch == 0
    assert finding.chosen.point.instances == 4
    assert asked.count <= plain.size


def test_the_config_stays_when_nothing_is_better(simulated, bench, space):
    model = simulated(fixed_us=3000, row_us=20)
    best = bench(model).grid(space(), Goal())
    finding = Search(space(), Goal(), bench(model)).run(best.point)
    assert finding.chosen == finding.start
    assert finding.chosen.point == best.point


def test_a_limit_that_is_never_met(simulated, bench, space):
    goal = Goal(limit_us=10)
    finding = Search(space((1, 8)), goal, bench(simulated())).run(START)
    assert not finding.met
    assert finding.chosen.clients == 1
    slower = [each for each in finding.tries if each.latency_us < finding.chosen.latency_us * 0.97]
    assert not slower


def test_configs_that_do_not_load_are_passed_over(simulated, bench, space):
    model = bench(simulated(fixed_us=3000, row_us=20))

    def measure(point, clients, careful):
        if point.batch > 8:
            raise InvalidArgument("the model takes batches of 8 at most")
        return model(point, clients, careful)

    finding = Search(space(), Goal(), measure).run(ConfigPoint(2, 0, 1, 4))
    assert finding.chosen.point.batch == 8
    failed = [each for each in finding.tries if each.error]
    assert failed
    assert failed[0].error == "the model takes batches of 8 at most"


def test_a_start_that_does_not_load_ends_it(space):
    def measure(point, clients, careful):
        raise InvalidArgument("there is no such file")

    with pytest.raises(ShoalError, match="no such file"):
        Search(space(), Goal(), measure).run(START)


def test_the_watcher_sees_every_measurement(simulated, bench, space):
    class SearchListener:
        def __init__(self):
            self.begun, self.ended, self.best = [], [], []

        def begins(self, point, clients, *, careful):
            self.begun.append((point, clients, careful))

        def measured(self, measurement, *, best):
            self.ended.append(measurement)
            self.best.append(best)

    listener = SearchListener()
    finding = Search(space(), Goal(), bench(simulated()), listener).run(START)
    assert listener.ended == finding.tries
    assert [each.careful for each in finding.tries] == [careful for *_, careful in listener.begun]
    assert listener.best[0]


@pytest.mark.parametrize(
    ("measured", "peak", "mean", "asked", "same"),
    [
        (
            ConfigPoint(32, 0, 1, 1),
            6,
            5,
            ConfigPoint(64, 0, 1, 1),
            True,
        ),  # the limit was out of reach
        (ConfigPoint(32, 0, 1, 1), 6, 5, ConfigPoint(8, 0, 1, 1), True),  # and still is
        (
            ConfigPoint(32, 0, 1, 1),
            8,
            5,
            ConfigPoint(8, 0, 1, 1),
            True,
        ),  # it is reached, and changes nothing
        (
            ConfigPoint(32, 200, 1, 1),
            8,
            5,
            ConfigPoint(8, 200, 1, 1),
            False,
        ),  # full batches do not wait
        (ConfigPoint(32, 0, 1, 1), 6, 5, ConfigPoint(4, 0, 1, 1), False),  # it would cut batches
        (
            ConfigPoint(32, 0, 1, 1),
            6,
            5,
            ConfigPoint(64, 0, 2, 1),
            False,
        ),  # another number of instances
        (
            ConfigPoint(32, 0, 1, 1),
            6,
            5,
            ConfigPoint(64, 200, 1, 1),
            False,
        ),  # a wait makes larger ones
        (
            ConfigPoint(8, 200, 1, 1),
            8,
            8,
            ConfigPoint(8, 1000, 1, 1),
            True,
        ),  # full: waiting adds nothing
        (
            ConfigPoint(8, 200, 1, 1),
            8,
            8,
            ConfigPoint(8, 0, 1, 1),
            False,
        ),  # perhaps because it waited
        (ConfigPoint(8, 200, 1, 1), 8, 6, ConfigPoint(8, 1000, 1, 1), False),  # not always full
        (ConfigPoint(8, 0, 1, 1), 0, 0, ConfigPoint(8, 0, 1, 1), False),  # nothing was counted
    ],
)
def test_what_a_measurement_implies(measured, peak, mean, asked, same):
    implied = Implied()
    implied.add(Measurement(measured, 8, per_second=1, peak_batch=peak, mean_batch=mean))
    assert (implied.find(asked, 8) is not None) is same
    assert implied.find(asked, 9) is None

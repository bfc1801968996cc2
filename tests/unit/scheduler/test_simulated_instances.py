"""Several instances are never slower than one, nor batching than none: a server is simulated.

    clients --> the real batcher --> instances, which take as long as a cost function says

The table of `shoal stress`, for models of many kinds, without a clock. A quarter of the combinations,
and those that were worst, are in the suite; SHOAL_SIMULATIONS=all runs them all, and for longer.
"""

from __future__ import annotations

import heapq
import os
from functools import cache
from random import Random

import pytest

from shoal.scheduler.look_ahead import LookAhead
from shoal.scheduler.policy import BatchPolicy, SingleRequestPolicy
from tests.support.instances import MS, Instances

BATCH = BatchPolicy(16)
NO_BATCHING = SingleRequestPolicy()
CLIENTS = (1, 5, 20, 50)
ALL = os.environ.get("SHOAL_SIMULATIONS") == "all"
NOISE = 0.95  # of the answers a second: what counts as level


def two_cores(running):
    return max(1.0, running / 2)


def all_cores(running):
    """Each execution uses all cores by itself."""
    return running * (1.03 if running > 1 else 1.0)


def own_cores(running):
    return 1.0


COSTS = {
    "rows only": {"row_ms": 37},
    "a little for each batch": {"fixed_ms": 2, "row_ms": 20},
    "as much for a batch as for a row": {"fixed_ms": 5, "row_ms": 5},
    "mostly a fixed cost": {"fixed_ms": 30, "row_ms": 1},
    "all cores": {"fixed_ms": 3, "row_ms": 20, "slowdown": all_cores},
    "all cores, mostly a fixed cost": {"fixed_ms": 30, "row_ms": 1, "slowdown": all_cores},
    "own cores": {"fixed_ms": 5, "row_ms": 5, "slowdown": own_cores, "noise": 0.05},
    "waits for something else": {"fixed_ms": 20, "slowdown": own_cores},
    # As the demo's model: alone on all cores, and large batches cost more for each row.
    "questions": {"fixed_ms": 0.5, "row_ms": 34, "alone": 0.57, "bend": 0.14, "noise": 0.05},
}
WORST = ("questions", "mostly a fixed cost")
LENGTHS = (1, 3, 1, 1, 2, 4, 1, 2)
BY_SHAPE = {"lengths": LENGTHS, "by_shape": True, "policy": LookAhead(BATCH)}
KINDS = {
    "plain": {},
    "a delay": {"policy": BatchPolicy(16, max_delay_ns=2 * MS)},
    "small batches, always full": {"policy": BatchPolicy(4)},
    "padding": {"lengths": LENGTHS, "padded": True},
    "padding in buckets": {**BY_SHAPE, "padded": True},
    "batch_by_shape": BY_SHAPE,
}
COMBINATIONS = [
    (cost, kind)
    for number, cost in enumerate(COSTS)
    for other, kind in enumerate(KINDS)
    if ALL or (number + other) % 4 == 0 or (cost in WORST and other % 2)
]


class Server:
    """A closed loop: clients ask again soon after they are answered; time is simulated.

    Executions make progress at a speed that depends on how many run. Requests have random
    `lengths`; `padded` batches cost what their longest request costs for each; with `by_shape`,
    only requests of one length share a batch. Executions that begin as the only ones take `alone`
    times as long; beside others, rows of a batch of 16 take `bend` more than single ones.
    """

    def __init__(
        self,
        instances,
        clients,
        *,
        fixed_ms=0.0,
        row_ms=0.0,
        slowdown=two_cores,
        policy=BATCH,
        lengths=(1,),
        padded=False,
        by_shape=False,
        alone=1.0,
        bend=0.0,
        noise=0.0,
    ):
        self.many = Instances(policy, instances, padded=padded)
        self.clients = clients
        self.slowdown = slowdown
        self.lengths, self.by_shape = lengths, by_shape
        self.random = Random(7)
        self.running = []  # [work left in ns, batch, start]

        def full_ns(batch):
            each = lengths_of(batch)
            work = len(each) * max(each) if padded else sum(each)
            if instances == 1 or self.many.expected.executions == 1:
                ms = alone * (fixed_ms + row_ms * work)
            else:
                ms = fixed_ms + row_ms * work * (1 + bend * (len(each) - 1) / 15)
            return ms * MS * self.random.uniform(1 - noise, 1 + noise)

        self.full_ns = full_ns

    def run(self):
        """The answers per second after a while, each counted by its length."""
        many = self.many
        answers = (3 if ALL else 1) * max(200, 12 * self.clients)
        unit = sum(self.lengths) / len(self.lengths)
        arrivals = [many.clock() + 10_000 * number for number in range(self.clients)]
        answered, begin, warm = 0.0, 0, answers
        while answered < answers + warm:
            now = many.clock()
            while arrivals and arrivals[0] <= now:
                heapq.heappop(arrivals)
                length = self.random.choice(self.lengths)
                many.enqueue(length, key=length if self.by_shape else ())
            while many.idle and (batch := many.pull()):
                self.running.append([self.full_ns(batch), batch, now])
            for batch in self.advance(arrivals):
                for number in range(1, len(batch) + 1):
                    pause = 20_000 * number + self.random.expovariate(1 / 500_000)
                    heapq.heappush(arrivals, many.clock() + int(pause))
                answered += sum(lengths_of(batch)) / unit
            if answered >= warm and not begin:
                begin, answered = many.clock(), warm
        return (answered - warm) / ((many.clock() - begin) / 1e9)

    def advance(self, arrivals):
        """Time passes until something happens; the batches that end."""
        many = self.many
        slow = self.slowdown(len(self.running))
        steps = [left * slow for left, _, _ in self.running]
        if arrivals:
            steps.append(arrivals[0] - many.clock())
        if many.line.pending() and many.max_delay_ns:
            steps.append(many.max_delay_ns)
        step = max(1, int(min(steps)))
        many.clock.advance(step)
        ended = []
        for item in list(self.running):
            item[0] -= step / slow
            if item[0] <= 1:
                self.running.remove(item)
                many.finish(item[1], many.clock() - item[2])
                ended.append(item[1])
        return ended


def lengths_of(batch):
    return [request.inputs["x"].shape[1] for request in batch]


@cache
def answers(cost, kind, instances):
    """By number of clients. A kind that is none of `KINDS` is the lengths without batching."""
    options = KINDS.get(kind, {"lengths": kind, "policy": NO_BATCHING})
    return [Server(instances, clients, **COSTS[cost], **options).run() for clients in CLIENTS]


@pytest.mark.parametrize(("cost", "kind"), COMBINATIONS)
def test_several_instances_are_never_slower_than_one_nor_batching_than_none(cost, kind):
    table = {instances: answers(cost, kind, instances) for instances in (1, 2, 4)}
    assert_level(table[1], table[2])
    assert_level(table[1], table[4])
    if kind == "a delay":  # which few clients wait for, as configured
        return
    lengths = KINDS[kind].get("lengths", (1,))
    for instances in (1, 2, 4):
        assert_level(answers(cost, lengths, instances), table[instances])


@pytest.mark.parametrize("cost", COSTS)
def test_without_batching_several_instances_are_never_slower_than_one(cost):
    one, two, four = (answers(cost, (1,), instances) for instances in (1, 2, 4))
    assert_level(one, two)
    assert_level(one, four)


@pytest.mark.parametrize(("cost", "kind"), COMBINATIONS)
@pytest.mark.parametrize("instances", [1, 2, 4])
def test_more_clients_are_not_answered_less_often(cost, kind, instances):
    table = answers(cost, kind, instances)
    assert_level(table[:-1], table[1:])


def assert_level(before, after):
    """None is less than it was, apart from noise."""
    shown = [round(rate, 1) for rate in before], [round(rate, 1) for rate in after]
    assert all(b >= NOISE * a for a, b in zip(before, after, strict=True)), shown


def test_two_cores_are_used_by_two_instances():
    for rate in answers("rows only", "plain", 2)[1:]:
        assert rate >= 0.98 * 2 * 1000 / 37

"""The checker: traffic whose every answer is verified, and counts that must add up at the end.

    with Checker(server, "onnx", "process") as checker:
        checker.wait_for_answers()          one more right answer to each client
        with paused(pid):                   a fault
            ...
        checker.tolerate("process", "is not healthy")
    checker.check()

Each client asks one model over one protocol, again and again, with numbers that no other request
has. An answer is right, refused (an error with a sentence), wrong, or it never comes (lost). Wrong
answers fail in any case; what else may happen during a fault is tolerated by its text. Every model
answers INPUT0 + 1, FP32 [rows, 4].
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.clients import CLIENTS, Lost, Refused, WrongAnswer
from tests.chaos.schedule import SEED
from tests.support import accounting

WIDTH = 4
_PAUSE_SECS = 0.003  # between two requests of a client: the tests of a suite share a machine
_MOST_ROWS = 3
_IN_STREAM = 4  # requests of a stream that are in progress together
_MOST_NUMBER = 1 << 23  # an FP32 holds all integers up to twice that


@dataclass
class Counts:
    """What came of the requests to one model."""

    asked: int = 0
    right: int = 0
    rows: int = 0  # of the right ones
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def unanswered(self):
        """Requests without any outcome."""
        outcomes = self.right + self.refused.total() + self.lost.total() + len(self.wrong)
        return self.asked - outcomes


class Checker:
    """Clients of all protocols for each of `models`, on threads, until the block ends."""

    def __init__(self, server, *models, protocols=tuple(CLIENTS), values=_MOST_NUMBER, seed=SEED):
        """`values` is how many different inputs there are; ids are unique in any case."""
        self._server = server
        self._numbers = itertools.count(1)
        self._values = values
        self._seeds = random.Random(seed)
        self._changed = threading.Condition()  # guards what follows
        self.counts = {model: Counts() for model in models}
        self._answers = Counter()  # right ones by client
        self._tolerated = {model: [] for model in models}
        self._uncounted = []
        self._before = server.statistics()
        self._stopped = threading.Event()
        self._clients = [
            threading.Thread(
                target=self._run,
                args=(model, protocol, CLIENTS[protocol], random.Random(self._seeds.random())),
                name=f"{protocol} client of {model}",
                daemon=True,
            )
            for model in models
            for protocol in protocols
        ]

    def __enter__(self):
        for client in self._clients:
            client.start()
        self.wait_for_answers()
        return self

    def __exit__(self, kind, *_):
        self._stopped.set()
        for client in self._clients:
            client.join(WAIT_SECS)
        if kind is not None:
            print(self.counts, self._server.log[-4000:], sep="\n")

    # ---- during the traffic

    def tolerate(self, model, *texts, counted=True):
        """Allow errors and losses of `model` that have one of the texts.

        `counted` is false if the statistics of the model do not count them.
        """
        self._tolerated[model] += texts
        if not counted:
            self._uncounted += texts

    def wait_for_answers(self, count=1, *models):
        """Wait until each client (of `models`) has got so many more right answers."""
        with self._changed:
            names = [
                (client.name, self._answers[client.name] + count)
                for client in self._clients
                if not models or client.name.rpartition(" ")[2] in models
            ]

            def done():
                return all(self._answers[name] >= needed for name, needed in names)

            if not self._changed.wait_for(lambda: done() or self.faults(), WAIT_SECS):
                late = [name for name, needed in names if self._answers[name] < needed]
                raise AssertionError(f"no answers to: {late}\n{self.counts}")
            faults = self.faults()
        assert not faults, f"{faults}\n{self._server.log[-4000:]}"

    def faults(self):
        """What may not happen, of what has happened so far. For the end, or with the lock."""
        found = []
        for model, counts in self.counts.items():
            found += [f"{model}: {text}" for text in counts.wrong]
            for kind, texts in (("refused", counts.refused), ("lost", counts.lost)):
                found += [
                    f"{model}: {kind} {count} times: {text}"
                    for text, count in texts.items()
                    if not any(allowed in text for allowed in self._tolerated[model])
                ]
        return found

    # ---- after it

    def check(self):
        """All requests have one answer, the right one or a tolerated error; statistics and metrics
        agree with what the clients got."""
        assert not self.faults(), f"{self.faults()}\n{self._server.log[-4000:]}"
        for model, counts in self.counts.items():
            assert counts.right, f"{model} has given no right answer"
            assert counts.unanswered == 0, f"{model}: {counts}"
            with contextlib.suppress(TimeoutError):  # then the comparison below tells why
                wait_until(lambda model=model: not self._differences(model), "the counts agree")
            assert not self._differences(model), (self._differences(model), counts)

    def _differences(self, model):
        """Where the statistics of a model differ from what its clients got."""
        entry = self._server.statistics()[model]
        found = accounting.faults(entry, self._server.metrics())
        counts = self.counts[model]
        uncounted = sum(
            count
            for text, count in counts.refused.items()
            if any(allowed in text for allowed in self._uncounted)
        )
        refused = counts.refused.total() - uncounted
        lost = counts.lost.total()  # the server may have answered them, or never seen them
        success = self._grown(entry, model, "success")
        fail = self._grown(entry, model, "fail")
        rows = entry["inference_count"] - self._earlier(model).get("inference_count", 0)
        cached = self._grown(entry, model, "cache_hit")  # their rows are not counted
        if not counts.right <= success <= counts.right + lost:
            found.append(f"{success} successes, {counts.right} right answers, {lost} lost")
        if not refused <= fail <= refused + lost:
            found.append(f"{fail} failures, {refused} refused, {lost} lost")
        if not cached and not counts.rows <= rows <= counts.rows + lost * _MOST_ROWS:
            found.append(f"{rows} rows, {counts.rows} in right answers, {lost} lost")
        return found

    def _earlier(self, model):
        return self._before.get(model, {})

    def _grown(self, entry, model, name):
        before = self._earlier(model).get("inference_stats", {}).get(name, {}).get("count", 0)
        return entry["inference_stats"][name]["count"] - before

    # ---- clients

    def _run(self, model, protocol, client, chance):
        name = threading.current_thread().name
        counts = self.counts[model]
        line = contextlib.ExitStack()
        ask = None
        while not self._stopped.is_set():
            many = _IN_STREAM if protocol == "stream" else 1
            rows = [chance.randint(1, _MOST_ROWS) for _ in range(many)]
            numbers = [next(self._numbers) for _ in rows]
            arrays = [
                np.full((n, WIDTH), number % self._values, np.float32)
                for number, n in zip(numbers, rows, strict=True)
            ]
            with self._changed:
                counts.asked += many
            outcomes = []
            try:
                if ask is None:
                    ask = line.enter_context(client(self._server, model))
                for number, array, outcome in zip(
                    numbers, arrays, ask(numbers, arrays), strict=True
                ):
                    outcomes.append(_judged(number, array, outcome))
            except Exception as error:  # noqa: BLE001 - whatever it is, the connection is gone
                wrong = isinstance(error, WrongAnswer)
                missing = str(error) if wrong else Lost(f"{type(error).__name__}: {error}")
                outcomes += [missing] * (many - len(outcomes))
                with contextlib.suppress(Exception):
                    line.close()
                line, ask = contextlib.ExitStack(), None
            with self._changed:
                for array, outcome in zip(arrays, outcomes, strict=True):
                    self._count(name, counts, array, outcome)
                self._changed.notify_all()
            self._stopped.wait(_PAUSE_SECS)
        with contextlib.suppress(Exception):
            line.close()

    def _count(self, name, counts, array, outcome):
        if outcome is None:
            counts.right += 1
            counts.rows += len(array)
            self._answers[name] += 1
        elif isinstance(outcome, Refused):
            counts.refused[str(outcome)] += 1
        elif isinstance(outcome, Lost):
            counts.lost[str(outcome)] += 1
        else:
            counts.wrong.append(str(outcome))


def _judged(number, array, outcome):
    """None for the right answer, otherwise Refused or what is wrong."""
    if isinstance(outcome, Refused):
        return outcome if str(outcome) else f"request {number} got an error without a sentence"
    name, found = outcome
    if name != str(number):
        return f"the answer to {number} has the id {name!r}"
    if found.shape != array.shape or not np.array_equal(found, array + 1):
        return f"the answer to {number} is {found!r}"
    return None

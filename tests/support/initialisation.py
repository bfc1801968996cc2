"""Watches whether the initialisations of two models overlap, without a clock.

    with probe.visit("a"): ...      the first visitor stays until the test opens the gate

`waiting` is set when a model logs that it waits for another one, which tests have it do at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from shoal.backends import initialisation
from shoal.testing import WAIT_SECS


class OverlapProbe(logging.Handler):
    """What is being initialised, and the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.visits: list[str] = []
        self.inside = 0
        self.most = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.log_lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """A model waits."""
        self.log_lines.append(record.getMessage())
        self.waiting.set()

    @contextmanager
    def visit(self, name: str) -> Iterator[None]:
        """Code that must not run twice at the same time."""
        self.visits.append(name)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            assert self.gate.wait(WAIT_SECS)
            yield
        finally:
            self.inside -= 1

    def check(self, first: Callable[[], object], second: Callable[[], object]) -> str:
        """Run both, and assert that the second waits for the first; returns what it logs."""
        running = [in_thread(first)]
        assert self.entered.wait(WAIT_SECS)
        running.append(in_thread(second))
        assert self.waiting.wait(WAIT_SECS), f"did not wait: {self.visits}"
        self.gate.set()
        for one in running:
            one.result(WAIT_SECS)
        assert self.most == 1
        return self.log_lines[0]


@contextmanager
def overlap_probe() -> Iterator[OverlapProbe]:
    """A probe that hears of waits at once."""
    probe = OverlapProbe()
    logger = logging.getLogger(initialisation.__name__)
    before = initialisation._LONG_SECS, logger.level
    initialisation._LONG_SECS = 0.0
    logger.setLevel(logging.INFO)
    logger.addHandler(probe)
    try:
        yield probe
    finally:
        logger.removeHandler(probe)
        initialisation._LONG_SECS = before[0]
        logger.setLevel(before[1])
        probe.gate.set()


def in_thread(work: Callable[[], object]) -> Future[object]:
    """Run `work` on a thread of its own."""
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome

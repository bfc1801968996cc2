"""How long faults last: a moment in `make test`; `make chaos` divides its minutes among the tests.

With SHOAL_CHAOS_SEED the order of the tests and every choice in them follow from that number, so
that a failure can be repeated.
"""

from __future__ import annotations

import os
import time

import pytest

MINUTES = float(os.environ.get("SHOAL_CHAOS_MINUTES", "0"))
SEED = int(os.environ.get("SHOAL_CHAOS_SEED", "1"))
PAUSE_SECS = 3.0 if MINUTES else 0.5  # for which a process is stopped
_AROUND_SECS = 6.0  # of a test: the start and the end of its server

# Tests that `make test` leaves to `make chaos`: others show nearly the same.
long_run = pytest.mark.skipif(not MINUTES, reason="a part of 'make chaos'")

_secs = 0.0  # for the rounds of each test


def divide_among(tests):
    """Let the minutes be those of so many tests together."""
    global _secs  # noqa: PLW0603 - set once, when the tests are known
    _secs = max(0.0, MINUTES * 60 / max(tests, 1) - _AROUND_SECS) if MINUTES else 0.0


def rounds(least=1):
    """Numbers of rounds of a fault: at least so many, and until the time of a test is over."""
    until = time.monotonic() + _secs
    number = 0
    while number < least or time.monotonic() < until:
        yield number
        number += 1

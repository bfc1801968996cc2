"""The time that a model computes, without the time for which its thread was not scheduled.

On a busy machine a thread may wait for a CPU, or for the GIL, longer than a quick model takes.
That is not the model's time, and running it elsewhere would gain nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

# Rows of a batch, the nanoseconds that the model computed, and the same by the clock.
ComputeTime: TypeAlias = tuple[int, int, int]

SHORT_NS = 100_000  # not worth another look at the CPU time, which takes half a microsecond
_FINE_SECS = 1e-5

# The calling thread's CPU time. `getrusage` would not do: within a tick of the system (some
# milliseconds) it does not advance. Where the clock is as coarse (Windows), all time counts.
thread_cpu_ns: Callable[[], int] = (
    time.thread_time_ns
    if time.get_clock_info("thread_time").resolution <= _FINE_SECS
    else time.monotonic_ns
)


def own_ns(elapsed_ns: int, cpu_before_ns: int, blocked_ns: int = 0) -> int:
    """The CPU time in the `elapsed_ns` since the calling thread's was `cpu_before_ns`, and the time
    for which it was blocked by a device.

    A short time counts as it is.
    """
    if elapsed_ns <= SHORT_NS:
        return elapsed_ns
    return min(elapsed_ns, thread_cpu_ns() - cpu_before_ns + blocked_ns)

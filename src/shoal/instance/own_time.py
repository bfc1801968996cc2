"""The time of an execution, without the time for which its thread was not scheduled.

On a busy machine a thread may wait for a CPU longer than a quick model takes. That is not the
model's time, and running it elsewhere would gain nothing. What the model itself waits for (a
device, a lock, the clock) is its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

resource: ModuleType | None
try:
    import resource
except ImportError:  # not on Windows
    resource = None

_OF_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # only Linux has it

Usage: TypeAlias = Any  # a `struct_rusage`, or nanoseconds; reading its fields costs more than it

# The calling thread's usage so far. Takes half a microsecond.
usage_of_thread: Callable[[], Usage]
if resource is not None and _OF_THREAD is not None:
    usage_of_thread = partial(resource.getrusage, _OF_THREAD)
else:
    usage_of_thread = time.thread_time_ns


def own_ns(elapsed_ns: int, before: Usage, longest_wait_ns: int) -> int:
    """The model's own part of the `elapsed_ns` since the calling thread's usage was `before`.

    Up to `longest_wait_ns` this is its CPU time. Beyond, the time that the thread waited counts
    too, unless the system merely did not schedule it.
    """
    after = usage_of_thread()
    if isinstance(after, int):  # there is no count of waits
        waited, cpu_ns = True, after - before
    else:
        waited = after.ru_nvcsw != before.ru_nvcsw
        cpu_secs = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        cpu_ns = int(cpu_secs * 1e9)
    return elapsed_ns if waited and elapsed_ns > longest_wait_ns else min(elapsed_ns, cpu_ns)

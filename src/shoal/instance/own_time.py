"""How long an execution took by its own fault.

On a busy machine a thread that wants to run may wait for a processor, for longer than a quick model
takes. That is not the model's time, and nothing would be gained by running it elsewhere. What the
model waits for (a device, a lock, the clock) is its time.
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

Usage: TypeAlias = Any  # a `struct_rusage`, or nanoseconds: to read it takes longer than to get it

# What the calling thread has used so far. Takes half a microsecond.
usage_of_thread: Callable[[], Usage]
if resource is not None and _OF_THREAD is not None:
    usage_of_thread = partial(resource.getrusage, _OF_THREAD)
else:
    usage_of_thread = time.thread_time_ns


def own_ns(elapsed_ns: int, before: Usage, longest_wait_ns: int) -> int:
    """What is a model's own of the time that has `elapsed` since the calling thread had `before`.

    Up to `longest_wait_ns` it is the time on the processor. Beyond, the time that it waited counts
    too, unless the system has just not let it run.
    """
    after = usage_of_thread()
    if isinstance(after, int):  # nobody counts how often it waited
        waited, cpu_ns = True, after - before
    else:
        waited = after.ru_nvcsw != before.ru_nvcsw
        cpu_secs = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        cpu_ns = int(cpu_secs * 1e9)
    return elapsed_ns if waited and elapsed_ns > longest_wait_ns else min(elapsed_ns, cpu_ns)

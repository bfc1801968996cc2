"""`shoal` with an event loop that measures how long it was kept from its connections, in CPU time.

    python measured_server.py FIGURES serve ...

A timer of the loop runs every two milliseconds. The CPU time between two runs is what the loop did
in one go, or what other threads did while they held the interpreter lock: others waited as long.
Waiting for a busy machine takes no CPU time. The longest of these times are kept in the file
FIGURES, as two float64: of the loop's thread, and of the process. The test sets them to 0.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

from shoal.cli import process
from shoal.cli.main import main

_EVERY_SECS = 0.002


def measure(loop, longest):
    """Keep the largest figures of `loop` in `longest`."""
    before = [time.thread_time(), time.process_time()]

    def beat():
        now = (time.thread_time(), time.process_time())
        for index, moment in enumerate(now):
            longest[index] = max(longest[index], moment - before[index])
        before[:] = now
        loop.call_later(_EVERY_SECS, beat)

    loop.call_soon(beat)


def run():
    with Path(sys.argv.pop(1)).open("r+b") as file:
        longest = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
    make = process.new_event_loop

    def new_event_loop():
        loop = make()
        measure(loop, longest)
        return loop

    process.new_event_loop = new_event_loop
    return main()


if __name__ == "__main__":
    sys.exit(run())

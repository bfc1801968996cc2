"""`shoal` with a wall clock that a test can set: it shows the real time plus the seconds in a file.

    python stepped_clock.py OFFSET serve ...

OFFSET is a file with one float64. Only the wall clock steps; the monotonic clock goes on as it
does when an administrator or NTP sets the time. The clocks are replaced before anything of Shoal
is imported.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path


def install(file):
    """Replace `time.time` and `time.time_ns`."""
    with Path(file).open("r+b") as opened:
        offset = memoryview(mmap.mmap(opened.fileno(), 8)).cast("d")
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + offset[0]
    time.time_ns = lambda: real_ns() + int(offset[0] * 1e9)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are no concern of the server
    install(sys.argv.pop(1))
    from shoal.cli.main import main

    sys.exit(main())

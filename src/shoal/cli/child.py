"""`shoal` as a child process that another program holds: it stops when its standard input ends.

    python -m shoal.cli.child serve models

The input of a child ends with the process that has the other end of the pipe, however that ends.
The server then stops as after SIGTERM: it finishes its requests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from shoal.cli.main import main


def _stop_at_end_of_input() -> None:
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_at_end_of_input, name="shoal-input", daemon=True).start()
    sys.exit(main())

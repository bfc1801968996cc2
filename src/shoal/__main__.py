"""`python -m shoal`, for where the command `shoal` is not on the path."""

from __future__ import annotations

import sys

from shoal.cli.main import main

sys.exit(main())

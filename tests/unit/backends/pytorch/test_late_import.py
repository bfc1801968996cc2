"""PyTorch is imported when a model needs it, and missed with a sentence."""

from __future__ import annotations

import subprocess
import sys

MISSING = """
import sys
sys.modules["torch"] = None
from shoal.backends.registry import BackendRegistry
from shoal.errors import ConfigError
try:
    BackendRegistry().get("pytorch_libtorch", file="m/config.pbtxt")
except ConfigError as error:
    print(error.message)
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_server_does_not_import_it():
    program = (
        "import sys, shoal.server, shoal.backends.registry as registry\n"
        "import shoal.backends.pytorch.settings, shoal.backends.pytorch.archive\n"
        "import shoal.backends.pytorch.names\n"
        "assert 'pytorch' in registry.names()\n"
        "print('torch' in sys.modules)"
    )
    assert run(program) == "False\n"


def test_without_it():
    told = run(MISSING)
    assert "the backend 'pytorch' cannot be used because 'torch' is not installed" in told
    assert "pip install 'shoal[torch]'" in told

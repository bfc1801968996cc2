"""One server with the demo models, as `make serve` starts it, but on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

COMMAND = (sys.executable, "-m", "shoal", "serve", "--demo")
FREE_PORTS = ("--http-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
LAST_LINE = "Ctrl-C stops the server."
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation")


@dataclass(frozen=True)
class Demo:
    address: str  # 127.0.0.1:<port>
    banner: str  # its output up to the moment it was ready

    def here(self, text: str) -> str:
        """Replace the default address in `text` by this server's."""
        return text.replace("localhost:8000", self.address)


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    log_path = tmp_path_factory.mktemp("demo") / "stderr"
    with (
        log_path.open("wb") as log,
        subprocess.Popen(
            (*COMMAND, *FREE_PORTS), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            lines = []
            while not lines or LAST_LINE not in lines[-1]:
                line = process.stdout.readline()
                if not line:
                    pytest.fail(f"the server ended instead of serving: {log_path.read_text()}")
                lines.append(line)
            banner = "".join(lines)
            address = re.search(r"(\S+:\d+)/v2/health/ready", banner)
            assert address, banner
            yield Demo(address[1], banner)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            status = process.wait()
    assert status == 0, log_path.read_text()


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory):
    """Install an example package with pip and return an environment that has it."""
    pytest.importorskip("hatchling")

    def install(name):
        folder = tmp_path_factory.mktemp("installed")
        source = root / "examples" / name
        done = subprocess.run(
            (*PIP, *OFFLINE, "--target", str(folder), str(source)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {**os.environ, "PYTHONPATH": str(folder)}

    return install


@pytest.fixture(scope="session")
def run_python():
    """Run Python in an environment and return its output."""

    def run(environment, *arguments):
        done = subprocess.run(
            (sys.executable, *arguments),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run

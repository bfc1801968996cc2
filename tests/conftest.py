"""What all tests share.

Tests that need a program are skipped where it is missing. Property tests use the same examples in
every run and have no deadline, so that neither chance nor a busy machine fails them;
`pytest --hypothesis-profile=explore` looks for new examples, and tries more of them.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "azurite": ("azurite-blob", "node"),
    "browser": ("chromium",),
    "curl": ("curl",),
    "helm": ("helm",),
    "java": ("javac", "protoc", "grpc_java_plugin", "curl"),
    "kserve": ("kserve-python",),
    "nghttp2": ("nghttp", "h2load"),
    "perf_analyzer": ("perf_analyzer",),
    "prometheus": ("prometheus", "promtool"),
    "rclone": ("rclone",),
    "redis": ("redis-server",),
    "systemd": ("systemd-analyze",),
}

# Many tests start Python, and compiling Shoal would take most of their time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `make test` unpacks perf_analyzer in the first and pip installs rclone into the second; a plain
# `pytest` finds them too.
_FOLDERS = (str(ROOT / ".tools" / "bin"), sysconfig.get_path("scripts"), os.environ["PATH"])
os.environ["PATH"] = os.pathsep.join(_FOLDERS)

for profile, same_examples, most in (("steady", True, 25), ("explore", False, 200)):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=same_examples,
        max_examples=most,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("steady")


def pytest_configure(config):
    if os.environ.get("SHOAL_SERVERS") == "processes":
        # Tests that look into the server are skipped halfway, and leave their connections behind.
        config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")


def pytest_collection_modifyitems(items):
    missing = {
        marker: [name for name in names if shutil.which(name) is None]
        for marker, names in PROGRAMS.items()
    }
    for item in items:
        if os.environ.get("SHOAL_SERVERS") and item.get_closest_marker("one_process"):
            item.add_marker(pytest.mark.skip(reason="the engine is at the other end of a link"))
        if os.environ.get("SHOAL_SERVERS") == "processes":
            for fixture in {"caplog", "monkeypatch"} & {*getattr(item, "fixturenames", ())}:
                item.add_marker(pytest.mark.skip(reason=f"{fixture} is for one process"))
        for marker, names in missing.items():
            if names and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(names)}"))


_frozen_modules = 0
_begun_secs = 0.0  # when the garbage collection in progress began, in CPU time
_longest_secs = 0.0  # the longest one since objects were exempted
SLOW_COLLECTION_SECS = 0.05


def _time_collection(phase, info):
    global _begun_secs, _longest_secs  # noqa: PLW0603 - as below
    if info["generation"] == 2:
        now = time.process_time()
        if phase == "stop":
            _longest_secs = max(_longest_secs, now - _begun_secs)
        _begun_secs = now


gc.callbacks.append(_time_collection)


def pytest_collection_finish():
    """Exempt the collected tests from garbage collection.

    A server collects garbage whenever it unloads a model, which would scan all of them.
    """
    global _frozen_modules, _longest_secs  # noqa: PLW0603 - hooks have no object to keep it in
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)
    _longest_secs = 0.0


def pytest_runtest_logfinish():
    """Exempt the libraries that a test has imported, too."""
    if len(sys.modules) > _frozen_modules + 100:
        pytest_collection_finish()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """And what the tests of a file have left behind, once collections take long.

    Not before the end of the file, whose tests may expect that garbage is collected.
    """
    result = yield
    if _longest_secs > SLOW_COLLECTION_SECS and (nextitem is None or nextitem.path != item.path):
        pytest_collection_finish()
    return result


@pytest.fixture(scope="session")
def root():
    """The repository's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def tool(root):
    """Load a script of tools/ by its name, as a module."""

    def load(name):
        path = root / "tools" / f"{name}.py"
        specification = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def port():
    """A free port that no other process gets before a server listens on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with root.pem, and own.pem and own.key signed by it for localhost.

    Server and clients share them.
    """
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    subject = ["-subj", "/CN=localhost", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]  # required from Python 3.13 on
    openssl("req", "-x509", *key, *subject, *usage, "-keyout", "root.key", "-out", "root.pem")
    openssl("req", *key, "-subj", "/CN=localhost", "-keyout", "own.key", "-out", "own.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    openssl(
        *("x509", "-req", "-in", "own.csr", "-CA", "root.pem", "-CAkey", "root.key"),
        *("-CAcreateserial", "-extfile", "names", "-days", "2", "-out", "own.pem"),
    )
    return folder

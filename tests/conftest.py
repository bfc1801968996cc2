"""What every test shares: tests that need a program are left out where it is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "browser": ("chromium",),
    "curl": ("curl",),
    "java": ("javac", "protoc", "grpc_java_plugin", "curl"),
    "nghttp2": ("nghttp", "h2load"),
    "perf_analyzer": ("perf_analyzer",),
    "redis": ("redis-server",),
}

# `make test` unpacks perf_analyzer there; a plain `pytest` finds it too.
os.environ["PATH"] = f"{ROOT / '.tools' / 'bin'}{os.pathsep}{os.environ['PATH']}"


def pytest_collection_modifyitems(items):
    missing = {
        marker: [name for name in names if shutil.which(name) is None]
        for marker, names in PROGRAMS.items()
    }
    for item in items:
        for marker, names in missing.items():
            if names and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(names)}"))


@pytest.fixture(scope="session")
def root():
    """The repository's root folder."""
    return ROOT

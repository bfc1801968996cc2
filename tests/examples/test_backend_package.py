"""The example of a backend in a package of its own: installed by pip, tested and served."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation")

SERVE = """
import sys
import numpy as np
from shoal.testing.client import Infer, outputs
from shoal.testing.server import running_server

with running_server(sys.argv[1]) as running:
    assert running.get("/v2/models/prices").json["inputs"][0]["shape"] == [-1, 3]
    request = Infer().add("x", np.ones((2, 3), np.float32), binary=True)
    print(outputs(request.send(running, "prices"))["y"].tolist())
"""


@pytest.fixture(scope="module")
def package(root, tmp_path_factory):
    """The environment of a Python that has the package installed."""
    pytest.importorskip("hatchling")
    source = root / "examples" / "backend_package"
    folder = tmp_path_factory.mktemp("installed")
    done = subprocess.run(
        (*PIP, *OFFLINE, "--target", str(folder), str(source)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(package, *arguments):
    done = subprocess.run(
        (sys.executable, *arguments), env=package, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass(package, root):
    test = root / "examples" / "backend_package" / "test_shoal_npz.py"
    output = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
    assert "4 passed" in output


def test_its_models_are_served(package, tmp_path):
    folder = tmp_path / "prices"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "npz"\n')
    np.savez(folder / "1" / "model.npz", weights=np.full((3, 2), 2.0), bias=np.array([0.0, 1.0]))
    assert run(package, "-c", SERVE, str(tmp_path)) == "[[6.0, 7.0], [6.0, 7.0]]\n"


def test_without_the_package_its_name_is_unknown(tmp_path):
    from shoal.backends import registry
    from shoal.errors import ConfigError

    with pytest.raises(ConfigError, match="unknown backend 'npz'"):
        registry.get("npz")

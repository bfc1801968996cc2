"""The example of a backend in a separate package: installed by pip, tested and served."""

from __future__ import annotations

import numpy as np
import pytest

SERVE = """
import sys
import numpy as np
from tests.support.client import Infer, outputs
from shoal.testing.server import running_server

with running_server(sys.argv[1]) as running:
    assert running.get("/v2/models/prices").json["inputs"][0]["shape"] == [-1, 3]
    request = Infer().add("x", np.ones((2, 3), np.float32), binary=True)
    print(outputs(request.send(running, "prices"))["y"].tolist())
"""


@pytest.fixture(scope="module")
def package(installed):
    """The environment of a Python that has the package installed."""
    return installed("backend_package")


def test_its_own_tests_pass(package, root, run_python):
    test = root / "examples" / "backend_package" / "test_shoal_npz.py"
    output = run_python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
    assert "4 passed" in output


def test_its_models_are_served(package, tmp_path, run_python):
    folder = tmp_path / "prices"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text('backend: "npz"\n')
    np.savez(folder / "1" / "model.npz", weights=np.full((3, 2), 2.0), bias=np.array([0.0, 1.0]))
    assert run_python(package, "-c", SERVE, str(tmp_path)) == "[[6.0, 7.0], [6.0, 7.0]]\n"


def test_without_the_package_its_name_is_unknown(tmp_path):
    from shoal.backends import registry
    from shoal.errors import ConfigError

    with pytest.raises(ConfigError, match="unable to find backend library for backend 'npz'"):
        registry.get("npz")

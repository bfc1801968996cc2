"""The programs of the image as modules."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session")
def program(root):
    """Load a program of deploy/docker by its name."""

    def load(name):
        path = root / "deploy" / "docker" / f"{name}.py"
        specification = importlib.util.spec_from_file_location(f"docker_{name}", path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load

"""The scripts in tools/ as modules."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session")
def tool(root):
    """Load a script by its name."""

    def load(name):
        path = root / "tools" / f"{name}.py"
        specification = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load

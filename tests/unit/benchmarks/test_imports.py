"""Benchmarks are run by hand: what they import from this repository must still exist."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OURS = ("shoal", "tests", "benchmarks")


@pytest.mark.parametrize(
    "file", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda file: file.stem
)
def test_imported_names_exist(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            try:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
            except ModuleNotFoundError as error:
                if str(error.name).partition(".")[0] in OURS:
                    raise
                # otherwise an optional library is missing

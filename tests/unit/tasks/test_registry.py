"""Which tasks there are, and what is said where one is missing or broken."""

import importlib.metadata

import pytest

from shoal.errors import ConfigError
from shoal.tasks import registry
from shoal.tasks.base import Task


class Shout(Task):
    name = "shouting"
    operation = "shout"

    async def perform(self, asked):
        return asked.text("text", longest=10).upper()


class Entry:
    def __init__(self, name, load):
        self.name = name
        self.load = load


@pytest.fixture
def installed(monkeypatch):
    """Adds tasks as installed packages would."""
    entries = []

    def found(group, name=None):
        assert group == "shoal.tasks"
        chosen = [entry for entry in entries if name in (None, entry.name)]
        return importlib.metadata.EntryPoints(chosen)

    monkeypatch.setattr(registry, "entry_points", found)
    registry.operations.cache_clear()
    yield lambda name, load: entries.append(Entry(name, load))
    registry.operations.cache_clear()


def test_built_in_tasks_are_named_without_being_imported():
    assert set(registry.BUILT_IN) <= set(registry.names())
    assert registry.operations()["classify"] == "image-classification"


def test_an_installed_package_adds_a_task(installed):
    installed("shouting", lambda: Shout)
    assert registry.get("shouting") is Shout
    assert registry.operations()["shout"] == "shouting"
    assert "shouting" in registry.names()


def test_an_unknown_task_is_told_with_those_there_are():
    with pytest.raises(ConfigError, match=r"no task 'image-clasification'.*'image-classification'"):
        registry.get("image-clasification")


def test_a_missing_library_is_told_with_the_way_out(installed):
    def load():
        raise ImportError("No module named 'PIL'")

    installed("drawing", load)
    with pytest.raises(ConfigError, match=r"No module named 'PIL'.*pip install"):
        registry.get("drawing")


def test_a_broken_package_costs_its_own_task_only(installed):
    def load():
        raise RuntimeError("broken")

    installed("drawing", load)
    with pytest.raises(ConfigError, match="'drawing' failed to load: RuntimeError: broken"):
        registry.get("drawing")
    assert registry.operations()["classify"] == "image-classification"

"""The runner of the whole suite, on a small suite of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

RUNNER = Path(__file__).parents[3] / "tools" / "run_tests.py"
SOUND = "def test_sound(): pass\n"
BROKEN = "def test_broken(): assert False\n"
ONCE = """
from pathlib import Path
def test_once_{number}():
    mark = Path(__file__).with_suffix(".{number}")
    before = mark.exists()
    mark.touch()
    assert before
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    specification = importlib.util.spec_from_file_location("run_tests", RUNNER)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.delenv("SHOAL_SECOND_LOOK", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    for folder in (*module.PEOPLE, *module.FORMATS):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path, SOUND, "tests/tasks")
    write(tmp_path, SOUND)
    return module


def write(root, text, folder="tests"):
    (root / folder / f"test_{folder.replace('/', '_')}.py").write_text(text)


def test_all_is_well(runner, capfd):
    assert runner.main([]) == 0
    assert "mend" not in capfd.readouterr().out


@pytest.mark.parametrize("folder", ["tests", "tests/tasks"])
def test_what_fails_twice_fails_the_run(runner, tmp_path, folder, capfd):
    write(tmp_path, BROKEN, folder)
    assert runner.main([]) == 1
    said = capfd.readouterr().out
    assert "once more, alone: 1 that failed" in said
    assert "mend" not in said


def test_what_passes_alone_is_named(runner, tmp_path, capfd):
    write(tmp_path, ONCE.format(number=1) + SOUND)
    write(tmp_path, ONCE.format(number=2), "tests/tasks")
    assert runner.main([]) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "  mend tests/tasks/test_tests_tasks.py::test_once_2",
        "  mend tests/test_tests.py::test_once_1",
    ]


def test_many_failures_are_no_accident(runner, tmp_path, capfd):
    write(tmp_path, "".join(ONCE.format(number=number) for number in range(4)))
    assert runner.main([]) == 1
    assert "once more" not in capfd.readouterr().out


def test_a_process_that_dies_is_no_accident(runner, tmp_path, capfd):
    write(tmp_path, BROKEN + "def test_dies():\n    import os\n    os._exit(3)\n")
    assert runner.main([]) == 1
    assert "once more" not in capfd.readouterr().out


def test_no_second_look_when_told_so(runner, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SHOAL_SECOND_LOOK", "no")
    write(tmp_path, ONCE.format(number=1))
    assert runner.main([]) == 1
    assert "once more" not in capfd.readouterr().out


def test_arguments_are_one_plain_pytest(runner, tmp_path):
    write(tmp_path, ONCE.format(number=1), "tests/tasks")
    assert runner.main(["-p", "no:cacheprovider", "tests/test_tests.py"]) == 0
    assert runner.main(["-p", "no:cacheprovider", "tests/tasks"]) == 1

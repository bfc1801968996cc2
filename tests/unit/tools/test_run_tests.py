"""The runner of the whole suite, on a small suite of its own."""

from __future__ import annotations

import pytest

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
def runner(tool, tmp_path, monkeypatch):
    module = tool("run_tests")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "GROUPS", (("tests/tasks",),))
    monkeypatch.setattr(module, "QUICK_GROUPS", (("tests/unit/wire",),))
    monkeypatch.delenv("SHOAL_RETRY_FAILED", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    for folder in ("tests", "tests/tasks", "tests/unit", "tests/unit/wire"):
        (tmp_path / folder).mkdir(exist_ok=True)
        write(tmp_path, SOUND, folder)
    return module


def write(root, text, folder="tests"):
    (root / folder / f"test_{folder.replace('/', '_')}.py").write_text(text)


def test_all_pass(runner, capfd):
    assert runner.main([]) == 0
    output = capfd.readouterr().out
    assert "1 passed" in output
    assert "3 passed" in output
    assert "fix" not in output


@pytest.mark.parametrize("folder", ["tests", "tests/tasks"])
def test_a_test_that_fails_twice_fails_the_run(runner, tmp_path, folder, capfd):
    write(tmp_path, BROKEN, folder)
    assert runner.main([]) == 1
    output = capfd.readouterr().out
    assert "running 1 failed tests again, alone" in output
    assert "fix" not in output


def test_a_test_that_passes_alone_is_listed(runner, tmp_path, capfd):
    write(tmp_path, ONCE.format(number=1) + SOUND)
    write(tmp_path, ONCE.format(number=2), "tests/tasks")
    assert runner.main([]) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "  fix tests/test_tests.py::test_once_1",
        "  fix tests/tasks/test_tests_tasks.py::test_once_2",
    ]


def test_many_failures_are_not_retried(runner, tmp_path, capfd):
    write(tmp_path, "".join(ONCE.format(number=number) for number in range(4)))
    assert runner.main([]) == 1
    assert "again, alone" not in capfd.readouterr().out


def test_nothing_is_retried_after_a_crash(runner, tmp_path, capfd):
    write(tmp_path, BROKEN + "def test_dies():\n    import os\n    os._exit(3)\n")
    assert runner.main([]) == 1
    assert "again, alone" not in capfd.readouterr().out


def test_retries_can_be_switched_off(runner, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SHOAL_RETRY_FAILED", "no")
    write(tmp_path, ONCE.format(number=1))
    assert runner.main([]) == 1
    assert "again, alone" not in capfd.readouterr().out


def test_quick_runs_the_unit_tests_only(runner, tmp_path, capfd):
    write(tmp_path, BROKEN, "tests/tasks")
    assert runner.main(["--quick"]) == 0
    assert capfd.readouterr().out.count("1 passed") == 2


def test_other_arguments_are_one_plain_pytest(runner, tmp_path):
    write(tmp_path, ONCE.format(number=1), "tests/tasks")
    assert runner.main(["-p", "no:cacheprovider", "tests/test_tests.py"]) == 0
    assert runner.main(["-p", "no:cacheprovider", "tests/tasks"]) == 1


def test_groups_name_what_exists(tool, root):
    module = tool("run_tests")
    named = [each for group in (*module.GROUPS, *module.QUICK_GROUPS) for each in group]
    places = [each.removeprefix("--ignore=") for each in named]
    assert [place for place in places if not (root / place).exists()] == []


def test_what_one_group_leaves_out_another_has(tool):
    groups = tool("run_tests").GROUPS
    left_out = {each.removeprefix("--ignore=") for group in groups for each in group if "=" in each}
    assert left_out
    assert left_out <= {each for group in groups for each in group}

"""The README's promises: `console` blocks give the answers they show, `python` blocks run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def conversations():
    """Each `$ command` with the lines that follow it; `> ` continues a command."""
    pairs = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], []))
        elif line.startswith("> "):
            command, answer = pairs.pop()
            pairs.append((f"{command}\n{line[2:]}", answer))
        else:
            pairs[-1][1].append(line)
    return [(command, "\n".join(answer)) for command, answer in pairs]


@pytest.mark.curl
@pytest.mark.parametrize(("command", "answer"), conversations())
def test_the_answer_is_the_one_shown(demo, command, answer):
    line = demo.here(command).replace("curl ", "curl --silent --show-error ")
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == answer, done.stderr


def test_there_are_three_lines_to_try():
    assert len(conversations()) == 3


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(demo, code):
    command = (sys.executable, "-c", demo.here(code))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A SHOAL OF FISH" in done.stdout

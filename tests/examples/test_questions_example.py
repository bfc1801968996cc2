"""The examples of questions, over HTTP and over TCP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "questions"


def run(name, address):
    command = (sys.executable, str(FOLDER / name), address)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_all_are_here():
    assert {path.name for path in FOLDER.glob("*.py")} == {"ask.py", "over_tcp.py"}


def test_over_http(demo):
    done = run("ask.py", demo.address)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("lateral line (0.")
    assert lines[1:3] == [
        "Where does the lateral line run? along both of its sides",
        "How many fish are in a shoal? three billion",
    ]
    assert lines[-1].startswith("Unknown; the best guess was: ")


def test_over_tcp(tmp_path):
    from shoal.cli.demo import repository
    from shoal.testing.server import running_server

    (tmp_path / "questions").symlink_to(Path(repository()) / "questions")
    with running_server(tmp_path, tcp_port=0, tcp_address="127.0.0.1") as running:
        done = run("over_tcp.py", f"127.0.0.1:{running.server.tcp_port}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Who built the pier? Ada Thornwell",
        "When was it built? 1874",
        "What is the name of the mayor? Unknown",
    ]


def test_without_a_server_they_fail():
    assert run("ask.py", "127.0.0.1:1").returncode != 0
    assert run("over_tcp.py", "127.0.0.1:1").returncode != 0

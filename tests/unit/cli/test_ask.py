"""`shoal ask` and `shoal stress`: what their options refuse, before anything is asked."""

from __future__ import annotations

import io
import sys

import pytest

from shoal.cli import ask, stress
from shoal.cli.main import main


@pytest.fixture
def piped(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    give("")
    return give


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["ask", "--por", "1"],
            "unrecognized arguments: --por 1; shoal ask --help lists all options",
        ),
        (["ask", "--port", "0"], "expected a whole number from 1 to 65535, found '0'"),
        (["ask", "--port", "x"], "expected a whole number from 1 to 65535, found 'x'"),
        (["ask", "--timeout", "0"], "expected a number of seconds above 0, found '0'"),
        (["ask", "--quiet", "--json"], "alternatives; choose one of them"),
        (["ask", "-q", " "], "--question is empty"),
        (["ask", "-q", "Why?"], "there is no text in standard input"),
        (["ask", "--text-file", "-"], "pass them with --question"),
        (
            ["ask", "--text-file", "none.txt"],
            "--text-file: 'none.txt' cannot be read: No such file",
        ),
        (
            ["ask", "--http", "localhost", "--port", "1"],
            "--port is for TCP and --http for HTTP",
        ),
        (["ask", "--http", "grpc://localhost"], "--http takes an HTTP address"),
        (["stress", "--clients", "1,x"], "expected a whole number from 1 to 100000, found 'x'"),
        (["stress", "--clients", "0"], "expected a whole number from 1 to 100000, found '0'"),
        (["stress", "--protocol", "grpc"], "invalid choice: 'grpc' (choose from"),
        (["stress", "--host", "a", "--url", "b"], "choose one of them"),
        (["stress", "--port", "9999"], "--port needs --host"),
        (
            ["stress", "--host", "a", "--sessions", "2"],
            "--sessions is for servers that stress starts",
        ),
        (
            ["stress", "--url", "a", "--model-repository", "b"],
            "--model-repository is for servers that stress starts",
        ),
        (["stress", "--url", "https://a"], "--url takes a plain HTTP address"),
        (
            ["stress", "--report", "a.png"],
            "--report writes an HTML page: name a .html file, found 'a.png'",
        ),
        (
            ["stress", "--csv", "none/a.csv"],
            "--csv: there is no folder 'none' to write 'a.csv' into",
        ),
        (["stress", "--text-file", "a.txt"], "--text-file needs questions about that text"),
        (["stress", "--model-repository", "none"], "none"),
        (["stress", "more"], "unrecognized arguments: more"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(words, says, piped, capsys):
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", [ask, stress])
def test_the_help(command, capsys):
    name = command.__name__.rpartition(".")[2]
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text == command.HELP
    assert text.startswith(f"usage: shoal {name}")
    assert all(len(line) <= 100 for line in text.splitlines())

"""The help texts: complete, fitted to the terminal, and cheap to print."""

import pytest

from shoal.cli.help import serve_help
from shoal.config.options import TABLE


def test_every_option_is_listed_once():
    lines = serve_help("shoal serve", width=100).splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  --")]
    assert listed == [option.flag for option in TABLE]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_fit_the_terminal(width):
    long = [
        line
        for line in serve_help("shoal serve", width=width).splitlines()
        if len(line) > width and not line.startswith("  --")
    ]
    assert long == []


def test_examples_come_first_and_defaults_are_shown():
    text = serve_help("shoal serve", width=100)
    assert text.startswith("usage: shoal serve [PATH ...] [OPTION ...]\n")
    assert text.index("shoal serve --demo") < text.index("--http-port <n>")
    assert "[default: 8000]" in text
    assert "Also called --model-store." in " ".join(text.split())


def test_what_a_whole_group_cannot_do_is_said_once():
    text = serve_help("shoal serve", width=100)
    assert "Repository agents (no effect: agents are Python packages):" in text
    assert text.count("agents are Python packages") == 1


def test_the_alias_takes_flags_only():
    text = serve_help("tritonserver", paths=False, width=100)
    assert text.startswith("usage: tritonserver [OPTION ...]\n")
    assert "tritonserver --model-repository=models" in text

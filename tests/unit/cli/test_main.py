"""The commands: what they print, and the code they leave behind."""

import subprocess
import sys

import pytest

import shoal
from shoal.cli import main as cli
from shoal.cli.main import main, tritonserver


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview(words, capsys):
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: shoal COMMAND")
    for command in cli.COMMANDS:
        assert f"\n  {command.name} " in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"


@pytest.mark.parametrize("words", [["help", "serve"], ["serve", "--help"], ["serve", "x", "-h"]])
def test_the_help_of_a_command(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: shoal serve")


@pytest.mark.parametrize(
    ("command", "words", "line"),
    [
        (main, ["serv"], "unknown command 'serv'; did you mean 'shoal serve'?"),
        (main, ["./m"], "unknown command './m'; to serve a folder, write 'shoal serve ./m'"),
        (main, ["--demo"], "--demo is before the command; write 'shoal serve --demo'"),
        (
            main,
            ["serve"],
            (
                "there is nothing to serve; name the folder of your models with "
                "'shoal serve PATH', or try 'shoal serve --demo'"
            ),
        ),
        (
            tritonserver,
            ["--http-port=1"],
            (
                "there is nothing to serve; name the folder of your models with "
                "'tritonserver --model-repository=PATH', or try 'tritonserver --demo'"
            ),
        ),
        (
            main,
            ["serve", "models", "--htp-port=1"],
            "unknown option --htp-port; did you mean --http-port?",
        ),
        (
            tritonserver,
            ["models"],
            "unexpected argument 'models'; a repository is given as --model-repository=models",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(command, words, line, capsys):
    assert command(words) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {line}\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["serve", "--help"], ["serve", "--http-port=x"]]
)
def test_help_and_mistakes_import_nothing_heavy(words):
    program = (
        "import sys; from shoal.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'numpy', 'onnxruntime', 'google.protobuf', 'asyncio', 'uvloop', 'httptools',"
        " 'orjson', 'psutil', 'ctypes'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_reader_who_has_seen_enough_is_no_error():
    program = "import sys; from shoal.cli.main import main; sys.exit(main(['serve', '--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_importing_the_package_is_light():
    program = "import sys, shoal; shoal.Options; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_unknown_names_of_the_package():
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'Sever'"):
        shoal.Sever  # noqa: B018

"""The commands `shoal` and `tritonserver`: find the sub-command, run it, return its exit code.

A sub-command is one line in COMMANDS and one module with `run(words) -> int`, imported only when
it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import shoal
from shoal.errors import ShoalError


class Command(NamedTuple):
    """One sub-command."""

    name: str
    summary: str
    module: str


COMMANDS = (
    Command("serve", "serve the models of a repository, or of a Python file", "shoal.cli.serve"),
    Command("check", "report problems of models, without serving them", "shoal.cli.check"),
    Command("config", "print the whole configuration of a model", "shoal.cli.config"),
    Command("perf", "measure a model on a running server", "shoal.cli.perf"),
    Command("tune", "find a good config for a model by measuring it", "shoal.cli.tune"),
    Command("plan", "how many replicas a load needs, from a measurement", "shoal.cli.plan"),
    Command("image", "send images to a classifier and print what it sees", "shoal.cli.image"),
    Command("push", "store models in a remote repository", "shoal.cli.push"),
    Command("pull", "download models of remote repositories into the cache", "shoal.cli.pull"),
    Command("export", "make a model's folder from a checkpoint", "shoal.cli.export"),
    Command("quantize", "write a model's next version in INT8 or FP16", "shoal.cli.quantize"),
    Command("ask", "ask questions about a text, at a prompt or in a pipe", "shoal.cli.ask"),
    Command("key", "make, list and remove the keys of clients", "shoal.cli.key"),
    Command("stress", "measure questions by sessions and clients", "shoal.cli.stress"),
    Command("ray", "serve with replicas on the nodes of a Ray cluster", "shoal.cli.ray"),
    Command("sagemaker", "serve in a container of Amazon SageMaker", "shoal.cli.sagemaker"),
)

_HELP_WORDS = ("-h", "--help", "help")
_VERSION_WORDS = ("-V", "--version")


def main(words: Sequence[str] | None = None) -> int:
    """`shoal`: the exit code is 0, or 1 after one line on stderr with the error."""
    return _guarded(lambda: _shoal(list(sys.argv[1:] if words is None else words)))


def tritonserver(words: Sequence[str] | None = None) -> int:
    """`tritonserver`: `shoal serve` with Triton's flags and without bare paths."""

    def run() -> int:
        from shoal.cli import serve

        arguments = list(sys.argv[1:] if words is None else words)
        return serve.run(arguments, program="tritonserver", paths=False)

    return _guarded(run)


def overview() -> str:
    """The text of `shoal --help`."""
    column = max(len(command.name) for command in COMMANDS) + 3
    commands = "\n".join(f"  {name:<{column}}{summary}" for name, summary, _ in COMMANDS)
    return f"""\
usage: shoal COMMAND [ARGUMENT ...]

Shoal {shoal.__version__} serves machine-learning models over HTTP and gRPC. It reads the
model repositories of NVIDIA Triton and speaks its protocol: clients and flags carry over.

Examples:
  shoal serve --demo      serve some small models and print what to try
  shoal serve models      serve the repository in the folder 'models'
  shoal serve app.py      serve the functions with @shoal.model in a Python file
  shoal check models      look for mistakes in it first
  shoal perf -m digits    measure a model of a running server
  shoal serve --help      list every option

Commands:
{commands}

The command `tritonserver` is `shoal serve` with Triton's flags (--model-repository=PATH).
`shoal --version` prints the version.
"""


def _shoal(words: list[str]) -> int:
    if not words or words[0] in _HELP_WORDS:
        if len(words) > 1 and words[0] in _HELP_WORDS:
            return _find(words[1])(["--help"])
        print(overview(), end="")
        return 0
    if words[0] in _VERSION_WORDS:
        print(f"shoal {shoal.__version__}")
        return 0
    return _find(words[0])(words[1:])


def _find(name: str) -> Callable[[list[str]], int]:
    for command in COMMANDS:
        if command.name == name:
            run: Callable[[list[str]], int] = import_module(command.module).run
            return run
    from shoal.cli.arguments import suggest
    from shoal.config.options import OptionError

    if name.startswith("-"):
        raise OptionError(f"{name} is before the command; write 'shoal serve {name}'")
    near = suggest(name, [command.name for command in COMMANDS])
    if near:
        raise OptionError(f"unknown command '{name}'; did you mean 'shoal {near}'?")
    raise OptionError(f"unknown command '{name}'; to serve a folder, write 'shoal serve {name}'")


def _guarded(run: Callable[[], int]) -> int:
    """Turn expected errors into one line and an exit code."""
    try:
        code = run()
        if sys.stdout is not None:  # a model on a thread may have closed it
            sys.stdout.flush()
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the server handles signals
        return 130
    except BrokenPipeError:  # `shoal serve --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code

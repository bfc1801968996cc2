"""Runs a page as its reader would: types commands, starts servers, compares outputs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import packages
from answers import same
from pages import PYTHON, ROOT, SHELL, Block
from samples import DEMO_MODELS, lay_out
from servers import DEMO, Background, Shoal, Uvicorn, server_words
from sessions import Done, Python, Shell, commands
from wording import needs_server, typed

_SERVES = re.compile(r"^(\w+=\S+ )*(shoal serve|tritonserver|make serve)\b(?!.*--help)")
_FILE_NAME = re.compile(r"^# ([\w/]+\.py)$")
_RUN_TARGETS = {"help"}
_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


class PageFailed(AssertionError):
    """A command or its output does not match the page."""


class LeftOut(Exception):  # not an error: something is not installed
    """A block needs a program or module that is missing."""


class Reader:
    """Runs one page. `close` ends everything that it started."""

    def __init__(
        self, folder: Path, tools: Path, samples: Path, demo: Callable[[], Background]
    ) -> None:
        self._folder = folder / "page"
        self._folder.mkdir()
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._samples = samples
        self._demo = demo
        self._env = {
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SHOAL_ROOT": str(ROOT),
            "DEMO_MODELS": str(DEMO_MODELS),
            "PYTHONWARNINGS": "default",
            "COLUMNS": "100",
        }
        self._shell: Shell | None = None
        self._python: Python | None = None
        self._server: Background | None = None
        self._others: list[Background] = []
        self._shown = Done(0, "", "")  # of the last block that was run
        self.left_out: list[str] = []

    def follow(self, blocks: list[Block]) -> None:
        """Run the page. Raises PageFailed."""
        lay_out(self._samples, "".join(block.text for block in blocks), self._folder)
        for block in blocks:
            if not block.is_run:
                continue
            try:
                self._look_for(block)
                self._read(block)
            except LeftOut as missing:
                self.left_out.append(f"{block.where} {missing}")
            except RuntimeError as error:
                raise PageFailed(f"{block.where}: {error}") from None

    def close(self) -> None:
        """End all programs. Raises PageFailed if a server did not stop cleanly."""
        for session in (self._shell, self._python):
            if session is not None:
                session.close()
        servers = [*self._others, *([self._server] if self._server else [])]
        for server in servers:
            server.ask_to_stop()
        statuses = [(server, server.stop()) for server in servers]
        for server, status in statuses:
            if isinstance(server, Shoal) and server.clean and status != 0:
                raise PageFailed(f"a server ended with {status}:\n{server.log}")

    # Kinds of blocks

    def _look_for(self, block: Block) -> None:
        for need in filter(None, block.run.get("needs", "").split(",")):
            module = need.removeprefix("module:")
            there = (
                find_spec(module) if module != need else shutil.which(need, path=self._env["PATH"])
            )
            if there is None:
                raise LeftOut(f"needs {module}")
        if (
            block.language in SHELL | {"console"}
            and "curl " in block.text
            and not shutil.which("curl")
        ):
            raise LeftOut("needs curl")

    def _read(self, block: Block) -> None:
        name = _FILE_NAME.match(block.lines[0]) if block.lines else None
        if "file" in block.run or (name and block.language in PYTHON):
            self._write(block, block.run.get("file") or name[1])
        elif block.language in SHELL or block.language == "setup":
            self._type(block, commands(block.text))
        elif block.language == "console":
            self._converse(block)
        elif block.language in PYTHON:
            self._interpret(block)
        elif "output" in block.run or (block.language == "json" and block.below_run):
            self._compare(block.where, block.text, self._shown, block.run.get("output", ""))
        elif block.language == "json":
            self._parse(block)
        else:
            raise PageFailed(f"{block.where}: nothing is known about running '{block.language}'")

    def _write(self, block: Block, name: str) -> None:
        path = self._in_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text), encoding="utf-8")
        if block.language in PYTHON and "__main__" in block.text:
            self._expect(block, f"python {name}", self._run(block, f"python {name}", block.where))

    def _type(self, block: Block, lines: list[tuple[int, str]]) -> None:
        out = error = ""
        for number, command in lines:
            where = f"{block.page}:{block.line + number}"
            done = self._run(block, command, where)
            self._expect(block, command, done, where)
            out, error = out + done.out, error + done.error
        self._shown = Done(0, out, error)

    def _converse(self, block: Block) -> None:
        for number, command, shown in conversation(block.lines):
            where = f"{block.page}:{block.line + number}"
            done = self._run(block, command, where)
            self._expect(block, command, done, where)
            self._shown = done
            if shown.strip():
                self._compare(where, shown, done, block.run.get("output", ""))

    def _interpret(self, block: Block) -> None:
        if self._python is None:
            self._python = Python(self._in_folder(), self._scratch, self._env)
        done = self._python.run(self._here(block.text), block.where)
        self._expect(block, "this block", done)
        self._shown = done

    def _parse(self, block: Block) -> None:
        try:
            json.loads(block.text)
        except ValueError as error:
            raise PageFailed(f"{block.where}: this is no JSON: {error}") from None

    # Running and checking

    def _run(self, block: Block, command: str, where: str) -> Done:
        if "background" in block.run:
            words = ["bash", "-c", f"exec {self._here(command)}"]
            self._others.append(Background(words, self._in_folder(), self._env))
            self._others[-1].wait_for(block.run["ready"])
            return Done(0, self._others[-1].log, "")
        if _SERVES.match(command) and "fails" not in block.run:
            return self._serve(command)
        if command.startswith(("uvicorn ", "fastapi ")):
            uvicorn = Uvicorn(command, self._in_folder(), self._env)
            self._replace(uvicorn)
            return Done(0, "", uvicorn.log)
        if packages.is_install(command):
            return packages.check_install(command)
        target = re.match(r"^make ([\w-]+)", command)
        if target:
            dry = "" if target[1] in _RUN_TARGETS else "-n "
            command = f'make -C "$SHOAL_ROOT" {dry}{command.removeprefix("make ")}'
        if self._shell is None:
            self._shell = Shell(self._folder, self._scratch, self._env)
        command = typed(command, self._place() if needs_server(command) else self._server)
        if "terminal" in block.run:
            path = self._scratch / "terminal"
            path.write_text(f"stty cols 80\n{command}\n", encoding="utf-8")
            command = f"python -c {shlex.quote(_TERMINAL)} bash {shlex.quote(str(path))}"
        return self._shell.run(command, where)

    def _serve(self, command: str) -> Done:
        if " ".join(server_words(command)) in DEMO:  # already running
            self._replace(None)
            return Done(0, "", self._demo().log)
        wanted = (tuple(server_words(command)), self._in_folder())
        for known in [*self._others, self._server]:  # a page may return to its first server
            if isinstance(known, Shoal) and known.asked_for == wanted:
                self._server, self._others = known, [*self._others, *filter(None, [self._server])]
                self._others.remove(known)
                return Done(0, "", known.log)
        server = Shoal(command, self._in_folder(), self._env)
        self._replace(server)
        return Done(0, "", server.log)

    def _replace(self, server: Background | None) -> None:
        """Use `server`, or the demo, for the following blocks."""
        if self._server is not None:
            self._others.append(self._server)
        self._server = server

    def _here(self, text: str) -> str:
        return self._place().here(text) if needs_server(text) else text

    def _place(self) -> Background:
        return self._server or self._demo()

    def _in_folder(self) -> Path:
        return self._shell.folder if self._shell else self._folder

    def _expect(self, block: Block, command: str, done: Done, where: str = "") -> None:
        failed = done.status != 0
        if failed == ("fails" in block.run):
            return
        verdict = f"status {done.status}" if failed else "no failure, though the page says so"
        raise PageFailed(f"{where or block.where}: {command}\n{verdict}\n{done.out}{done.error}")

    def _compare(self, where: str, shown: str, done: Done, mode: str) -> None:
        answer = done.out if done.out.strip() else done.error
        if not same(shown, answer, mode) and not same(shown, done.out + done.error, mode):
            raise PageFailed(f"{where}: the page shows\n{shown}\nbut the answer is\n{answer}")


def conversation(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Return line number, command and output of each `$ command` in a console block."""
    number, command, answer = 0, "", ""
    for index, line in enumerate([*lines, "$ "]):
        if line.startswith("$ ") or line == "$":
            if command:
                yield number, command, answer
            number, command, answer = index, line[2:], ""
        elif line.startswith("> ") and not answer:
            command += f"\n{line[2:]}"
        else:
            answer += f"{line}\n"


def make_tools(folder: Path) -> Path:
    """Make a folder for PATH: commands of this interpreter, and a curl that reports errors."""
    python = shlex.quote(sys.executable)
    tritonserver = (
        '-c "import sys; from shoal.cli.main import tritonserver; sys.exit(tritonserver())"'
    )
    programs = {
        "python": python,
        "python3": python,
        "pytest": f"{python} -m pytest -p no:cacheprovider",
        "shoal": f"{python} -m shoal",
        "tritonserver": f"{python} {tritonserver}",
    }
    curl = shutil.which("curl")
    if curl:
        programs["curl"] = f"{shlex.quote(curl)} --silent --show-error --fail-with-body"
    for name, command in programs.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    return folder

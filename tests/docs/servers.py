"""Servers that pages start: on free ports, ready before the page continues, stopped at its end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "tcp": 9999}
PORTS |= {"sagemaker": 8080, "vertex-ai": 8080}
# Commands for the server that all pages share; it is started with the last one.
DEMO = ("shoal serve --demo", "shoal serve --demo --tcp-port=9999")
_LISTENING = re.compile(r'listening for ([\w-]+) on (\S+?):(\d+)(?: \(TLS\))?"?$')
_READY = "the server is ready"
_PORT_FLAG = re.compile(r"--([\w-]+?)-port[= ](\d+)")
_ADDRESS = re.compile(r"\b(?:localhost|127\.0\.0\.1)([: ])(\d+)\b")
_UVICORN = re.compile(r"Uvicorn running on https?://(\S+):(\d+)")


class Background:
    """A program that runs until `stop`, and its addresses."""

    def __init__(self, words: list[str], folder: Path, env: Mapping[str, str]) -> None:
        self.ports: dict[int, int] = {}  # port in the page -> real port
        self._words = words
        self._log: list[str] = []
        self._asked = False  # to stop
        self._process = subprocess.Popen(
            words,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # the child of `make serve` must get the signal too
        )
        self._rest = threading.Thread(target=self._drain, daemon=True)

    @property
    def log(self) -> str:
        """The output so far."""
        return "".join(self._log)

    def wait_for(self, words: str) -> None:
        """Return when it has printed `words`. Raises RuntimeError if it ended before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log.append(line)
            self._look_at(line)
            if words in line:
                self._rest.start()
                return
        status = self._process.wait()
        self._process.stdout.close()
        raise RuntimeError(f"{shlex.join(self._words)} ended with {status}:\n{self.log}")

    def _look_at(self, line: str) -> None:
        """Process a line of the log."""

    def _drain(self) -> None:
        assert self._process.stdout is not None
        self._log.extend(self._process.stdout)

    def ask_to_stop(self) -> None:
        """Send the signal once, without waiting."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            os.killpg(self._process.pid, signal.SIGTERM)

    def stop(self) -> int:
        """Stop the program and return its status."""
        self.ask_to_stop()
        status = self._process.wait()
        if self._rest.ident is not None:
            self._rest.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def here(self, text: str) -> str:
        """Replace the addresses in `text` by the real ones."""

        def real(found: re.Match[str]) -> str:
            port = self.ports.get(int(found[2]))
            return found[0] if port is None else f"127.0.0.1{found[1]}{port}"

        return _ADDRESS.sub(real, text)

    def address(self, protocol: str = "http") -> str:
        """The address, as host:port."""
        return f"127.0.0.1:{self.ports[PORTS[protocol]]}"


class Shoal(Background):
    """`shoal serve`, `tritonserver` or `make serve`."""

    def __init__(self, command: str, folder: Path, env: Mapping[str, str]) -> None:
        flags = [
            "--http-port=0",
            "--grpc-port=0",
            "--metrics-port=0",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
        ]
        if "--tcp-port" in command:
            flags += ["--tcp-port=0", "--tcp-address=127.0.0.1"]
        for name in ("sagemaker", "vertex-ai"):
            flags += [f"--{name}-port=0", f"--{name}-address=127.0.0.1"]
        words = server_words(command)
        self.asked_for = (tuple(words), folder)
        self._named = {name: int(port) for name, port in _PORT_FLAG.findall(command)}
        env = dict(env)
        while "=" in words[0]:  # NAME=value before the command
            name, _, env[name] = words.pop(0).partition("=")
        self.clean = words[0] != "make"  # make itself fails on a signal
        if words[0] == "make":
            venv = Path(sys.executable).parent.parent
            words = [*words, f"VENV={venv}", f"--old-file={venv}/.installed"]
            words.append(f"ARGS={shlex.join(flags)}")
            folder = Path(env["SHOAL_ROOT"])
        else:
            words += flags
        super().__init__(words, folder, env)
        self.wait_for(_READY)

    def _look_at(self, line: str) -> None:
        found = _LISTENING.search(line.rstrip())
        if found:
            named = self._named.get(found[1], PORTS.get(found[1], 0))
            self.ports[named] = self.ports[PORTS.get(found[1], named)] = int(found[3])


def server_words(command: str) -> list[str]:
    """The words of a command that starts a server, without comments and a final `&`."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    return words[:-1] if words[-1] == "&" else words


class Uvicorn(Background):
    """`uvicorn app:app`: the server of a FastAPI application."""

    def __init__(self, command: str, folder: Path, env: Mapping[str, str]) -> None:
        words = shlex.split(command, comments=True)
        named = re.search(r"--port[= ](\d+)", command)
        self._named = int(named[1]) if named else 8000
        super().__init__([*words, "--port=0"], folder, env)
        self.wait_for("Uvicorn running on")

    def _look_at(self, line: str) -> None:
        found = _UVICORN.search(line)
        if found:
            self.ports[self._named] = int(found[2])

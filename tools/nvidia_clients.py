"""Run NVIDIA's Model Analyzer and pytriton's clients against Shoal: `make accept-clients`.

    PyPI --pip--> .tools/nvidia_clients (an environment of their own) --> a server of Shoal's

`triton-model-analyzer` profiles a small ONNX model, in its modes remote and local, with
perf_analyzer; `nvidia-pytriton` lends its clients (nvidia/pytriton_checks.py). Its wheel of 55 MB
has a whole Triton in it, 150 MB when installed, which is not started. Each check prints a line; the
exit status is 1 if one failed, and 0 with the reason where the packages cannot be installed.

    python tools/nvidia_clients.py [--only pytriton|model-analyzer] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import perf_analyzer
from nvidia import model_analyzer, repository

TOOLS = Path(__file__).resolve().parent.parent / ".tools"
PACKAGES = ("triton-model-analyzer==1.58.0", "nvidia-pytriton==0.7.0")
CHECKS = Path(__file__).with_name("nvidia") / "pytriton_checks.py"
KINDS = ("pytriton", "model-analyzer")
PORTS = ("http", "grpc", "metrics")
START_SECS = 60
_LISTENING = re.compile(r"listening for (\w+) on \S+:(\d+)")
_READY = "the server is ready"


def main() -> int:
    """Run the checks that are asked for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=KINDS, help="the checks of one package")
    parser.add_argument("--work", type=Path, help="keep models, reports and logs there")
    arguments = parser.parse_args()
    try:
        programs = environment(TOOLS / "nvidia_clients")
        perf_analyzer.fetch(TOOLS)
    except (RuntimeError, OSError) as error:
        print(f"not run: {error}")
        return 0
    with contextlib.ExitStack() as stack:
        work = arguments.work
        if work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return run(arguments.only, programs, work.resolve())


def environment(folder: Path) -> Path:
    """The programs of a virtual environment with the packages, installed if they are missing.

    Raises RuntimeError with the reason.
    """
    stamp = folder / ".installed"
    wanted = "\n".join(PACKAGES)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"installing {' and '.join(PACKAGES)} into {folder}", flush=True)
        _install([sys.executable, "-m", "venv", str(folder)])
        _install([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES])
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin"


def _install(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {reason}")


def run(only: str | None, programs: Path, work: Path) -> int:
    """The exit status of all checks."""
    models, app = repository.write(work)
    failed = 0
    if only != "model-analyzer":
        explicit = ("--model-control-mode=explicit", "--load-model=*")
        with _server(work / "pytriton.log", models, app, *explicit) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports[:2]]
            done = subprocess.run([programs / "python", CHECKS, *addresses], check=False)
            failed += done.returncode != 0
    if only != "pytriton":
        for protocol in ("http", "grpc"):
            failed += not _passed(
                f"model-analyzer: remote, {protocol}",
                lambda protocol=protocol: _profile_remote(programs, work, models, protocol),
            )
        failed += not _passed(
            "model-analyzer: local, grpc", lambda: _profile_local(programs, work, models)
        )
    return int(failed > 0)


def _profile_remote(programs: Path, work: Path, models: Path, protocol: str) -> str:
    log = work / f"remote-{protocol}.log"
    with _server(log, models, "--model-control-mode=explicit") as ports:
        return _profile(programs, work / f"remote-{protocol}", models, ports, protocol=protocol)


def _profile_local(programs: Path, work: Path, models: Path) -> str:
    return _profile(
        programs,
        work / "local",
        models,
        _free_ports(3),
        protocol="grpc",
        tritonserver=Path(sys.executable).with_name("tritonserver"),
    )


def _profile(programs: Path, work: Path, models: Path, ports: Sequence[int], **more: Any) -> str:
    load_generator = TOOLS / "bin" / perf_analyzer.BINARY
    program = programs / "model-analyzer"
    return model_analyzer.profile(program, work, models, ports, load_generator, **more)


def _passed(name: str, check: Callable[[], str]) -> bool:
    try:
        detail = check()
    except Exception:  # noqa: BLE001 - every check is run, and what failed is printed
        print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"PASS {name}: {detail}", flush=True)
    return True


@contextlib.contextmanager
def _server(log: Path, *words: str | Path) -> Iterator[list[int]]:
    """`shoal serve` with these words; its ports for HTTP, gRPC and metrics.

    Raises RuntimeError if it ends or is not ready in time.
    """
    free = [f"--{name}-port=0" for name in PORTS]
    command = [sys.executable, "-m", "shoal", "serve", *map(str, words), *free]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _wait_until_ready(process, log)
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> list[int]:
    deadline = time.monotonic() + START_SECS
    while _READY not in (text := log.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{text}")
        time.sleep(0.05)
    found = dict(_LISTENING.findall(text))
    return [int(found[name]) for name in PORTS]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


if __name__ == "__main__":
    sys.exit(main())

"""Run NVIDIA's public examples against Shoal: `tools/upstream_examples.py [--only NAME]`.

It needs git clones of triton-inference-server/python_backend, /tutorials, /vllm_backend, /core and
/server (bare ones will do), named by UPSTREAM_PYTHON_BACKEND, UPSTREAM_TUTORIALS and so on, or by
the options. Each example is laid out in a folder of its own as its README says, `shoal serve` is
started there on the ports that the clients have written in, and the example's own client runs.
Examples whose clone, libraries or programs are missing are left out. The exit status is 1 if one
failed.

The clients connect to localhost:8000 to 8002. To run this where these ports are in use, and to be
sure that nothing is downloaded, give it a network of its own:

    unshare -rn sh -c 'ip link set lo up && exec python tools/upstream_examples.py'

How an example is added: see tools/upstream/example.py.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from upstream import conceptual_guide, python_api, python_backend, tutorials
from upstream.clone import Clone
from upstream.example import Example
from upstream.run import FAILED, PORTS, Result, run, why_left_out
from upstream.table import as_text, write_markdown

TABLES = (python_backend, tutorials, conceptual_guide, python_api)
CLONES = {
    "python_backend": "UPSTREAM_PYTHON_BACKEND",
    "tutorials": "UPSTREAM_TUTORIALS",
    "vllm_backend": "UPSTREAM_VLLM_BACKEND",
    "core": "UPSTREAM_CORE",
    "server": "UPSTREAM_SERVER",
}
# the programs of this Python, and perf_analyzer as tools/perf_analyzer.py fetches it
PROGRAMS = (Path(sys.executable).parent, Path(__file__).resolve().parents[1] / ".tools" / "bin")


def main() -> int:
    """Run the examples that are asked for."""
    os.environ["PATH"] = os.pathsep.join((*map(str, PROGRAMS), os.environ["PATH"]))
    arguments = _parse()
    every = [example for table in TABLES for example in table.EXAMPLES]
    examples = chosen(every, arguments.only)
    if not examples:
        print(f"no example is called {' or '.join(arguments.only)}: see --list", file=sys.stderr)
        return 2
    named = {name: getattr(arguments, name) for name in CLONES}
    clones = {name: Clone(Path(path)) for name, path in named.items() if path}
    if arguments.list:
        for example in examples:
            reason = why_left_out(example, clones)
            print(f"{example.name}{f'  ({reason})' if reason else ''}")
        return 0
    if not clones:
        print(f"not run; set {' or '.join(CLONES.values())} (git clones of NVIDIA's repositories)")
        return 0
    if port := _port_in_use():
        print(f"port {port} is in use; the examples' clients connect to it", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="upstream-examples-") as temporary:
        results = _run_all(examples, clones, arguments.work or Path(temporary))
    print(as_text(results))
    if arguments.markdown:
        commits = {name: clone.commit for name, clone in clones.items()}
        write_markdown(arguments.markdown, results, [each.name for each in every], commits)
    return int(any(result.outcome == FAILED for result in results))


def chosen(examples: list[Example], names: list[str]) -> list[Example]:
    """All, or those whose name has one of `names` as parts: add_sub, tutorials/HuggingFace."""
    if not names:
        return examples

    def is_named(example: Example) -> bool:
        whole = f"/{example.name}/"
        return any(f"/{name.strip('/')}/" in whole for name in names)

    return [example for example in examples if is_named(example)]


def _run_all(examples: list[Example], clones: Mapping[str, Clone], work: Path) -> list[Result]:
    results = []
    for example in examples:
        print(f"{example.name} ...", flush=True)
        result = run(example, clones, work)
        results.append(result)
        print(f"    {result.outcome} {result.seconds:.1f} s {result.detail}", flush=True)
    return results


def _port_in_use() -> int | None:
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return port
    return None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, variable in CLONES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="CLONE",
            default=os.environ.get(variable),
            help=f"a git clone of {name}; by default ${variable}",
        )
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="a name, or parts of one"
    )
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write the rows into the table of this page"
    )
    parser.add_argument(
        "--work", metavar="FOLDER", type=Path, help="keep laid out examples and logs there"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Are several instances ever slower than one, or batching slower than none? The table of `stress`.

    python -m benchmarks.sessions [--name stress] [--requests 20] [--warmup 5]

Runs `shoal stress` over sessions 1, 2 and 4 and clients 1, 5, 20 and 50, about three minutes on two
idle cores, and prints the answers a second, with the largest decreases in each direction. Cells
during which other programs used more than a tenth of the CPUs are marked. Without numbers of
questions, those of `stress` hold, which are larger for few clients.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.places import RESULTS, ROOT

BUSY = 0.1  # of the CPUs, by other programs
NOISE = 0.9  # what counts as level
RUN = "import sys; from shoal.cli.main import main; sys.exit(main())"

Cells = Sequence[dict[str, Any]]


def table(cells: Cells) -> list[str]:
    """Answers a second, a row for each number of sessions without and with batching."""
    clients = sorted({cell["clients"] for cell in cells})
    lines = [
        f"| sessions, batching | {' | '.join(f'{count} clients' for count in clients)} |",
        f"|---|{'---:|' * len(clients)}",
    ]
    found = {_place(cell): cell for cell in cells}
    for sessions, batching in sorted({_place(cell)[:2] for cell in cells}):
        shown = []
        for count in clients:
            cell = found.get((sessions, batching, count))
            busy = "*" if cell is not None and (cell["others"] or 0.0) > BUSY else ""
            shown.append("-" if cell is None else f"{cell['per_second']:.1f}{busy}")
        lines.append(f"| {sessions}, {'on' if batching else 'off'} | {' | '.join(shown)} |")
    if any((cell["others"] or 0.0) > BUSY for cell in cells):
        lines += ["", f"\\* other programs used more than {BUSY:.0%} of the CPUs meanwhile."]
    return lines


def decreases(cells: Cells) -> list[str]:
    """In each direction, the least ratio of neighbouring cells, and where it is."""
    rates = {_place(cell): cell["per_second"] for cell in cells}
    sentences = []
    for words, axis in (("more clients", 2), ("more sessions", 0), ("batching", 1)):
        steps = []
        for place, rate in rates.items():
            others = [
                other
                for other in rates
                if other[axis] < place[axis]
                and all(other[one] == place[one] for one in range(3) if one != axis)
            ]
            if others:
                before = max(others, key=lambda other: other[axis])
                steps.append((rate / rates[before], before, place))
        if steps:
            least, before, place = min(steps)
            verdict = "rises or stays level" if least >= NOISE else "falls"
            sentences.append(
                f"- With {words} it {verdict}: at least {least:.2f} times as many answers "
                f"({_words(before)}, then {_words(place)})."
            )
    return sentences


def _place(cell: dict[str, Any]) -> tuple[int, bool, int]:
    return cell["sessions"], cell["batching"], cell["clients"]


def _words(place: tuple[int, bool, int]) -> str:
    sessions, batching, clients = place
    return (
        f"{sessions} session{'s' * (sessions > 1)}, batching {'on' if batching else 'off'}, "
        f"{clients} client{'s' * (clients > 1)}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run `shoal stress`, print, and write the report if it has a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, help="questions per client")
    parser.add_argument("--warmup", type=int, help="questions per client before them")
    parser.add_argument("--name", default="", help="write benchmarks/results/<name>.md, too")
    options = parser.parse_args(words)
    machine = ", ".join(f"{key} {value}" for key, value in describe().items())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.json"
        line = [sys.executable, "-c", RUN, "stress", "--json", str(file)]
        numbers = {"--requests": options.requests, "--warmup": options.warmup}
        given = [word for key, count in numbers.items() if count for word in (key, str(count))]
        subprocess.run([*line, *given], check=True, cwd=ROOT)
        cells = json.loads(file.read_text())["cells"]
    command = " ".join(["shoal stress", *given])
    lines = [f"Answers a second of `{command}`: {machine}", ""]
    text = "\n".join([*lines, *table(cells), "", *decreases(cells), ""])
    print(text)
    if options.name:
        (RESULTS / f"{options.name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

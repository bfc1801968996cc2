"""The table of results, for the terminal and for a page of the documentation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from upstream.run import FAILED, LEFT_OUT, PASSED, Result

BEGIN = "<!-- results: written by tools/upstream_examples.py --markdown -->\n"
END = "<!-- end of results -->\n"
_COMMIT = re.compile(r"(\w+) at ([0-9a-f]+)")
HEAD = ("Example", "Result", "Seconds", "Remark")


def as_text(results: Iterable[Result]) -> str:
    """Aligned columns."""
    rows = [HEAD, *map(_cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def write_markdown(
    page: Path, results: Iterable[Result], order: Sequence[str], commits: Mapping[str, str]
) -> None:
    """Write the rows of `results` between the two markers of `page`; rows of others stay.

    `order` is the names of all examples: rows of no example are dropped.
    """
    text = page.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page} lacks the lines {BEGIN.strip()} and {END.strip()}")
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    rows = _rows(old) | {result.name: _cells(result) for result in results}
    versions = dict(_COMMIT.findall(old)) | dict(commits)
    table = _markdown([rows[name] for name in order if name in rows], versions)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", "utf-8")


def _markdown(rows: Sequence[tuple[str, ...]], commits: Mapping[str, str]) -> str:
    """A count, the commits of the clones, and the rows."""
    count = Counter(row[1] for row in rows)
    counted = ", ".join(f"{count[outcome]} {outcome}" for outcome in (PASSED, FAILED, LEFT_OUT))
    versions = ", ".join(f"{name} at {commit}" for name, commit in commits.items())
    lines = ["| " + " | ".join(row) + " |" for row in (HEAD, ("---",) * len(HEAD), *rows)]
    return f"{counted} ({versions}).\n\n" + "\n".join(lines) + "\n"


def _rows(table: str) -> dict[str, tuple[str, ...]]:
    """The rows of a table that was written before, by the name of the example."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {cells[0].strip(): tuple(cell.strip() for cell in cells) for cells in lines}


def _cells(result: Result) -> tuple[str, ...]:
    seconds = "" if result.outcome == LEFT_OUT else f"{result.seconds:.0f}"
    return result.name, result.outcome, seconds, result.remark.replace("|", "/")

"""The table of results, for the terminal and for a page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from upstream.clone import Clone
from upstream.run import FAILED, LEFT_OUT, PASSED, Result

BEGIN = "<!-- results: written by tools/upstream_examples.py --markdown -->\n"
END = "<!-- end of results -->\n"
HEAD = ("Example", "Result", "Seconds", "Remark")


def as_text(results: Iterable[Result]) -> str:
    """Aligned columns."""
    rows = [HEAD, *map(_cells, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def as_markdown(results: Sequence[Result], commits: Mapping[str, str]) -> str:
    """A count, the commits of the clones, and a row for each example."""
    count = Counter(result.outcome for result in results)
    counted = ", ".join(f"{count[outcome]} {outcome}" for outcome in (PASSED, FAILED, LEFT_OUT))
    versions = ", ".join(f"{name} {commit}" for name, commit in commits.items())
    rows = [HEAD, ("---",) * len(HEAD), *map(_cells, results)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"{counted} ({versions}).\n\n" + "\n".join(lines) + "\n"


def write_markdown(page: Path, results: Sequence[Result], clones: Mapping[str, Clone]) -> None:
    """Replace what is between the two markers of `page`."""
    text = page.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page} lacks the lines {BEGIN.strip()} and {END.strip()}")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    commits = {name: clone.commit for name, clone in clones.items()}
    table = as_markdown(results, commits)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", "utf-8")


def _cells(result: Result) -> tuple[str, ...]:
    seconds = "" if result.outcome == LEFT_OUT else f"{result.seconds:.0f}"
    return result.name, result.outcome, seconds, result.remark

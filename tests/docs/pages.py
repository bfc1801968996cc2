"""Pages whose commands are executed: their blocks, and which of them are run.

    page --> blocks, in order --> reader.Reader runs them as a reader of the page would

Rules for authors of pages (README.md, CONTRIBUTING.md, docs/*.md, docs/deploy/*.md, examples/**/README.md):

- A fenced block of `sh` or `bash` is run command by command, in one shell and one folder for the
  whole page. Each command must end with status 0, and an HTTP error counts as a failure. In the
  folder are `examples/` as in a clone, a repository `models/` (three models of the demo, and a
  small `resnet`), `resnet50.onnx` and `mug.jpg`; see samples.py.
- `shoal serve ...`, `tritonserver ...` and `make serve`, also after `NAME=value`, start a server on
  free ports and wait until it is ready. The commands below use it, until the page starts another. A page that starts none
  uses `shoal serve --demo --tcp-port=9999`, which all pages share: start a separate server before
  you change models or settings. `localhost:8000`, `:8001`, `:8002`, `:8080` (SageMaker, Vertex AI)
  and `localhost 9999` are replaced by that server's addresses; `shoal perf`, `shoal image`, `shoal ask` and `python examples/....py`
  without arguments get its address. `.venv/bin/shoal` is `shoal`.
- `shoal perf`, `tune` and `stress` run as written, but with short windows and with latency limits
  that a busy machine meets.
- `pip install` is not run: its packages and extras must be in pyproject.toml. `make` is run for
  `serve` and `help`; other targets must exist (`make -n`).
- `console`: `$ ` starts a command, `> ` continues it, and the lines below are its expected output.
- `python` and `py` blocks of a page share one interpreter. A block that starts with `# app.py` is
  written to that file first, and run as a script if it has a `__main__`.
- `json` directly below a block that was run is its expected output; any other must be valid JSON.
- White space in outputs does not matter, and an ellipsis matches anything.

An HTML comment directly above a block changes this:

    <!-- run: no reason="needs a GPU" -->     do not run it; the reason is listed
    <!-- run: needs=redis-server -->          skip it if that program (or `module:torch`) is missing
    <!-- run: fails -->                       an error is expected: the status must not be 0
    <!-- run: output -->                      `text` that is the output of the block above
    <!-- run: output=numbers -->              a number matches any number
    <!-- run: output=words -->                these words must occur in this order
    <!-- run: file=models/a/config.pbtxt -->  write the block to that file, whatever its language
    <!-- run: terminal -->                    run it on a terminal, for progress lines and charts
    <!-- run: background ready="words" -->    a program that keeps running; continue when it has printed these words
    <!-- run: setup                           shell lines for the test only, not shown to readers;
    cp -r "$DEMO_MODELS" models               DEMO_MODELS is the folder of the demo repository,
    cd examples                               SHOAL_ROOT that of the clone; `setup needs=...` goes, too
    -->

`text` blocks, blocks without a language and indented blocks are not run and must not look like
commands.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/deploy/*.md",
    "examples/README.md",
    "examples/**/README.md",
)
SHELL = {"sh", "bash", "shell"}
PYTHON = {"python", "py"}
RUN = SHELL | PYTHON | {"console", "json"}
DIRECTIVES = {
    "no",
    "reason",
    "needs",
    "fails",
    "output",
    "file",
    "background",
    "ready",
    "setup",
    "terminal",
}
OUTPUT_MODES = {"", "numbers", "words"}

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<language>.*)$")
_COMMENT = re.compile(r"^ *<!-- *run: *(?P<text>.*?) *(?P<end>-->)? *$")
_COMMAND = re.compile(
    r"^ *(\$ |(curl|shoal|tritonserver|make|pip|python3?|pytest|perf_analyzer|docker|apt-get) )"
)


class PageError(Exception):
    """The page is invalid: an unknown word in a comment, an unclosed fence."""


@dataclass
class Block:
    """One fenced block, or the lines of a `setup` comment (language "setup")."""

    page: str
    line: int  # of its first line of text
    language: str
    lines: list[str]
    run: dict[str, str] = field(default_factory=dict)  # the directives of the comment above it
    below_run: bool = False  # directly below a block that is run

    @property
    def text(self) -> str:
        """The lines to run."""
        return "\n".join(self.lines) + "\n"

    @property
    def where(self) -> str:
        """The block's location, for errors."""
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the block is run or compared."""
        return "no" not in self.run and (
            self.language in RUN or self.language == "setup" or bool(self.run)
        )


def all_pages() -> list[Path]:
    """Return all pages, relative to the root."""
    found = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT) for path in found)


def weight(page: str) -> int:
    """Estimate how long a page takes: exports load PyTorch, everything else starts a process."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return 5 * len(re.findall(r"^(?:\$ )?shoal (?:export|tune)", text, re.MULTILINE)) + len(
        re.findall(r"^(?:\$ )?(?:shoal|tritonserver|uvicorn|python)\b", text, re.MULTILINE)
    )


def blocks(page: str, text: str) -> list[Block]:
    """The fenced blocks and set-up comments of a page, in order. Raises PageError."""
    found: list[Block] = []
    comment: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    near = False  # the last non-empty line belonged to a block
    for number, line in lines:
        fence = _FENCE.match(line)
        remark = _COMMENT.match(line)
        if fence:
            block = Block(page, number + 1, _language(fence["language"]), [], comment)
            _read_until(lines, block, lambda text, marks=fence["marks"]: text.strip() == marks)
            block.lines = [text.removeprefix(fence["indent"]) for text in block.lines]
            block.below_run = near and bool(found) and found[-1].is_run
            found.append(block)
            comment, near = {}, True
        elif remark:
            comment = _words(f"{page}:{number}", remark["text"])
            if "setup" in comment:
                block = Block(page, number + 1, "setup", [], comment)
                if remark["end"] is None:
                    _read_until(lines, block, lambda text: text.strip() == "-->")
                found.append(block)
                comment, near = {}, False
            elif remark["end"] is None:
                raise PageError(f"{page}:{number}: the comment is not closed on its line")
        elif line.strip():
            if comment:
                raise PageError(
                    f"{page}:{number}: 'run:' stands right above a block, not above text"
                )
            near = False
    return found


def unmarked_commands(text: str) -> list[int]:
    """The lines of `text`, blocks and indented ones, that look like commands but are not run."""
    suspects: list[int] = []
    inside: re.Match[str] | None = None
    marked = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None and fence:
            inside = fence
            continue
        if inside is not None and line.strip() == inside["marks"]:
            inside, marked = None, False
            continue
        if inside is None:
            marked = bool(_COMMENT.match(line)) or (marked and not line.strip())
        code = inside is not None or line.startswith("    ")
        runs = inside is not None and _language(inside["language"]) in RUN
        other = inside is not None and _language(inside["language"]).startswith("{")
        if code and not runs and not other and not marked and _COMMAND.match(line):
            suspects.append(number)
    return suspects


def _language(rest: str) -> str:
    return rest.split(maxsplit=1)[0] if rest.split() else ""


def _read_until(lines, block: Block, ends) -> None:
    for _, line in lines:
        if ends(line):
            return
        block.lines.append(line)
    raise PageError(f"{block.where}: nothing closes this block")


def _words(where: str, text: str) -> dict[str, str]:
    words = dict(word.partition("=")[::2] for word in shlex.split(text))
    unknown = set(words) - DIRECTIVES
    if unknown:
        raise PageError(f"{where}: unknown 'run:' word {', '.join(sorted(unknown))}")
    if "no" in words and not words.get("reason"):
        raise PageError(f'{where}: a block that is not run needs a reason="..."')
    if words.get("output", "") not in OUTPUT_MODES:
        raise PageError(f"{where}: output={words['output']} is none of numbers, words")
    if "background" in words and not words.get("ready"):
        raise PageError(f'{where}: background needs ready="what it prints when it is up"')
    return words

"""What an example is: which files go where, what stands in for a download, which client runs.

A table is a module of this package with `EXAMPLES`, a tuple of `Example`, and a line in
`TABLES` of tools/upstream_examples.py. An entry is data:

    Example(
        name="python_backend/add_sub",
        clone="python_backend",
        files={                                       # in the example's folder: in the clone
            "models/add_sub/1/model.py": "examples/add_sub/model.py",
            "models/add_sub/config.pbtxt": "examples/add_sub/config.pbtxt",
            "client.py": "examples/add_sub/client.py",
        },
        clients=(Client("python client.py", prints=("PASS: add_sub",)),),
    )

Destinations under `models/` are the model repository. A folder of the clone may be named too; it
is copied whole. Clients run in the example's folder, one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Block:
    """A source that is printed in a page of the clone: its first fenced block with `text` in it."""

    page: str
    text: str


@dataclass(frozen=True, slots=True)
class Edited:
    """A source with words replaced: where its page tells the reader to, or a remark says why."""

    source: str | Block
    replacements: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OtherClone:
    """A file or folder of another clone, at the commit that the example was written for."""

    clone: str
    path: str
    commit: str


Source = str | Block | Edited | OtherClone


@dataclass(frozen=True, slots=True)
class Client:
    """A command line, split at spaces as a shell does; `python` is the Python that runs this.

    With `page` the command is theirs: the first line of that page of the clone that starts with
    `command`. Each regular expression of `prints` must match in what the command prints, and its
    exit status must be 0. One that is `endless` is stopped when it has printed all of them.
    """

    command: str
    prints: tuple[str, ...]
    page: str = ""
    endless: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The folder in which one example is laid out, and what its server and clients get."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)  # added to that of this process
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # after the clients


@dataclass(frozen=True, slots=True)
class StandIn:
    """What is made because the original cannot be downloaded, in words and as a function."""

    words: str
    make: Callable[[Place], None]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One row of the table of results."""

    name: str  # clone/folder
    clone: str  # python_backend, tutorials; sources are in it unless they say otherwise
    files: Mapping[str, Source]
    clients: tuple[Client, ...]
    stand_ins: tuple[StandIn, ...] = ()
    before: tuple[Client, ...] = ()  # commands before the server starts, such as an export
    needs: tuple[str, ...] = ()  # PIL, transformers<5, a program; without one: left out
    serve: tuple[str, ...] = ()  # more options of `shoal serve`
    remark: str = ""
    left_out: str = ""  # why it cannot be run at all

    def remarks(self) -> str:
        """What a reader of the table should know, in one cell."""
        made = "; ".join(stand_in.words for stand_in in self.stand_ins)
        return ". ".join(part for part in (made and f"Stand-in: {made}", self.remark) if part)

    def modules(self) -> tuple[str, ...]:
        """Every module, package and program that a run needs, with the versions that will do."""
        return (*self.needs, *(name for each in self.stand_ins for name in each.needs))

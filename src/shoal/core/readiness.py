"""Why a server is ready or not: problems that its parts report, each as a sentence.

    ServedModel.problems() --> ModelRepository.problems() --> Engine.readiness() --> ?verbose

Health probes ask every second or so, on the event loop: a `problems` method reads state that is
there already, and neither blocks nor calls a model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that an operator should know, as a sentence without a full stop."""

    text: str
    model: str = ""  # the one it is about, by the name that clients use; empty: about the server
    blocks: bool = True  # whether the server is not ready because of it
    repository: bool = False  # about files that cannot be read, while what is loaded serves on
    public: bool = False  # whether clients without a key may read it: it has no names and no paths


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether traffic should come to this server, and what is wrong with it."""

    ready: bool
    problems: tuple[Problem, ...] = ()

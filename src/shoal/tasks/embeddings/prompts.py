"""Prompts: what a checkpoint wants before a text, by what the text is for.

    "query" --> "query: "      "passage" --> "passage: "

Models for search are trained with different words before questions and before the texts that are
searched. Clients choose one by name; other APIs have other names for the same two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import InvalidArgument
from shoal.tasks.request import TaskRequest
from shoal.tasks.settings import TaskSettings

_SAME: Sequence[Sequence[str]] = (
    ("query", "search_query"),
    ("passage", "document", "search_document"),
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a model by name, and which one is used where a call names none."""

    known: Mapping[str, str]
    default: str = ""

    @classmethod
    def of(cls, settings: TaskSettings) -> Prompts:
        """Reads: prompts, default_prompt. Raises ConfigError."""
        known = settings.value("prompts", {})
        if type(known) is not dict or any(type(text) is not str for text in known.values()):
            settings.wrong(
                "prompts", f"found {known!r}", 'Write texts by name: {"query": "query: "}'
            )
        default = settings.text("default_prompt")
        if default and default not in known:
            settings.wrong(
                "default_prompt",
                f"there is no prompt '{default}'",
                f"Write one of {', '.join(known)}" if known else "Add it to 'prompts'",
            )
        return cls(known, default)

    def chosen(self, request: TaskRequest) -> str:
        """The text that comes before each text of a call. Raises InvalidArgument."""
        name = request.text("prompt_name", longest=100, default="")
        if not name:
            return self.known.get(self.default, "")
        names = next((names for names in _SAME if name in names), (name,))
        found = next((known for known in (name, *names) if known in self.known), None)
        if found is None:
            raise InvalidArgument(
                f"this model has no prompt '{name}'"
                + (f"; it has {', '.join(self.known)}" if self.known else ", and no others")
            )
        return self.known[found]

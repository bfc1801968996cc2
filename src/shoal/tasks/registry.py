"""The available tasks: those of Shoal, and those of installed packages.

    "image-classification" --get--> the class of that task

A package adds a task with an entry point of the group `shoal.tasks`, whose name is the one in
configs. A task's module, and with it its libraries, is imported for the first model that uses it.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from shoal.errors import ConfigError
from shoal.tasks.base import Task

GROUP = "shoal.tasks"
_FILE, _FIELD = "config.pbtxt", "parameters['task']"

# By the name in configs: the operation, and the class.
BUILT_IN = MappingProxyType(
    {
        "image-classification": ("classify", "shoal.tasks.images.task:ImageClassification"),
        "image-to-text": ("caption", "shoal.tasks.captions.task:ImageToText"),
        "rerank": ("rerank", "shoal.tasks.classification.rerank:Rerank"),
        "token-classification": ("tag", "shoal.tasks.classification.tokens:TokenClassification"),
        "text-classification": (
            "predict",
            "shoal.tasks.classification.texts:TextClassification",
        ),
        "transcription": ("transcribe", "shoal.tasks.speech.task:Transcription"),
        "zero-shot-image-classification": (
            "match",
            "shoal.tasks.matching.task:ZeroShotImageClassification",
        ),
        "question-answering": ("answer", "shoal.tasks.questions.task:QuestionAnswering"),
        "sentence-embedding": ("embed", "shoal.tasks.embeddings.task:SentenceEmbedding"),
    }
)


def names() -> list[str]:
    """The names of all tasks."""
    return sorted({*BUILT_IN, *entry_points(group=GROUP).names})


def get(name: str) -> type[Task]:
    """The class of a task. ConfigError if it does not exist or its libraries are missing."""
    try:
        found = _load(name)
    except ImportError as error:
        raise ConfigError(
            f"the task '{name}' needs a library that is not installed: {error}",
            file=_FILE,
            field=_FIELD,
            fix=f"Run pip install 'shoal[{'audio' if name == 'transcription' else 'tasks'}]'",
        ) from error
    except Exception as error:  # a broken plug-in affects only its own models
        raise ConfigError(
            f"the task '{name}' failed to load: {type(error).__name__}: {error}",
            file=_FILE,
            field=_FIELD,
        ) from error
    if found is None:
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise ConfigError(
            f"there is no task '{name}'",
            file=_FILE,
            field=_FIELD,
            fix=f"{hint}The tasks installed here are: {', '.join(names())}",
        )
    return found


@cache
def operations() -> MappingProxyType[str, str]:
    """The task behind each operation, the last part of a path: "classify" and so on."""
    found: dict[str, str] = {}
    for name in entry_points(group=GROUP).names:
        try:
            task = _load(name)
        except Exception:  # noqa: BLE001, S112 - a broken plug-in is reported for the model that uses it
            continue
        if task is not None:
            found[task.operation] = name
    return MappingProxyType({**found, **{entry[0]: name for name, entry in BUILT_IN.items()}})


def _load(name: str) -> type[Task] | None:
    for entry in entry_points(group=GROUP, name=name):
        installed: type[Task] = entry.load()
        return installed
    if name not in BUILT_IN:
        return None
    module, _, attribute = BUILT_IN[name][1].partition(":")
    built_in: type[Task] = getattr(importlib.import_module(module), attribute)
    return built_in

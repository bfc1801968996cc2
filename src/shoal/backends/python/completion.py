"""`auto_complete_config`: a model that completes its own config.

It runs in a temporary process, as in Triton, so that its imports and side effects do not reach
the server or the model's instances. No process is started for a model that cannot have the method.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import threading
from pathlib import Path

from shoal.backends.python.environment import Environment
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.process.parent import CHILD, LONGER
from shoal.backends.python.settings import PythonSettings
from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.errors import Internal
from shoal.link.process import ChildProcess

_METHOD = "auto_complete_config"
_CLASS = "TritonPythonModel"
# The fields that a model may set.
_FIELDS = (
    "max_batch_size",
    "input",
    "output",
    "dynamic_batching",
    "sequence_batching",
    "ensemble_scheduling",
    "model_transaction_policy",
)

# CPython counts the depth of trees for all threads together: parsing on two can be a SystemError.
_parsing = threading.Lock()


def complete(config: ModelConfig, source: ModelSource, settings: PythonSettings) -> ModelConfig:
    """The config with the model's additions; Internal with its exception."""
    if not may_complete(source.file):
        return config
    environment = Environment.prepare(settings) if settings.brings_python else None
    process = ChildProcess(
        CHILD,
        f"model '{config.name}'",
        interpreter=None if environment is None else environment.interpreter(),
        start_secs=settings.start_secs,
        longer=LONGER,
    )
    written = json.dumps(codec.to_dict(config))
    kind, (text,) = process.ask("complete", *map(str, source), written)
    if kind != "completed":
        raise Internal(str(text))
    completed = codec.parse_json(text, f"{_METHOD} of model '{config.name}'")
    return dataclasses.replace(config, **{name: getattr(completed, name) for name in _FIELDS})


def may_complete(file: Path) -> bool:
    """Whether the model in `file` might have the method; False only if it certainly does not."""
    try:
        source = file.read_text(encoding="utf-8")
        with _parsing:
            tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return True  # importing it will show the error
    except SystemError:
        return True  # a library parses at the same time
    if _METHOD in source:
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == _CLASS:
            # A base class or a decorator may add the method.
            return bool(node.bases or node.keywords or node.decorator_list)
    return True  # the class comes from somewhere else

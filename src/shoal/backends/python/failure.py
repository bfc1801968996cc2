"""An exception in a model as text, the way Triton shows it: what, then where.

NameError: name 'x' is not defined

At:
  /models/m/1/model.py(12): execute
"""

from __future__ import annotations

import os
import traceback

from shoal.backends.python.api.errors import TritonModelException

_OURS = os.path.join("shoal", "backends", "python") + os.sep  # noqa: PTH118 - a piece of a path


def describe(error: BaseException) -> str:
    """The exception and the model's own frames, innermost first."""
    frames = [
        f"  {frame.filename}({frame.lineno}): {frame.name}"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if _OURS not in frame.filename and not frame.filename.startswith("<frozen importlib")
    ]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
    if not frames:  # one of ours: its text says it all
        return str(error) if isinstance(error, TritonModelException) else text
    return f"{text}\n\nAt:\n" + "\n".join(frames) + "\n"

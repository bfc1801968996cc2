"""An exception in a model as text, the way Triton shows it: what, then where.

NameError: name 'x' is not defined

At:
  /models/m/1/model.py(12): execute
"""

from __future__ import annotations

import os
import traceback

from shoal.backends.python.api.errors import TritonModelException, printable

_OURS = os.path.join("shoal", "backends", "python") + os.sep  # noqa: PTH118 - a piece of a path
# Frames between our call and the model's code, or between a coroutine and its caller.
_BETWEEN = (
    "<frozen importlib",
    os.path.dirname(os.__file__) + os.sep + "importlib",  # noqa: PTH120 - likewise
    os.path.dirname(os.__file__) + os.sep + "concurrent",  # noqa: PTH120
)
_MOST_CHARACTERS = 8000  # of an exception's text, which may include a large array
_MOST_FRAMES = 40


def describe(error: BaseException) -> str:
    """The exception and the model's own frames, innermost first. Never raises."""
    frames = [
        f"  {frame.filename}({frame.lineno}): {frame.name}"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
        if _is_of_the_model(frame)
    ]
    text = printable(_text(error, ours=not frames))
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters in all)"
    if not frames:
        return text
    if len(frames) > _MOST_FRAMES:  # a recursion without end
        half = _MOST_FRAMES // 2
        frames[half:-half] = [f"  ... {len(frames) - _MOST_FRAMES} more calls ..."]
    return f"{text}\n\nAt:\n" + "\n".join(frames) + "\n"


def place(error: BaseException) -> tuple[str, int]:
    """File and line where the model's code raised it, else where it was caught. Never raises."""
    frames = traceback.extract_tb(error.__traceback__)
    raised = [frame for frame in frames if _is_of_the_model(frame)]
    for frame in [*raised[-1:], *frames[:1]]:
        return frame.filename, frame.lineno or 0
    return __file__, 0  # it was never raised


def _is_of_the_model(frame: traceback.FrameSummary) -> bool:
    return _OURS not in frame.filename and not frame.filename.startswith(_BETWEEN)


def _text(error: BaseException, *, ours: bool) -> str:
    """Its text. `ours` if it was not raised by the model's code."""
    name = type(error).__name__
    try:
        if isinstance(error, SyntaxError):
            return "".join(traceback.format_exception_only(type(error), error)).strip()
        said = str(error)
    except Exception as failure:  # noqa: BLE001 - the model's own __str__
        return f"{name}, whose text cannot be had: its __str__ raises {type(failure).__name__}"
    if ours and isinstance(error, TritonModelException):
        return said  # one of ours: its text is enough
    return f"{name}: {said}" if said else name

"""Functions whose frames have a name of our choice.

If native code crashes, faulthandler prints the frames of each thread, and nothing else can be
printed safely at that moment. So what a thread is doing is written into the name of a frame, which
costs nothing while it runs:

    File ".../instance/execution.py", line 83 in model 'resnet' version 1 was running
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def named_frame(function: Function, name: str) -> Function:
    """A copy of `function`, whose frames are called `name` in tracebacks."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    made = FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made  # type: ignore[return-value]

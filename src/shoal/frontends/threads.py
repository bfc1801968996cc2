"""Work on threads of what a client has sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.errors import ShoalError

Result = TypeVar("Result")


def without_frames(work: Callable[[], Result]) -> Callable[[], Result]:
    """`work`, whose ShoalErrors do not refer to its local variables.

    Otherwise the body, and what was made of it, would be held until the response has been sent, and
    then be freed on the event loop, which takes milliseconds for a large one.
    """

    def run() -> Result:
        try:
            return work()
        except ShoalError as error:
            error.__context__ = None
            raise error.with_traceback(None) from error.__cause__

    return run

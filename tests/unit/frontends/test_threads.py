"""Work on threads."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.frontends.threads import without_frames


def test_an_error_does_not_hold_what_the_work_was_done_on():
    bodies = []

    def work():
        body = np.zeros(4)
        bodies.append(weakref.ref(body))
        try:
            raise ValueError(body)
        except ValueError:
            raise InvalidArgument("unreadable") from None

    with ThreadPoolExecutor(1) as threads:
        error = threads.submit(without_frames(work)).exception()
    assert bodies[0]() is None
    with pytest.raises(InvalidArgument, match="unreadable"):
        raise error


def test_results_and_other_errors_stay_as_they_are():
    assert without_frames(lambda: 3)() == 3
    with pytest.raises(ZeroDivisionError) as raised:
        without_frames(lambda: 1 / 0)()
    assert len(raised.traceback) > 2  # it is logged

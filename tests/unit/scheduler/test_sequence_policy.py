"""The direct strategy's decision as a table: what stands in the slots, and what goes."""

from __future__ import annotations

import pytest

from shoal.scheduler.policy import Reason
from shoal.scheduler.sequence_policy import DirectCut, DirectPolicy, SlotHead

NOW = 1_000_000
YES, NO = True, False


def slots(text):
    """Per slot a shape and how long it has waited, e.g. "a9 . b2"; a dot is an empty slot."""
    return [None if s == "." else SlotHead(s[0], NOW - int(s[1:] or 0)) for s in text.split()]


@pytest.mark.parametrize(
    ("heads", "taken"),
    [
        (".", ()),
        (". . . .", ()),
        ("a0", (YES,)),
        ("a0 . . .", (YES,)),  # the batch ends at the highest slot that has something
        (". . a0 .", (NO, NO, YES)),
        ("a0 . . a0", (YES, NO, NO, YES)),
        ("a0 a0 a0 a0", (YES, YES, YES, YES)),
        # other shapes stay behind, and the one that has waited longest decides
        ("a2 b1 a0", (YES, NO, YES)),
        ("a1 b2 a0", (NO, YES, NO)),
        ("a2 b1", (YES, NO)),
        ("a1 b1", (YES, NO)),  # equally long: the lower slot
    ],
)
def test_cut(heads, taken):
    cut = DirectPolicy(4).cut(slots(heads), NOW)
    assert cut.taken == taken
    assert cut.reason is (Reason.NO_DELAY if taken else Reason.WAITING)
    assert cut.wait_ns is None


@pytest.mark.parametrize(
    ("delay", "utilization", "heads", "expected"),
    [
        # the delay alone does nothing
        (100, 0.0, "a0 . . .", DirectCut((YES,), Reason.NO_DELAY)),
        (0, 1.0, "a0 . . .", DirectCut((YES,), Reason.NO_DELAY)),
        # both: enough slots, or long enough
        (100, 0.5, "a0 . . .", DirectCut((), Reason.WAITING, 101)),
        (100, 0.5, "a60 . . .", DirectCut((), Reason.WAITING, 41)),
        (100, 0.5, "a100 . . .", DirectCut((), Reason.WAITING, 1)),
        (100, 0.5, "a101 . . .", DirectCut((YES,), Reason.DELAY)),
        (100, 0.5, "a0 . . a0", DirectCut((YES, NO, NO, YES), Reason.SLOTS)),
        (100, 1.0, "a0 a5 a0 .", DirectCut((), Reason.WAITING, 96)),
        (100, 1.0, "a0 a0 a0 a0", DirectCut((YES,) * 4, Reason.SLOTS)),
        (100, 0.5, "a1 b0 . .", DirectCut((YES, NO), Reason.SLOTS)),
        (100, 0.5, ". . . .", DirectCut((), Reason.WAITING)),
    ],
)
def test_utilization(delay, utilization, heads, expected):
    assert DirectPolicy(4, delay, utilization).cut(slots(heads), NOW) == expected

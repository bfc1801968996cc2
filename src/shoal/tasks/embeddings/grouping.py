"""Which texts of a call go to the model together: those of about the same length.

    lengths 9 200 8 8 9  -->  [2, 3, 0, 4] (9 tokens wide), [1] (200 tokens wide)

A batch is as wide as its longest text, and what it is filled up with is computed for nobody. Groups
of different calls may still share a batch: that is for the model's queue to decide.
"""

from __future__ import annotations

from collections.abc import Sequence


def grouped(lengths: Sequence[int], most_rows: int, *, equal: bool = False) -> list[list[int]]:
    """The indexes of the texts by groups, shortest first; each has at most `most_rows`.

    Within a group the longest text is at most an eighth longer than the shortest, and one token
    where that is less; with `equal` it is as long.
    """
    groups: list[list[int]] = []
    widest = -1
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if length > widest or len(groups[-1]) == most_rows:
            groups.append([])
            widest = length if equal else length + max(1, length // 8)
        groups[-1].append(index)
    return groups

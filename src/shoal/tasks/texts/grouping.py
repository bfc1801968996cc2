"""Groups the texts of a call by length: each group is one request to the model.

    lengths 9 200 8 8 9  -->  [2, 3, 0, 4] (9 tokens wide), [1] (200 tokens wide)

A batch is as wide as its longest text, and computing the padding is a waste. Groups of different
calls may still share a batch in the model's queue.
"""

from __future__ import annotations

from collections.abc import Sequence


def grouped(lengths: Sequence[int], most_rows: int, *, equal: bool = False) -> list[list[int]]:
    """The indexes of the texts in groups of at most `most_rows`, shortest first.

    The longest text of a group is at most an eighth, or one token, longer than the shortest; with
    `equal` all have the same length.
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

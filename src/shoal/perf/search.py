"""The levels to measure, and their order.

    search = linear(…) | binary(…);  level = next(search);  level = search.send(met_the_limit)

A search is a generator; it is sent whether each level met the latency limit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from shoal.errors import InvalidArgument

Search = Generator[float, bool, None]


@dataclass(frozen=True, slots=True)
class Range:
    """`start:end:step`; an end of 0 continues until the latency limit is reached."""

    start: float
    end: float
    step: float
    end_given: bool = False

    @property
    def single(self) -> bool:
        """Whether it is one level only."""
        return not self.end_given or self.start == self.end


def parse_range(flag: str, text: str, *, whole: bool) -> Range:
    """Read `start[:end[:step]]`. Raises InvalidArgument."""
    kind = "whole numbers" if whole else "numbers"
    problem = InvalidArgument(
        f"{flag} takes start:end:step, {kind} such as 1:8:1; end and step may be left out; "
        f"found '{text}'"
    )
    parts = text.split(":")
    if not 1 <= len(parts) <= 3:
        raise problem
    try:
        numbers = [int(part) if whole else float(part) for part in parts]
    except ValueError:
        raise problem from None
    start, end, step = numbers + [numbers[0], 1][len(numbers) - 1 :]
    end_given = len(parts) > 1
    if not start > 0 or end < 0 or not step > 0 or max(numbers) == float("inf"):
        raise InvalidArgument(
            f"{flag}={text}: start and step must be above 0, and end above 0 or 0 for no end"
        )
    if end_given and end and end < start:
        raise InvalidArgument(f"{flag}={text} ends before it starts; write {end:g}:{start:g}")
    return Range(start, end, step, end_given)


def linear(levels: Range) -> Search:
    """From start to end in steps, until a level exceeds the limit."""
    level = levels.start
    count = 0
    while not levels.end or level <= levels.end:
        met = yield level
        if not met or levels.single:
            return
        count += 1
        level = levels.start + count * levels.step  # by multiplication: steps may be fractions


def binary(levels: Range) -> Search:
    """Bisection: the highest level within the limit, to a precision of one step."""
    low, high = levels.start, levels.end
    met = yield low
    if not met or low == high:
        return
    met = yield high
    if met:
        return
    whole = all(float(number).is_integer() for number in (low, high, levels.step))
    while high - low > levels.step:
        middle = (low + high) / 2
        if whole:
            middle = int(middle)
        met = yield middle
        if met:
            low = middle
        else:
            high = middle

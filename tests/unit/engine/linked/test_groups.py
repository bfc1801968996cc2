"""Where the inputs of each request are, in the contents of a group."""

from __future__ import annotations

import pytest

from shoal.engine.linked.groups import KnownTemplate


@pytest.mark.parametrize("sizes", [(), (0,), (2,), (2, 0), (0, 3), (1, 2)])
@pytest.mark.parametrize("count", [1, 3])
def test_every_request_has_its_inputs(sizes, count):
    """Also where tensors are empty, which templates may have."""
    rows = [
        tuple(f"{index}{number}abc".encode()[:size] for number, size in enumerate(sizes))
        for index in range(count)
    ]
    contents = b"".join(row[number] for number in range(len(sizes)) for row in rows)
    places = KnownTemplate(None, (None, None, None, sizes)).places(count)
    assert [tuple(contents[place] for place in row) for row in places] == rows

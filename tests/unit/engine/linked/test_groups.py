"""Where the inputs of each request are, in the contents of a group, and who gets which results."""

from __future__ import annotations

import pytest

from shoal.core import dtypes
from shoal.core.planned import PlannedResponses, ResponseLayout
from shoal.engine.linked.groups import KnownTemplate, ReplyTo, _Replies
from shoal.link.link import INLINE_BYTES


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


class FrontEnd:
    """Keeps what it is sent."""

    def __init__(self):
        self.messages = []

    def send_results(self, layout, numbers, contents):
        self.messages.append((numbers, [bytes(content) for content in contents]))


class Planned:
    def __init__(self, reply):
        self.reply = reply


@pytest.mark.parametrize(
    ("size", "messages"),
    [
        (2, ([([0, 3, 4], [b"aaddee"])], [([1, 2, 5], [b"bbccff"])])),
        # Large ones are sent in several messages instead of being copied.
        (INLINE_BYTES + 1, ([([0], "a"), ([3, 4], "de")], [([1, 2], "bc"), ([5], "f")])),
    ],
)
def test_every_front_end_gets_the_results_of_its_requests(size, messages):
    one, other = FrontEnd(), FrontEnd()
    requests = [
        Planned(ReplyTo(frontend, number))
        for number, frontend in enumerate([one, other, other, one, one, other])
    ]
    layout = ResponseLayout("model", 1, (("y", dtypes.UINT8, (size,)),), (size,))
    content = b"".join(letter * size for letter in (b"a", b"b", b"c", b"d", b"e", b"f"))
    _Replies().send_all(PlannedResponses(layout, [content]), requests)
    for frontend, expected in zip((one, other), messages, strict=True):
        assert frontend.messages == [
            (numbers, [b"".join(letter.encode() * size for letter in part)])
            if isinstance(part, str)
            else (numbers, part)
            for numbers, part in expected
        ]

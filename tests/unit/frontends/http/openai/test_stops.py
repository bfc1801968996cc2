"""Stop sequences in a text that comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontends.http.openai.stops import StopCutter


def cut(stops, pieces):
    cutter = StopCutter(stops)
    out = [cutter.feed(piece) for piece in pieces]
    return [*out, cutter.rest()], cutter.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        ([], ["a", "b"], ["a", "b", ""], False),
        (["."], ["one", ". two", " three"], ["one", "", "", ""], True),
        (["END"], ["xE", "N", "D y"], ["x", "", "", ""], True),
        (["END"], ["xE", "N", "y"], ["x", "", "ENy", ""], False),
        (["END"], ["xEN"], ["x", "EN"], False),  # held back, but the text is over
        (["aab"], ["aaa", "b"], ["a", "", ""], True),
        (["yes", "no"], ["a no yes"], ["a ", ""], True),  # the first of them in the text
    ],
)
def test_text_goes_out_up_to_the_first_stop(stops, pieces, out, stopped):
    assert cut(stops, pieces) == (out, stopped)


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_how_a_text_is_cut_into_pieces_does_not_matter(pieces, stops):
    text = "".join(pieces)
    places = [place for place in map(text.find, stops) if place >= 0]
    out, stopped = cut(stops, pieces)
    assert stopped == bool(places)
    if not places:
        assert "".join(out) == text
    else:  # a stop that ends earlier may be found before one that begins earlier
        shown = "".join(out)
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)
        assert any(text.startswith(stop, len(shown)) for stop in stops)

"""The template cache and its keys: what may be one, and how much is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire import json_text, template
from shoal.wire.template import TemplateCache

plain_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
documents = st.dictionaries(
    st.one_of(st.sampled_from(["id", "inputs", "x"]), st.text(max_size=5)),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(plain_text, inner)),
        max_leaves=6,
    ),
    max_size=4,
)
styles = st.sampled_from([(",", ":"), (", ", ": "), (",  ", ":"), (" ,", " :")])


def write(document, style, **options):
    return json.dumps(document, separators=style, **options).encode()


# ---- taking the id out


@pytest.mark.parametrize(
    ("header", "request_id", "rest"),
    [
        (b'{"id":"7","inputs":[]}', b"7", b'"inputs":[]}'),
        (b'{"id": "7", "inputs":[]}', b"7", b'"inputs":[]}'),
        (b'{"id":"a b!#[]~","x":1}', b"a b!#[]~", b'"x":1}'),
        (b'{"id":"","x":1}', b"", b'"x":1}'),
        (b'{"id":"7"}', None, b'{"id":"7"}'),  # nothing follows: such a request has no inputs
        (b'{"id":"\\u0037","x":1}', None, b'{"id":"\\u0037","x":1}'),
        (b'{"id":"\xc3\xa9","x":1}', None, b'{"id":"\xc3\xa9","x":1}'),
        (b'{"id":"\x7f","x":1}', None, b'{"id":"\x7f","x":1}'),
        (b'{"id":7,"x":1}', None, b'{"id":7,"x":1}'),
        (b'{ "id":"7","x":1}', None, b'{ "id":"7","x":1}'),
        (b'{"x":1,"id":"7"}', None, b'{"x":1,"id":"7"}'),
        (b' {"id":"7","x":1}', None, b' {"id":"7","x":1}'),
        (b"", None, b""),
    ],
)
def test_only_a_plain_id_in_front_is_taken_out(header, request_id, rest):
    assert template.split_json_id(header) == (request_id, rest)


@given(documents, plain_text, styles, st.booleans())
def test_what_is_left_is_the_document_without_its_id(document, name, style, ascii_only):
    document = {"id": name, **{key: value for key, value in document.items() if key != "id"}}
    header = write(document, style, ensure_ascii=ascii_only)
    request_id, rest = template.split_json_id(header)
    if request_id is not None:
        assert request_id.decode() == name
        assert json.loads(b'{"id":"' + request_id + b'",' + rest) == document
    else:
        assert rest == header


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.binary(max_size=30) | documents.map(lambda document: write(document, (",", ":"))),
    plain_text.filter(bool),
)
def test_a_key_means_the_same_after_any_id(tail, other):
    """What one header with this rest means, any other header with it means too."""
    for rest in (tail, tail.removeprefix(b"{")):
        header = b'{"id":"1",' + rest
        request_id, left = template.split_json_id(header)
        if not template.is_plain_json(header, left):
            continue
        document = json_text.loads(header)
        if request_id is None:
            continue
        assert document.pop("id") == "1"
        escaped = other.replace("\\", "").replace('"', "") or "2"
        again = b'{"id": "' + escaped.encode() + b'", ' + left
        assert template.split_json_id(again) == (escaped.encode(), left)
        assert json_text.loads(again) == {"id": escaped, **document}


@pytest.mark.parametrize(
    "header",
    [
        b'{"id":"1","x":1,"id":"2"}',
        b'{"id":"1","x":1,"\\u0069d":"2"}',
        b'{"id":"1","x":"id"}',  # would do, but is not worth telling from the others
        b'{"id":"1","x":NaN}',
        b'{"id":"NaN","x":1e999}',  # the token in the id makes the lenient reader have a look
        b'{"id":"1","x":1',
        b'{"id":"1",{"x":1}',
        b"",
    ],
)
def test_what_might_mean_something_else_after_another_id_is_no_key(header):
    assert not template.is_plain_json(header, template.split_json_id(header)[1])


def test_headers_without_an_id_may_be_keys():
    header = b'{"inputs":[]}'
    assert template.split_json_id(header) == (None, header)
    assert template.is_plain_json(header, header)


@pytest.mark.parametrize(
    ("header", "split"),
    [
        (b'"a":1}', None),
        (b'"sequence_id":7}', (7, (b'"sequence_id":', b"}"))),
        (b'"p":{"sequence_id": 12,"x":1}', (12, (b'"p":{"sequence_id": ', b',"x":1}'))),
        (b'"sequence_id":"ab"}', ("ab", (b'"sequence_id":"', b'"}'))),
        (b'"sequence_id":0}', None),
        (b'"sequence_id":""}', None),
        (b'"sequence_id":07}', None),
        (b'"sequence_id":7.0}', None),
        (b'"sequence_id":7e1}', None),
        (b'"sequence_id":-7}', None),
        (b'"sequence_id":1234567890123456789}', None),  # may be more than 64 bits hold
        (b'"sequence_id":"a\\u0041"}', None),
        (b'"sequence_id":7,"sequence_id":8}', None),
        (b'"sequence_id"', None),
    ],
)
def test_the_id_of_a_sequence_in_json(header, split):
    assert template.split_json_sequence(header) == split


# ---- keeping


def test_the_oldest_entries_make_room():
    cache = TemplateCache(most_entries=3, most_bytes=100)
    for number in range(4):
        cache.put(number, f"entry {number}", 10)
    assert [cache.get(number) for number in range(4)] == [None, "entry 1", "entry 2", "entry 3"]
    cache.put(1, "entry 1 again", 10)
    cache.put(4, "entry 4", 10)
    assert cache.get(1) == "entry 1 again"
    assert cache.get(2) is None
    cache.put(5, "entry 5", 90)
    assert (len(cache), cache.bytes) == (2, 100)


def test_very_long_keys_are_not_kept():
    cache = TemplateCache()
    cache.put("long", "entry", template.LONGEST_KEY + 1)
    assert (len(cache), cache.bytes, cache.get("long")) == (0, 0, None)


def test_evicting_twice_is_evicting_once():
    cache = TemplateCache()
    cache.put("key", "entry", 10)
    cache.evict("key")
    cache.evict("key")
    assert (len(cache), cache.bytes) == (0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "evict"]), st.integers(0, 12), st.integers(0, 40)),
        max_size=60,
    )
)
def test_bounds_and_counts_hold_whatever_is_done(steps):
    cache = TemplateCache(most_entries=5, most_bytes=100)
    kept = {}  # what a cache without eviction would hold
    for step, key, size in steps:
        if step == "put":
            cache.put(key, (key, size), size)
            kept[key] = (key, size)
        else:
            cache.evict(key)
            kept.pop(key, None)
        assert len(cache) <= 5
        assert cache.bytes <= 100
        found = [cache.get(key) for key in range(13)]
        assert sum(size for _, size in filter(None, found)) == cache.bytes
        assert all(value in (None, kept.get(key)) for key, value in enumerate(found))

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Internal, InvalidArgument
from shoal.wire import json_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":[1,-2,3.5,true,null,"x"]}', {"a": [1, -2, 3.5, True, None, "x"]}),
        (b"[Infinity,-Infinity,1]", [math.inf, -math.inf, 1]),
        (b'["NaN"]', ["NaN"]),
        (b'[Infinity,"\\ud83d\\ude00"]', [math.inf, "\U0001f600"]),
        (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"[18446744073709551616]", [float(2**64)]),
        (b"[Infinity,18446744073709551616,7]", [math.inf, float(2**64), 7]),
        (b"[Infinity,%s]" % (b"9" * 5000), [math.inf, math.inf]),
    ],
)
def test_loads(text, value):
    assert json_text.loads(text) == value
    assert json_text.loads(memoryview(text)) == value


def test_nan_is_read():
    (value,) = json_text.loads(b"[NaN]")
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"{} {}",
        b"NaN,",
        b"[NaN,]",
        b'"\xff"',
        b'[NaN,"\xff"]',
        b'"\\ud800"',
        b'[NaN,"\\ud800"]',
        b"\xef\xbb\xbf{}",
        b"[1e400]",
    ],
)
def test_unreadable_texts_say_where(text):
    with pytest.raises(InvalidArgument, match=r"failed to parse the request JSON buffer: .* at \d"):
        json_text.loads(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"AAAA", "Invalid value. at 0"),
        (b"{a:1}", "Missing a name for object member. at 1"),
        (b"[1 2]", "Missing a comma or ] after an array element. at 3"),
        (b'{"a":1 2}', "Missing a comma or } after an object member. at 7"),
        (b"{} {}", "The document root must not be followed by other values. at 3"),
    ],
)
def test_unreadable_texts_have_triton_s_words(text, problem):
    with pytest.raises(InvalidArgument) as caught:
        json_text.loads(text)
    assert caught.value.message == f"failed to parse the request JSON buffer: {problem}"


@pytest.mark.parametrize("depth", [2_000, 10_000, 250_000])
@pytest.mark.parametrize("core", [b"1", b"NaN", b""])
def test_deep_nesting_is_refused(depth, core):
    with pytest.raises(InvalidArgument, match=r"nesting depth exceeds maximum allowed limit"):
        json_text.loads(b"[" * depth + core + b"]" * depth)


def test_dumps_takes_numpy_and_pieces():
    text = json_text.dumps(
        {"a": np.array([1, 2], np.int8), "b": json_text.non_finite([math.nan, -math.inf, 1.5])}
    )
    assert text == b'{"a":[1,2],"b":[NaN,-Infinity,1.5]}'


@pytest.mark.parametrize("value", [2**64, "\ud800", object()])
def test_dumps_says_what_has_no_form(value):
    with pytest.raises(Internal, match="cannot be written as JSON"):
        json_text.dumps({"a": value})


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
        max_leaves=20,
    )
)
def test_both_readers_agree(value):
    text = json.dumps(value).encode()
    assert json_text.loads(text) == value
    assert json_text._loads_with_tokens(text) == value

import contextlib
import gzip
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.wire import compression


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (None, "identity"),
        (b"", "identity"),
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"GZIP", "gzip"),
        (b"gzip, deflate", "gzip"),  # the first of equals
        (b"deflate, gzip", "deflate"),
        (b"identity, gzip", "identity"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"gzip; q=0.5, identity;q=0.7", "identity"),
        (b"br, zstd, gzip;q=0.1", "gzip"),  # what we do not write is passed over
        (b"br", "identity"),
        (b"*", "identity"),
        (b"gzip;q=0", "identity"),
        (b"gzip;q=high, deflate;q=0.1", "deflate"),
        (b"gzip;q=nan", "identity"),
        (b"gzip;q=", "identity"),
        (b",;q=1,, gzip", "gzip"),
        (b"gz\xffip", "identity"),
    ],
)
def test_negotiate(accept, coding):
    assert compression.negotiate(accept) == coding


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, "identity"),
        (b"", "identity"),
        (b"identity", "identity"),
        (b"gzip", "gzip"),
        (b" Deflate ", "deflate"),
        (b"br", None),
        (b"gzip, gzip", None),
    ],
)
def test_coding_of_a_request(header, coding):
    assert compression.coding(header) == coding


@given(st.lists(st.binary(max_size=2000), max_size=4), st.sampled_from(["gzip", "deflate"]))
def test_what_is_packed_can_be_unpacked(parts, coding):
    plain = b"".join(parts)
    packed = b"".join(compression.compress([memoryview(part) for part in parts], coding))
    assert (gzip if coding == "gzip" else zlib).decompress(packed) == plain
    assert compression.decompress(packed, most_bytes=len(plain)) == plain


@given(st.binary(max_size=200))
def test_garbage_is_refused(body):
    with contextlib.suppress(InvalidArgument):
        compression.decompress(body, most_bytes=1000)


def test_the_limit_is_exact():
    packed = memoryview(gzip.compress(b"x" * 1000))
    assert len(compression.decompress(packed, most_bytes=1000)) == 1000
    with pytest.raises(InvalidArgument) as caught:
        compression.decompress(packed, most_bytes=999)
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 999 bytes. Use "
        "--http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "nothing to be decompressed"),
        (b"not compressed", "failed to decompress the request body"),
        (gzip.compress(b"hello world")[:-3], "it is cut short"),
        (zlib.compress(b"hello world")[:-1], "it is cut short"),
        (gzip.compress(b"hello")[:-5] + b"12345", "failed to decompress the request body"),
        (zlib.compress(b"hello") + b"xyz", "3 bytes follow the end"),
    ],
)
def test_damaged_bodies_say_so(body, text):
    with pytest.raises(InvalidArgument, match=text):
        compression.decompress(body, most_bytes=1000)


@pytest.mark.parametrize("size", [1, 258, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 200])
@pytest.mark.parametrize(
    "unit", [b"\0", b"abc,", os.urandom(1 << 16)], ids=["zeros", "text", "noise"]
)
def test_a_body_of_several_pieces(size, unit):
    plain = (unit * (size // len(unit) + 1))[:size]
    packed = gzip.compress(plain, 1)
    assert compression.decompress(packed, most_bytes=size) == plain
    assert compression.decompress_small(packed, most_bytes=size) == plain
    assert compression.decompress_small(packed, most_bytes=size - 1) is None
    with pytest.raises(InvalidArgument, match=f"maximum allowed value of {size - 1} bytes"):
        compression.decompress(packed, most_bytes=size - 1)
    with pytest.raises(InvalidArgument, match="100000 bytes follow"):
        compression.decompress(packed + bytes(100_000), most_bytes=size)
    with pytest.raises(InvalidArgument, match="cut short"):
        compression.decompress(packed[:-1], most_bytes=size)

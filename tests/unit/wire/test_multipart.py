"""Forms as clients write them, and bodies that are none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.models import RequestEncodingMixin

from shoal.errors import InvalidArgument
from shoal.wire import multipart

BOUNDARY = b"xyz"


def read(body, boundary=BOUNDARY):
    return [
        (part.name, part.file_name, part.content_type, bytes(part.content))
        for part in multipart.parts(body, boundary)
    ]


def form(*parts, end=b"--xyz--\r\n"):
    return b"".join(b"--xyz\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + end


FIELD = b'Content-Disposition: form-data; name="top"'
PHOTO = (
    b'Content-Disposition: form-data; name="image"; filename="cat.jpg"\r\nContent-Type: image/jpeg'
)


def test_fields_and_files_come_in_their_order():
    assert read(form((FIELD, b"5"), (PHOTO, b"\xff\xd8\r\n--xy\r\n"))) == [
        ("top", None, "", b"5"),
        ("image", "cat.jpg", "image/jpeg", b"\xff\xd8\r\n--xy\r\n"),
    ]


def test_content_is_not_copied():
    body = bytearray(form((FIELD, b"5")))
    (part,) = multipart.parts(body, BOUNDARY)
    body[body.index(b"5")] = ord("7")
    assert bytes(part.content) == b"7"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (form((FIELD, b"")), [("top", None, "", b"")]),
        (form((FIELD, b"\r\n")), [("top", None, "", b"\r\n")]),
        (form((FIELD, b"5"), end=b"--xyz--"), [("top", None, "", b"5")]),
        (b"preamble\r\n" + form((FIELD, b"5")) + b"epilogue", [("top", None, "", b"5")]),
        (form((FIELD, b"5")).replace(b"\r\n", b"\n"), [("top", None, "", b"5")]),
        (b"--xyz--\r\n", []),
        (form((FIELD.lower(), b"5")), [("top", None, "", b"5")]),
    ],
)
def test_what_clients_may_write(body, expected):
    assert read(body) == expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the boundary that ends it is missing"),
        (b"nothing of the kind", "the boundary that ends it is missing"),
        (form((FIELD, b"5"), end=b""), "the boundary that ends it is missing"),
        (b"--xyz\r\nno headers\r\n--xyz--", "has no headers"),
        (form((b"Content-Type: text/plain", b"5")), "has no name"),
        (form(*[(FIELD, b"5")] * 1025), "more than 1024 fields"),
    ],
)
def test_what_is_no_form_is_told(body, said):
    with pytest.raises(InvalidArgument, match=said):
        read(body)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=xyz", b"xyz"),
        ('multipart/form-data; charset=utf-8; boundary="a b"', b"a b"),
        ("Multipart/Form-Data; Boundary=xyz", b"xyz"),
    ],
)
def test_the_boundary_is_in_the_content_type(header, boundary):
    assert multipart.boundary_of(header) == boundary


@pytest.mark.parametrize("header", ["multipart/form-data", "multipart/form-data; boundary="])
def test_without_a_boundary_nothing_can_be_read(header):
    with pytest.raises(InvalidArgument, match="without a boundary"):
        multipart.boundary_of(header)


@given(
    st.lists(
        st.tuples(
            st.text("abcäß \"';=", min_size=1, max_size=8),
            st.text("abcäß .-_;", min_size=1, max_size=8).map(str.strip).filter(bool),
            st.binary(max_size=200),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_a_client_library_writes_is_read_back(files):
    body, header = RequestEncodingMixin._encode_files(
        [("image", (file_name, content)) for _, file_name, content in files], {}
    )
    found = read(body, multipart.boundary_of(header))
    assert [content for *_, content in found] == [content for *_, content in files]
    assert [name for name, *_ in found] == ["image"] * len(files)


@given(st.binary(max_size=300), st.sampled_from([b"xyz", b"-", b"a.b*"]))
def test_any_bytes_are_a_form_or_refused(body, boundary):
    with contextlib.suppress(InvalidArgument):
        read(body + b"\r\n--" + boundary + b"--", boundary)


@pytest.mark.parametrize(
    ("head", "name", "file_name", "content_type"),
    [
        (b"Content-Disposition: form-data; name=top", "top", None, ""),
        (b'content-disposition:form-data;NAME="top"', "top", None, ""),
        (FIELD + b"; filename*=UTF-8''%c3%a4.jpg", "top", "\xe4.jpg", ""),
        (FIELD + b"; filename=\"a.jpg\"; filename*=UTF-8''b.jpg", "top", "a.jpg", ""),
        (FIELD + b"; filename*=iso-8859-1'en'%e4.jpg", "top", "\xe4.jpg", ""),
        (FIELD + b"; filename*=nonsense''a.jpg", "top", "a.jpg", ""),
        (FIELD + b"; filename*=U\0TF''a.jpg", "top", "a.jpg", ""),  # no name of a codec
        (FIELD + b"; filename*=idna''%c3%a4.jpg", "top", "\xe4.jpg", ""),
        (FIELD + '; filename="\xe4;=.jpg"'.encode(), "top", "\xe4;=.jpg", ""),
        (FIELD + b'; filename="a\\"b\\\\c.jpg"', "top", 'a"b\\c.jpg', ""),
        (FIELD + b'; filename="C:\\d\\e.jpg"', "top", "C:\\d\\e.jpg", ""),
        (FIELD + b'; filename=""', "top", "", ""),
        (FIELD + b'\r\nContent-Type: image/png; name="a.png"', "top", "a.png", "image/png"),
        (FIELD + b"\r\nContent-Type: IMAGE/PNG", "top", None, "image/png"),
        (FIELD + b"\r\nContent-Type: nonsense", "top", None, "text/plain"),
        (FIELD + b"\r\ncontent-disposition: form-data; name=second", "top", None, ""),
        (FIELD + b"; name=second", "top", None, ""),
    ],
)
def test_headers_of_a_field(head, name, file_name, content_type):
    assert read(form((head, b"5"))) == [(name, file_name, content_type, b"5")]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (FIELD + b"; a=b" * 40, "more than 32 parameters"),
        (FIELD + b";" * 10_000, "more than 32 parameters"),
        (FIELD + b"\r\na: b" * 40, "more than 32 headers"),
        (FIELD + b"; a=" + b"b" * 20_000, "more than 16384 bytes"),
    ],
)
def test_headers_have_limits(head, said):
    with pytest.raises(InvalidArgument, match=said):
        read(form((head, b"5")))
    if said.endswith("parameters"):
        with pytest.raises(InvalidArgument, match=said):
            multipart.boundary_of(head.decode())

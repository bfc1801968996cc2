"""From an HTTP request to what a person asked for."""

import pytest

from shoal.errors import InvalidArgument, Unsupported
from shoal.frontends.http.upload import read_upload

FORM = b'--b\r\nContent-Disposition: form-data; name="image"%b\r\n\r\n%b\r\n--b--\r\n'


class Request:
    def __init__(self, body=b"", content_type=None, query="", **headers):
        self.body = body
        self.query = query
        self._headers = {name.replace("_", "-").encode(): value for name, value in headers.items()}
        if content_type is not None:
            self._headers[b"content-type"] = content_type.encode()

    def header(self, name):
        return self._headers.get(name)


def read(*arguments, **options):
    asked = read_upload(Request(*arguments, **options), 1 << 20)
    return [(f.field, f.name, f.content_type, bytes(f.data)) for f in asked.files], asked.values


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ((b'{"top": 3}', "application/json"), ([], {"top": 3})),
        ((b'{"top": 3}', "application/json; charset=utf-8"), ([], {"top": 3})),
        ((b' {"top": 3}', "application/vnd.x+json"), ([], {"top": 3})),
        # What curl -d says unless told otherwise, and what nothing at all says.
        ((b'{"top": 3}', "application/x-www-form-urlencoded"), ([], {"top": 3})),
        ((b'{"top": 3}', None), ([], {"top": 3})),
        (
            (b"top=3&name=a+b", "application/x-www-form-urlencoded"),
            ([], {"top": "3", "name": "a b"}),
        ),
        ((b"\xff\xd8\0", "image/jpeg"), ([("", "", "image/jpeg", b"\xff\xd8\0")], {})),
        ((b"\xff\xd8\0", None), ([("", "", "", b"\xff\xd8\0")], {})),
        # curl --data-binary @cat.jpg
        (
            (b"\xff\xd8\0", "application/x-www-form-urlencoded"),
            ([("", "", "application/x-www-form-urlencoded", b"\xff\xd8\0")], {}),
        ),
        ((b"", None), ([], {})),
        (
            (FORM % (b'; filename="c.png"', b"\x89PNG"), "multipart/form-data; boundary=b"),
            ([("image", "c.png", "", b"\x89PNG")], {}),
        ),
        ((FORM % (b"", b"text"), "multipart/form-data; boundary=b"), ([], {"image": "text"})),
        (
            (FORM % (b"\r\nContent-Type: image/png", b"\x89"), "multipart/form-data; boundary=b"),
            ([("image", "", "image/png", b"\x89")], {}),
        ),
    ],
)
def test_what_may_be_sent(request_, expected):
    assert read(*request_) == expected


def test_the_query_gives_values_and_the_body_wins():
    assert read(b'{"top": 3}', "application/json", query="top=5&stream=true")[1] == {
        "top": 3,
        "stream": "true",
    }


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ((b"[1]", "application/json"), "must be a JSON object"),
        ((b"{", "application/json"), "JSON"),
        ((FORM % (b"", b"\xff"), "multipart/form-data; boundary=b"), "'image' is not UTF-8 text"),
        ((b"", "multipart/form-data"), "without a boundary"),
        ((b"", None, "&".join(f"a{i}=1" for i in range(300))), "more than 256 fields"),
    ],
)
def test_what_cannot_be_read_is_told(request_, said):
    with pytest.raises(InvalidArgument, match=said):
        read(*request_)


def test_compressed_bodies_are_not_taken():
    with pytest.raises(Unsupported, match="send the request without compression"):
        read(b"x", content_encoding=b"gzip")

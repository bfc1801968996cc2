"""Addresses of remote repositories, and what is shown of them."""

import pytest

from shoal.errors import InvalidArgument, Unsupported
from shoal.storage.address import is_address, parse, redacted
from shoal.storage.paths import why_unsafe
from shoal.storage.source import open_source


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/models/", "s3://bucket/models"),
        ("S3://bucket", "s3://bucket"),
        ("s3://https://host:9000/bucket/path", "s3://https://host:9000/bucket/path"),
        ("s3://https://key:secret@host/bucket", "s3://https://host/bucket"),
        ("https://user:secret@host/m.tar.gz?X-Amz-Signature=secret", "https://host/m.tar.gz"),
        ("https://host/m.zip?token=a@b/c", "https://host/m.zip"),
        ("hf://org/name@v1.0", "hf://org/name@v1.0"),
        (
            "abfs://box@account.dfs.core.windows.net/m?sig=secret",
            "abfs://box@account.dfs.core.windows.net/m",
        ),
    ],
)
def test_an_address_is_shown_without_its_secrets(text, shown):
    address = parse(text)
    assert str(address) == shown
    assert f"{address}" == shown
    assert "secret" not in repr(address)
    assert ("secret" in text) == ("secret" in address.text)


def test_secrets_are_removed_from_texts_of_libraries():
    text = "Error performing GET http://me:secret@host/a?sig=secret&b=1 in 3s: (https://x/y?secret)"
    assert redacted(text) == "Error performing GET http://host/a in 3s: (https://x/y"


@pytest.mark.parametrize("text", ["/models", "models", "C:\\models", "./a:b", "s3:/bucket"])
def test_paths_of_this_machine_are_no_addresses(text):
    assert not is_address(text)


def test_an_address_names_something():
    with pytest.raises(InvalidArgument, match="write s3://bucket/path"):
        parse("s3://")


def test_an_unknown_scheme_is_refused_with_those_that_are_known():
    with pytest.raises(Unsupported, match=r"'ftp://host/x' has a scheme .* s3://, gs://"):
        open_source(parse("ftp://me:pw@host/x"), None)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "a//b",
        "a/../b",
        "..",
        "a/./b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 256,
        "a/\ud800",
    ],
)
def test_paths_that_must_not_become_files(path):
    assert why_unsafe(path)


@pytest.mark.parametrize("path", ["a", "model/1/model.onnx", "ä b/1/%2e%2e/…x", "...", "a/..b"])
def test_odd_paths_that_may(path):
    assert not why_unsafe(path)

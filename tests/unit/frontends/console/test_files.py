"""The console's files: complete, unchanged in the cache, and nothing in them that could hurt."""

import gzip
import re
from pathlib import Path

import pytest

import shoal.frontends.console
from shoal.errors import NotFound
from shoal.frontends.console.files import DOCS, PAGE, SECURITY, console_file

STATIC = Path(shoal.frontends.console.__file__).parent / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
SCRIPTS = [name for name in NAMES if name.endswith(".js")]


def headers(answer):
    return dict(answer[1])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served_as_it_is(name):
    status, sent, parts = console_file(name).response(b"", b"")
    assert status == 200
    assert b"".join(parts) == (STATIC / name).read_bytes()
    assert dict(sent)[b"Cache-Control"] == b"no-cache"


def test_types():
    kinds = {
        name: headers(console_file(name).response(b"", b""))[b"Content-Type"] for name in NAMES
    }
    assert kinds["index.html"] == b"text/html; charset=utf-8"
    assert kinds["console.css"] == b"text/css; charset=utf-8"
    assert kinds["app.js"] == b"text/javascript; charset=utf-8"
    assert kinds["icon.svg"] == b"image/svg+xml"


@pytest.mark.parametrize("name", ["", ".", "..", "../files.py", "__init__.py", "x.js", "static"])
def test_nothing_else_can_be_asked_for(name):
    with pytest.raises(NotFound):
        console_file(name)


def test_compressed_for_those_who_ask():
    plain = console_file(PAGE).response(b"", b"")
    packed = console_file(PAGE).response(b"gzip, deflate, br", b"")
    assert headers(packed)[b"Content-Encoding"] == b"gzip"
    assert gzip.decompress(packed[2][0]) == plain[2][0]
    assert headers(plain)[b"ETag"] != headers(packed)[b"ETag"]
    assert b"Accept-Encoding" in headers(plain)[b"Vary"]


@pytest.mark.parametrize("accepted", [b"", b"gzip"])
@pytest.mark.parametrize("form", [b"%b", b"W/%b", b'"old", %b'])
def test_what_is_known_is_not_sent_again(accepted, form):
    file = console_file("app.js")
    tag = headers(file.response(accepted, b""))[b"ETag"]
    status, sent, parts = file.response(accepted, form % tag)
    assert (status, parts) == (304, [])
    assert dict(sent)[b"ETag"] == tag
    assert file.response(accepted, b'"other"')[0] == 200


def test_the_policy_is_strict():
    policy = dict(SECURITY)[b"Content-Security-Policy"].decode()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy
    assert "*" not in policy
    assert dict(SECURITY)[b"X-Content-Type-Options"] == b"nosniff"
    assert dict(SECURITY)[b"Referrer-Policy"] == b"no-referrer"


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name):
    text = (STATIC / name).read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in text, word


@pytest.mark.parametrize("name", [PAGE, DOCS])
def test_the_pages_have_no_inline_code_and_nothing_from_elsewhere(name):
    page = (STATIC / name).read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\son\w+\s*=|\sstyle\s*=|<style", page)
    for file in NAMES:
        text = (STATIC / file).read_text()
        found = set(re.findall(r"https?://[^\s\"'`)<>]+", text))
        assert found <= {"http://www.w3.org/2000/svg", "http://"}, (file, found)


def test_every_file_that_is_named_exists():
    page = (STATIC / PAGE).read_text() + (STATIC / DOCS).read_text()
    named = set(re.findall(r'"console/([^"]+)"', page))
    for name in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', (STATIC / name).read_text()))
    assert named <= set(NAMES)
    assert set(NAMES) - named == {PAGE, DOCS}, "a file that nobody needs"

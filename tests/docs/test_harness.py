"""The harness must detect mistakes in a page."""

from __future__ import annotations

import shutil
import sys

import pytest
from answers import same
from packages import check_install
from pages import PageError, blocks, unmarked_commands
from reader import PageFailed, Reader, conversation
from sessions import commands

needs_bash = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("bash") is None, reason="needs bash"
)


@pytest.mark.parametrize(
    ("shown", "answer", "mode"),
    [
        ("a  b\nc", "a b c\n", ""),
        ("begin … end", "begin whatever\nthere is end", ""),
        ("took 3.5 ms, 1,200 times", "took 12 ms, 7 times", "numbers"),
        ("Throughput: 10 infer/sec", "more Throughput of all: 9 things infer 1/sec", "words"),
        ('{"b": 1, "a": [1, "…"]}', '{"a":[1,2,3],"b":1}', ""),
        ('{"score": 0.5}', '{"score":0.25}', "numbers"),
        ('{"score": 0.12345}', '{"score":0.123449999}', ""),
    ],
)
def test_answers_that_are_as_shown(shown, answer, mode):
    assert same(shown, answer, mode)


@pytest.mark.parametrize(
    ("shown", "answer", "mode"),
    [
        ("a b", "a b c", ""),
        ("took 3 ms", "took 4 ms", ""),
        ("took 3 ms", "took three ms", "numbers"),
        ("one two", "two one", "words"),
        ('{"a": 1}', '{"a":1,"b":2}', ""),
        ('{"a": 1}', '{"b":1}', "numbers"),
        ("[1, 2]", "[1,2,3]", ""),
    ],
)
def test_answers_that_are_not(shown, answer, mode):
    assert not same(shown, answer, mode)


@needs_bash
def test_commands_end_where_bash_says_so():
    text = "# a remark\na b\n\ncurl x -d '{\n 1}' # tail\nc \\\n  d\ncat <<E\ntext\nE\nif a\nthen b\nfi\n"
    assert commands(text) == [
        (1, "a b"),
        (3, "curl x -d '{\n 1}' # tail"),
        (5, "c \\\n  d"),
        (7, "cat <<E\ntext\nE"),
        (10, "if a\nthen b\nfi"),
    ]


def test_a_conversation():
    lines = ["$ first", "> goes on", "answer", "$ second", "$ third", "1", "2"]
    assert list(conversation(lines)) == [
        (0, "first\ngoes on", "answer\n"),
        (3, "second", ""),
        (4, "third", "1\n2\n"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- run: not -->\n```sh\na\n```",
        "<!-- run: no -->\n```sh\na\n```",
        "<!-- run: fails -->\nwords\n",
        "<!-- run: output=roughly -->\n```sh\na\n```",
        "<!-- run: background -->\n```sh\na\n```",
        "```sh\na\n",
    ],
)
def test_a_page_that_is_wrong(text):
    with pytest.raises(PageError):
        blocks("page.md", text)


def test_commands_that_hide():
    text = "    curl x\n\n```text\n$ shoal serve\nanswer\n```\n\n```\nmake test\n```\n"
    assert unmarked_commands(text) == [1, 4, 9]


def test_commands_that_do_not_hide():
    text = '<!-- run: no reason="so" -->\n```\nmake test\n```\n\n```sh\ncurl x\n```\n`curl x`\n'
    assert unmarked_commands(text) == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("pip install .", ""),
        ("pip install 'shoal[redis,torch]' onnx", ""),
        ("python -m pip install -r requirements.txt -q .[docs]  # remark", ""),
        ("pip install 'shoal[everything]'", "no extra 'everything'"),
        ("pip install nonesuch", "'nonesuch' is no package"),
    ],
)
def test_what_pip_is_told(command, fault):
    done = check_install(command)
    assert (done.status != 0) == bool(fault)
    assert fault in done.error


def follow(text, tools, tmp_path):
    def no_demo():
        pytest.fail("this page needs no server")

    reader = Reader(tmp_path, tools, tmp_path, no_demo)
    try:
        reader.follow(blocks("page.md", text))
    finally:
        reader.close()
    return reader


@needs_bash
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```sh\ntrue\nfalse\n```", "page.md:3: false"),
        ("```sh\nfalse | true\n```", "page.md:2: false | true"),
        ("```sh\nexit 0\n```", "ended its own Shell"),
        ("```console\n$ echo one\ntwo\n```", "the page shows\ntwo"),
        ("<!-- run: fails -->\n```sh\ntrue\n```", "no failure"),
        ("```python\nx = 1\nraise ValueError(x)\n```", 'File "page.md", line 3'),
        ("```json\n{\n```", "this is no JSON"),
        ('```sh\necho \'{"a": 1}\'\n```\n\n```json\n{"a": 2}\n```', "the page shows"),
        ("```sh\nmake nonesuch\n```", "No rule to make target"),
        ("```sh\nshoal serve nonesuch\n```", "the model repository 'nonesuch' does not exist"),
    ],
)
def test_a_page_that_fails(text, fault, tools, tmp_path):
    with pytest.raises(PageFailed) as caught:
        follow(text, tools, tmp_path)
    assert fault in str(caught.value)


@needs_bash
def test_a_page_that_holds(tools, tmp_path):
    reader = follow(
        "<!-- run: setup\nmkdir inner && cd inner\nname=shoal\n-->\n"
        '```console\n$ echo "$name"\nshoal\n```\n'
        "<!-- run: file=words.txt -->\n```text\na b\n```\n"
        "```sh\ntest -f ../inner/words.txt\n```\n"
        "```python\nfrom pathlib import Path\n```\n"
        "```py\nprint(Path('words.txt').read_text())\n```\n"
        "<!-- run: output -->\n```text\na b\n```\n"
        "<!-- run: needs=nonesuch -->\n```sh\nfalse\n```\n"
        '<!-- run: no reason="so" -->\n```sh\nfalse\n```\n',
        tools,
        tmp_path,
    )
    assert reader.left_out == ["page.md:28 needs nonesuch"]

"""From a conversation to a prompt."""

from __future__ import annotations

import json

import pytest

from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.prompts import plain_prompt, read_chat_template, read_messages

HELLO = [{"role": "user", "content": "Hello"}]


def test_without_a_template_each_message_is_a_line():
    messages = [{"role": "system", "content": "Be kind."}, *HELLO]
    assert plain_prompt(messages) == "system: Be kind.\nuser: Hello\nassistant:"


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    sent = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert [message["content"] for message in read_messages(sent, "m")] == ["ab", ""]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "'messages' must be a list with at least one message"),
        ([], "'messages' must be a list with at least one message"),
        (["hi"], r"'messages\[0\]' must be an object"),
        ([{"content": "x"}], r"'messages\[0\].role' must be a text"),
        ([*HELLO, {"role": "user"}], r"'messages\[1\].content' is missing"),
        ([{"role": "user", "content": 3}], "must be a text or a list of parts"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "a part of the type 'image_url'; the model 'm' takes only text",
        ),
        ([{"role": "user", "content": [{"text": "x"}]}], "a part that is not a text part"),
    ],
)
def test_wrong_messages_are_named(messages, words):
    with pytest.raises(OpenAiError, match=words):
        read_messages(messages, "m")


def test_a_template_beside_the_model(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "not this one"})
    )
    template = read_chat_template("m", [tmp_path], "")
    assert template(HELLO) == "<s><user>Hello\n<assistant>"


def test_the_template_of_the_tokenizer(tmp_path):
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ eos_token }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": named})
    )
    assert read_chat_template("m", [tmp_path / "absent", tmp_path], "")(HELLO) == "</s>"


def test_a_folder_without_one_gets_the_plain_prompt(tmp_path):
    assert read_chat_template("m", [tmp_path], "") is plain_prompt


@pytest.mark.parametrize(
    ("source", "words", "status"),
    [
        ("{% for %}", "cannot be used", 500),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate", 400),
        ("{{ messages.clear() }}", "rejects these messages", 400),  # the sandbox
        ("{{ ''.__class__.__mro__ }}", "rejects these messages", 400),
    ],
)
def test_a_template_that_fails_says_why(tmp_path, source, words, status):
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(OpenAiError, match=words) as raised:
        read_chat_template("m", [tmp_path], "")(HELLO)
    assert raised.value.status == status


def test_a_template_that_is_named_must_be_there(tmp_path):
    with pytest.raises(OpenAiError, match=r"there is no file 'x\.jinja' in the model's folder"):
        read_chat_template("m", [tmp_path], "x.jinja")

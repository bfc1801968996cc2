"""Converts a conversation to a prompt, with the model's chat template or a plain one.

    [{"role": "user", "content": "Hi"}]  -->  a line "user: Hi" and one "assistant:"

Templates are Hugging Face's: chat_template.jinja in the model's folder, or the one in
tokenizer_config.json. They run in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from shoal.frontends.http.openai.errors import OpenAiError

Message = dict[str, Any]
ChatTemplate = Callable[[Sequence[Message]], str]

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_TEXT_PARTS = ("text", "input_text")
_MOST_MESSAGES = 4096


def read_photo(value: Any, model: str) -> str:
    """The one photo of a conversation, as a data: URL. OpenAiError for any other content."""
    contents = [entry.get("content") for entry in value if type(entry) is dict] if value else []
    parts = [part for content in contents if type(content) is list for part in content]
    urls = [
        part.get("image_url", {}).get("url")
        for part in parts
        if type(part) is dict and type(part.get("image_url")) is dict
    ]
    if len(urls) != 1 or len(parts) != 1 or len(contents) != 1:
        raise OpenAiError(
            f"the model '{model}' describes a photo and takes no text: send one message whose "
            f"content is one part of the type image_url",
            "messages",
        )
    if type(urls[0]) is not str or not urls[0].startswith("data:"):
        raise OpenAiError(
            "'image_url.url' must contain the photo itself, data:image/jpeg;base64,…: the server "
            "does not fetch URLs",
            "messages",
        )
    return urls[0]


def read_messages(value: Any, model: str) -> list[Message]:
    """The conversation, each content as one text. OpenAiError names the invalid message."""
    if type(value) is not list or not value:
        raise OpenAiError("'messages' must be a list with at least one message", "messages")
    if len(value) > _MOST_MESSAGES:
        raise OpenAiError(f"'messages' must have at most {_MOST_MESSAGES} elements", "messages")
    return [_message(entry, f"messages[{number}]", model) for number, entry in enumerate(value)]


def _message(entry: Any, where: str, model: str) -> Message:
    if type(entry) is not dict:
        raise OpenAiError(f"'{where}' must be an object with role and content", where)
    role = entry.get("role")
    if type(role) is not str or not role:
        raise OpenAiError(f"'{where}.role' must be a text: system, user or assistant", where)
    content = entry.get("content")
    if content is None and role != "assistant":
        raise OpenAiError(f"'{where}.content' is missing", where)
    if type(content) is list:
        content = "".join(_part(part, where, model) for part in content)
    if content is not None and type(content) is not str:
        raise OpenAiError(f"'{where}.content' must be a text or a list of parts", where)
    return {**entry, "content": content or ""}


def _part(part: Any, where: str, model: str) -> str:
    kind = part.get("type") if type(part) is dict else None
    text = part.get("text") if type(part) is dict else None
    if kind in _TEXT_PARTS and type(text) is str:
        return text
    if type(kind) is str and kind not in _TEXT_PARTS:
        raise OpenAiError(
            f"'{where}.content' has a part of the type '{kind}'; the model '{model}' takes only "
            f"text here",
            where,
        )
    raise OpenAiError(f"'{where}.content' has a part that is not a text part", where)


def plain_prompt(messages: Sequence[Message]) -> str:
    """The prompt for a model without a template."""
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n".join([*lines, "assistant:"])


def read_chat_template(model: str, folders: Sequence[Path], named: str) -> ChatTemplate:
    """The template in the first folder that has one. Blocks. OpenAiError where it is invalid."""
    settings: Mapping[str, Any] = {}
    source = ""
    for folder in folders:
        path = folder / (named or TEMPLATE_FILE)
        if path.is_file():
            source = path.read_text("utf-8")
        if (folder / TOKENIZER_CONFIG).is_file():
            settings = _read_settings(folder / TOKENIZER_CONFIG, model)
        if source or settings:
            break
    if named and not source:
        raise _unusable(model, f"there is no file '{named}' in the model's folder")
    source = source or _default_of(settings.get("chat_template"))
    return _jinja_template(model, source, settings) if source else plain_prompt


def _read_settings(path: Path, model: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(model, f"{path.name}: {error}") from None
    return found if isinstance(found, dict) else {}


def _default_of(template: Any) -> str:
    """The template, or the one named default where there are several."""
    if type(template) is list:
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if type(template) is str else ""


def _jinja_template(model: str, source: str, settings: Mapping[str, Any]) -> ChatTemplate:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise _unusable(model, "it needs Jinja: pip install 'shoal[chat]'") from error

    def raise_exception(message: str) -> str:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime.now(timezone.utc).strftime
    special = {name: _token(settings.get(name)) for name in _SPECIAL}
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise _unusable(model, str(error)) from None

    def render(messages: Sequence[Message]) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True, **special)
        except Exception as error:  # noqa: BLE001 - templates raise anything
            raise OpenAiError(
                f"the chat template of '{model}' rejects these messages: {error}", "messages"
            ) from None

    return render


def _to_json(value: Any, **options: Any) -> str:
    """JSON without HTML escapes, as chat templates expect it."""
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))


def _token(value: Any) -> str:
    """A special token, which may be a text or an object in the file."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if type(value) is str else ""


def _unusable(model: str, why: str) -> OpenAiError:
    return OpenAiError(f"the chat template of '{model}' cannot be used: {why}", status=500)

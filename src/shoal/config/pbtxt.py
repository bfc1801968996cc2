"""config.pbtxt: protobuf text format in, a `ModelConfig` out, and back.

protobuf's own parser decides what is valid. Its errors are rewritten here in the user's terms:
the block and field at that position, what was found, and what to write instead.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.config.schema import Field, message_type
from shoal.config.suggest import did_you_mean
from shoal.errors import ConfigError, quoted
from shoal.wire.proto import messages, schema

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from google.protobuf.text_format import ParseError

_POSITION = re.compile(r"^\d+:\d+ : ")
_TOKEN = re.compile(
    r"""\#[^\n]*                                   # a comment
      | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'  # a string
      | [A-Za-z_]\w* | [-+.\w]+                    # a name, a number
      | \S                                         # punctuation, or half a string""",
    re.VERBOSE,
)
# An escape that C does not have (the group), or one that it has, which the search skips.
_ESCAPE = re.compile(r"""\\((?![abfnrtv\\'"xuU0-7]).|[4-7][0-7][0-7])|\\.""", re.DOTALL)
# For each kind of field: its name in errors, its tokens, and an example.
_KINDS = {
    "integer": ("an integer", r"-?\d+", "4"),
    "float": ("a number", r"-?\d+(\.\d+)?", "0.5"),
    "double": ("a number", r"-?\d+(\.\d+)?", "0.5"),
    "bool": ("true or false", "true|false", "true"),
    "string": ("a string in quotes", r"([\"']).*\1", '"text"'),
    "message": ("a block in braces", "", ""),
}
_MOST_SHOWN = 40


def parse_pbtxt(text: str, file: str) -> ModelConfig:
    """Read the text of a config.pbtxt. ConfigError has the position in `file` and the problem."""
    from google.protobuf import text_format

    text = text.removeprefix("\ufeff")  # some editors write a byte order mark
    message: Message = messages.ModelConfig()
    try:
        text.encode()
        _refuse_unknown_escapes(text, file)
        text_format.Parse(text, message, descriptor_pool=schema.pool())
    except text_format.ParseError as error:
        raise _explain(error, text, file) from None
    except RecursionError:
        raise ConfigError("the blocks are nested too deeply to be a config", file=file) from None
    except ValueError as error:
        fix = "Save the file as UTF-8 text in protobuf text format"
        raise ConfigError(f"not a readable config: {error}", file=file, fix=fix) from None
    return codec.from_message(message, file=file)


def to_pbtxt(config: ModelConfig) -> str:
    """`config` as text that `parse_pbtxt` reads back to an equal one."""
    from google.protobuf import text_format

    return text_format.MessageToString(codec.to_message(config), as_utf8=True)


def _refuse_unknown_escapes(text: str, file: str) -> None:
    """Report unknown escapes, common in Windows paths; the parser only warns of them."""
    if "\\" not in text:
        return
    for token in _TOKEN.finditer(text):
        if token[0][0] not in "\"'":
            continue
        for escape in _ESCAPE.finditer(token[0]):
            if escape[1]:
                place = _place(text, token.start())
                line = text.count("\n", 0, token.start()) + 1
                column = token.start() - text.rfind("\n", 0, token.start())
                raise ConfigError(
                    f"the string has an escape '{escape[0]}' that does not exist",
                    file=f"{file}:{line}:{column}",
                    field=place.path,
                    fix="Write \\\\ for a backslash",
                )


@dataclass(frozen=True, slots=True)
class _Position:
    """The position in the file where the parser stopped."""

    blocks: tuple[str, ...]  # names of the open blocks
    opened_line: int  # where the innermost of them starts
    name: str  # the field at that position, "" between fields
    found: str  # the token there, "" at the end of the file
    after_comma: bool

    @property
    def path(self) -> str:
        """The field with the blocks around it: `input.reshape.shape`."""
        return ".".join((*self.blocks, self.name) if self.name else self.blocks)

    @property
    def field(self) -> Field | None:
        """The schema's field of that name, if there is one."""
        inside: Mapping[str, Field] = message_type().fields
        for block in self.blocks:
            field = inside.get(block)
            if field is None:
                return None
            if field.key is not None:  # a map is written as blocks with a key and a value
                inside = {
                    "key": field.key,
                    "value": dataclasses.replace(field, name="value", key=None),
                }
            elif field.message is not None:
                inside = field.message.fields
            else:
                return None
        return inside.get(self.name)


def _explain(error: ParseError, text: str, file: str) -> ConfigError:
    """The parser's error as a sentence for the person who wrote the file."""
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = text.split("\n")
    said = _POSITION.sub("", str(error)).rstrip(".")
    said = said.removeprefix(f"'{lines[line - 1]}': ")
    if said in ('Expected "}"', 'Expected ">"'):  # reported at the end, for the token before it
        line, column = len(lines), len(lines[-1]) + 1
    place = _place(text, sum(len(before) + 1 for before in lines[: line - 1]) + column - 1)
    message, fix = _sentence(said, place)
    where = f"{file}:{line}:{column}"
    return ConfigError(message, file=where, field=quoted(place.path), fix=fix)


def _sentence(said: str, place: _Position) -> tuple[str, str]:
    """The problem and the fix, from the parser's message and the position."""
    unknown = re.fullmatch(r'Message type "([\w.]+)" has no field named "(.*)"', said)
    if unknown:
        block = f" in '{place.blocks[-1]}'" if place.blocks else ""
        known = schema.pool().FindMessageTypeByName(unknown[1]).fields_by_name
        fix = did_you_mean(unknown[2], list(known), "fields")
        return f"unknown field '{unknown[2]}'{block}", fix
    twice = re.search(r'should not have multiple "(\w+)" fields', said)
    if twice:
        return f"'{twice[1]}' is written twice", "Keep one of them"
    choice = re.match(r'Field "(\w+)" is specified along with field "(\w+)"', said)
    if choice:
        return f"'{choice[1]}' excludes '{choice[2]}', but both are set", "Keep one of them"
    if said.startswith("String missing ending quote"):
        return "a string does not end in its line", f"Close it with {place.found[:1]}"
    if "Couldn't parse string: " in said:
        why = said.split("Couldn't parse string: ", 1)[1]
        return f"the string before this position is not UTF-8: {why}", "Write it without escapes"
    if not place.found:
        if place.blocks:
            opened = f"the block '{place.blocks[-1]}' that opens in line {place.opened_line}"
            return f"{opened} is not closed", "Add a '}'"
        return "the file ends in the middle of a field", _example(place.field)
    if place.found == "}" and not place.blocks and not place.name:
        return "a '}' closes a block that was never opened", "Remove it, or open the block above"
    if place.found == "{" and not place.blocks and not place.name:
        fix = "Write the fields without braces around them; this file is not JSON"
        return "found '{' where a field should start", fix
    if place.found == "]" and place.after_comma:
        return "a comma before ']'", "Remove the comma"
    shown = _shown(place.found)
    if said == 'Expected ","' and place.found == "}":
        return "the list is not closed, found }", "Put a ']' before the }"
    if said == 'Expected ","':
        return f"a ',' is missing in the list, found {shown}", f"Put a comma before {shown}"
    if said == 'Expected ":"':
        fix = _example(place.field, place.found)
        return f"a ':' is missing after '{place.name}', found {shown}", fix
    if place.field is not None:
        return _wrong_value(place.field, place.found, said)
    return f"{said}, found {shown}", _example(None)


def _wrong_value(field: Field, token: str, said: str) -> tuple[str, str]:
    """The field is known, but its value is of another kind."""
    shown = _shown(token)
    if field.key is not None:
        return f"expected {_KINDS['message'][0]}, found {shown}", _example(field)
    if field.enum is not None:
        written = token.strip("\"'")
        if written in field.enum.numbers:
            return f"found {shown} in quotes", f"Write {field.name}: {written}"
        fix = did_you_mean(written, field.enum.names, "values")
        return f"'{field.name}' has no value {shown}", fix
    if said.startswith("Value out of range"):
        fix = f"Write {field.values.start} to {field.values.stop - 1}"
        return f"{shown} is out of range", fix
    return f"expected {_KINDS[field.kind][0]}, found {shown}", _example(field, token)


def _example(field: Field | None, token: str = "") -> str:
    """How to write a field of this kind, with the token if it is a valid value."""
    if field is None:
        return 'Write fields as name: value, for example max_batch_size: 8 or backend: "python"'
    return "Write " + _written(field, token)


def _written(field: Field, token: str) -> str:
    if field.key is not None:
        return f'{field.name}: {{ key: "…" value: … }}'
    if field.message is not None:
        inner = list(field.message.fields.values())
        # The value of `parameters` is { string_value: … }: one field can be shown completely.
        inside = _written(inner[0], token) if len(inner) == 1 else "…"
        return f"{field.name}: {{ {inside} }}"
    if field.enum is not None:
        value = token if token in field.enum.numbers else field.enum.names[-1]
    elif field.kind == "string" and re.fullmatch(r"[\w.\-]+", token):
        value = f'"{token}"'
    else:
        _, pattern, example = _KINDS[field.kind]
        value = token if re.fullmatch(pattern, token) else example
    return f"{field.name}: {f'[ {value} ]' if field.repeated else value}"


def _shown(token: str) -> str:
    token = token if token.isprintable() else repr(token)
    return token if len(token) <= _MOST_SHOWN else token[:_MOST_SHOWN] + "…"


def _place(text: str, stop: int) -> _Position:
    """Follow the text up to offset `stop` and note which blocks and which field are open there."""
    blocks: list[tuple[str, int, bool]] = []  # name, line, whether it is in a list
    name, in_list, field_open, previous = "", False, False, ""
    found = ""
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word.startswith("#"):
            continue
        if token.start() >= stop:
            found = word
            break
        if word in "{<":
            blocks.append((name, text.count("\n", 0, token.start()) + 1, in_list))
            name, in_list, field_open = "", False, False
        elif word in "}>":
            name, _, in_list = blocks.pop() if blocks else ("", 0, False)
            field_open = False
        elif word in "[]":
            in_list = word == "["
            field_open = False
        elif word not in ":,;":
            if not field_open and not in_list:
                name, field_open = word, True
            else:  # a value
                field_open = False
        previous = word
    if not field_open and not in_list:  # between fields: a name is expected
        name = found if found[:1].isidentifier() else ""
    open_blocks = tuple(block for block, _, _ in blocks)
    opened_line = blocks[-1][1] if blocks else 0
    return _Position(open_blocks, opened_line, name, found, previous == ",")

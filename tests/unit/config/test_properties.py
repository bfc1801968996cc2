"""What holds for any config, drawn along the schema, and for any text."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.config import codec, normalise, rules
from shoal.config.model import ModelConfig
from shoal.config.pbtxt import parse_pbtxt, to_pbtxt
from shoal.config.schema import Field, MessageType, message_type
from shoal.errors import ConfigError

PLAIN = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def value_of(field: Field) -> st.SearchStrategy:
    if field.message is not None:
        return holder_of(field.message)
    if field.enum is not None:
        return st.sampled_from(field.enum.names)
    return {
        "integer": st.integers(field.values.start, field.values.stop - 1)
        | st.integers(max(field.values.start, -2), 9),
        "float": st.floats(width=32, allow_nan=False).map(codec.shortest_float),
        "double": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "string": NAMES,
    }[field.kind]


def field_of(field: Field) -> st.SearchStrategy:
    value = value_of(field)
    if field.key is not None:
        return st.dictionaries(value_of(field.key), value, max_size=2)
    if field.repeated:
        return st.lists(value, max_size=2).map(tuple)
    return value


@st.composite
def holder_of(draw, kind: MessageType):
    names = draw(st.sets(st.sampled_from(sorted(kind.fields)), max_size=5)) if kind.fields else ()
    values, groups = {}, set()
    for name in sorted(names):
        field = kind.fields[name]
        if field.group not in groups:
            values[field.attribute] = draw(field_of(field))
        groups |= {field.group} - {""}
    return kind.holder(**values)


CONFIGS = holder_of(message_type())


@PLAIN
@given(CONFIGS)
def test_text_gives_back_what_was_written(config):
    assert parse_pbtxt(to_pbtxt(config), "config.pbtxt") == config


@PLAIN
@given(CONFIGS)
def test_json_gives_back_what_was_written(config):
    assert codec.parse_json(json.dumps(codec.to_dict(config)), "here") == config


@PLAIN
@given(CONFIGS)
def test_protobuf_gives_back_what_was_written(config):
    assert codec.from_message(codec.to_message(config)) == config


def with_numbers(kind: MessageType, plain: dict) -> dict:
    """Protobuf's JSON with the strings it makes of 64-bit integers made numbers again."""
    return {name: field_with_numbers(kind.fields[name], value) for name, value in plain.items()}


def field_with_numbers(field: Field, value):
    if field.key is not None:
        return {key: one_with_numbers(field, entry) for key, entry in value.items()}
    if field.repeated:
        return [one_with_numbers(field, entry) for entry in value]
    return one_with_numbers(field, value)


def one_with_numbers(field: Field, value):
    if field.message is not None:
        return with_numbers(field.message, value)
    return int(value) if field.kind == "integer" else value


@PLAIN
@given(CONFIGS)
def test_the_config_endpoint_says_what_protobuf_would(config):
    theirs = json_format.MessageToDict(
        codec.to_message(config),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    assert codec.to_dict(config) == with_numbers(message_type(), theirs)


@PLAIN
@given(CONFIGS)
def test_protobuf_json_is_read(config):
    theirs = json_format.MessageToJson(codec.to_message(config))  # camelCase, integers as strings
    assert codec.parse_json(theirs, "here") == config


@PLAIN
@given(CONFIGS)
def test_rules_judge_any_config(config):
    found = list(rules.faults(config))
    for fault in found:
        assert fault.message
        assert fault.fix
        assert not fault.message.endswith(".")
    if found:
        with pytest.raises(ConfigError):
            rules.check(config, file="config.pbtxt")
    else:
        rules.check(config, file="config.pbtxt")
    assert len(set(rules.not_acted_on(config))) == len(rules.not_acted_on(config))


@PLAIN
@given(CONFIGS, st.sets(st.sampled_from(["model.onnx", "model.pt", "model.py", "x"])))
def test_normalising_again_changes_nothing(config, files):
    def whole(config: ModelConfig) -> ModelConfig:
        config = normalise.normalise(config, directory_name="m.identity", file="f")
        config = normalise.infer_backend(config, files, "f")
        return normalise.resolve_instance_groups(
            config, default_cpu_count=2, gpus=[0], gpu_fallback_cpu=True, file="f"
        )

    try:
        once = whole(config)
    except ConfigError:
        return
    assert whole(once) == once


TOKENS = st.sampled_from(
    [
        "name",
        "input",
        "dims",
        "data_type",
        "reshape",
        "parameters",
        "key",
        "value",
        "kind",
        "TYPE_FP32",
        "true",
        "1",
        "-1",
        "2.5",
        '"a"',
        "'b'",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ":",
        ",",
        ";",
        "#",
        "\\",
        "\n",
    ]
)


def complaint(parse, text: str) -> str:
    """What the parser has against `text`; nothing when it reads it."""
    try:
        assert isinstance(parse(text, "config.pbtxt"), ModelConfig)
    except ConfigError as error:
        return str(error)
    return ""


@PLAIN
@given(st.text() | st.lists(TOKENS, max_size=20).map(" ".join))
def test_any_text_is_a_config_or_a_config_error(text):
    complaint(parse_pbtxt, text).encode()  # can be logged and sent


@PLAIN
@given(CONFIGS, st.data())
def test_a_damaged_file_is_a_config_or_a_config_error(config, data):
    text = to_pbtxt(config)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 3)))
    damaged = text[:start] + data.draw(st.sampled_from(["", " ", "}", "]", '"', "x"])) + text[end:]
    said = complaint(parse_pbtxt, damaged)
    assert not said or said.startswith("config.pbtxt")


WORDS = st.sampled_from(sorted({*message_type().fields, "dims", "name", "step", "latest"}))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=10,
)


@PLAIN
@given(JSON.map(json.dumps) | st.text())
def test_any_json_is_a_config_or_a_config_error(text):
    said = complaint(codec.parse_json, text)
    said.encode()
    if not said:
        codec.to_message(codec.parse_json(text, "here"))

"""The dataclasses say exactly what the schema says."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.config import codec, model
from shoal.config.model import ModelConfig, ModelInput, ModelRateLimiter
from shoal.config.schema import MessageType, message_type
from shoal.wire.proto import messages


def all_types(kind: MessageType):
    yield kind
    for field in kind.fields.values():
        if field.message is not None:
            yield from all_types(field.message)


TYPES = {kind.holder: kind for kind in all_types(message_type())}


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.holder.__qualname__)
def test_fields_and_defaults_mirror_the_schema(kind):
    fields = dataclasses.fields(kind.holder)
    assert [field.name for field in fields] == [field.attribute for field in kind.fields.values()]
    empty = kind.holder()
    for field in kind.fields.values():
        value = getattr(empty, field.attribute)
        if field.key is not None:
            assert value == {}
        elif field.repeated:
            assert value == ()
        elif field.presence:
            assert value is None
        elif field.enum is not None:
            assert field.enum.numbers[value] == 0
        else:
            assert value == {"integer": 0, "float": 0.0, "bool": False, "string": ""}[field.kind]
            assert type(value) in (int, float, bool, str)


def classes_in(holder):
    for value in vars(holder).values():
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            yield value
            yield from classes_in(value)


def test_there_is_no_class_without_a_message():
    assert set(classes_in(model)) == set(TYPES)
    assert codec.from_message(messages.ModelConfig()) == ModelConfig()


def test_configs_compare_by_value_and_do_not_change():
    one = ModelConfig(name="m", input=(ModelInput(name="a", dims=(1, 2)),), metric_tags={"a": "b"})
    two = ModelConfig(name="m", input=(ModelInput(name="a", dims=(1, 2)),), metric_tags={"a": "b"})
    assert one == two
    assert one != dataclasses.replace(two, max_batch_size=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "other"


def test_a_field_python_keeps_for_itself_has_an_underscore():
    resource = ModelRateLimiter.Resource(name="R", global_=True, count=2)
    assert (
        message_type("inference.ModelRateLimiter.Resource").fields["global"].attribute == "global_"
    )
    assert resource.global_

"""config.pbtxt: what is legal is read as protobuf reads it, what is not gets a sentence."""

from __future__ import annotations

import pytest

from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
    ModelVersionPolicy,
)
from shoal.config.pbtxt import parse_pbtxt, to_pbtxt
from shoal.errors import ConfigError

A = ModelInput(name="A", data_type="TYPE_FP32", dims=(1, 2))
B = ModelInput(name="B", data_type="TYPE_INT32", dims=(-1,))
WHOLE = """
# A comment on a line of its own.
name: "resnet"
platform: 'onnxruntime_onnx'    # and one behind a field
max_batch_size: 8
input [
  {
    name: "INPUT"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output { name: "OUT" data_type: TYPE_STRING dims: 1000 label_filename: "labels.txt" }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]
version_policy: { specific: { versions: 1 versions: 3 } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "intra_op_thread_count" value { string_value: "4" } }
parameters: { key: "a" value: { string_value: "b" } }
"""


def parse(text: str) -> ModelConfig:
    return parse_pbtxt(text, "config.pbtxt")


def test_a_whole_file():
    assert parse(WHOLE) == ModelConfig(
        name="resnet",
        platform="onnxruntime_onnx",
        max_batch_size=8,
        input=(
            ModelInput(
                name="INPUT",
                data_type="TYPE_FP32",
                format="FORMAT_NCHW",
                dims=(3, 224, 224),
                reshape=ModelTensorReshape(shape=(1, 3, 224, 224)),
            ),
        ),
        output=(
            ModelOutput(
                name="OUT", data_type="TYPE_STRING", dims=(1000,), label_filename="labels.txt"
            ),
        ),
        instance_group=(ModelInstanceGroup(count=2, kind="KIND_GPU", gpus=(0, 1)),),
        version_policy=ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=(1, 3))),
        dynamic_batching=ModelDynamicBatching(
            preferred_batch_size=(4, 8), max_queue_delay_microseconds=100
        ),
        parameters={
            "a": ModelParameter(string_value="b"),
            "intra_op_thread_count": ModelParameter(string_value="4"),
        },
    )
    assert parse(to_pbtxt(parse(WHOLE))) == parse(WHOLE)


TWO_INPUTS = ModelConfig(input=(A, B))


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", ModelConfig()),
        ("# nothing but a comment", ModelConfig()),
        ("\ufeffname: 'm'", ModelConfig(name="m")),
        ('name: "m"\r\nmax_batch_size: 1\r\n', ModelConfig(name="m", max_batch_size=1)),
        ("name:'m'max_batch_size:4", ModelConfig(name="m", max_batch_size=4)),
        ("name: 'm'; max_batch_size: 4;", ModelConfig(name="m", max_batch_size=4)),
        ("name: 'm', max_batch_size: 4,", ModelConfig(name="m", max_batch_size=4)),
        ('name: "a" "b"\n  "c"', ModelConfig(name="abc")),
        (r'name: "tab\there \"q\" \303\251 \xc3\xa9"', ModelConfig(name='tab\there "q" é é')),
        (r"name: 'C:\\models\\\a' # C:\models", ModelConfig(name="C:\\models\\\a")),
        ('name: "größe 雪"', ModelConfig(name="größe 雪")),
        ("max_batch_size: 0x10", ModelConfig(max_batch_size=16)),
        ("max_batch_size: 010", ModelConfig(max_batch_size=8)),
        ("dynamic_batching {}", ModelConfig(dynamic_batching=ModelDynamicBatching())),
        ("dynamic_batching: {}", ModelConfig(dynamic_batching=ModelDynamicBatching())),
        ("dynamic_batching <>", ModelConfig(dynamic_batching=ModelDynamicBatching())),
        (
            "dynamic_batching { }; name: 'm'",
            ModelConfig(name="m", dynamic_batching=ModelDynamicBatching()),
        ),
        (
            "version_policy { all {} }",
            ModelConfig(version_policy=ModelVersionPolicy(all=ModelVersionPolicy.All())),
        ),
        (
            "version_policy: { all { }}",
            ModelConfig(version_policy=ModelVersionPolicy(all=ModelVersionPolicy.All())),
        ),
        (
            (
                "input { name: 'A' data_type: TYPE_FP32 dims: [1,2] }"
                "input { name: 'B' data_type: TYPE_INT32 dims: [-1] }"
            ),
            TWO_INPUTS,
        ),
        (
            (
                "input [ { name: 'A' data_type: TYPE_FP32 dims: [1,2] },"
                "{ name: 'B' data_type: TYPE_INT32 dims: [-1] } ]"
            ),
            TWO_INPUTS,
        ),
        (
            (
                "input: [ < name: 'A', data_type: TYPE_FP32, dims: 1 dims: 2 >,"
                "{ name: 'B'; data_type: 8; dims: -1; } ]"
            ),
            TWO_INPUTS,
        ),
        (
            (
                "input { name: 'A' data_type: TYPE_FP32 dims: 1, dims: [ 2 ] }"
                "input: [ { name: 'B' data_type: TYPE_INT32 dims: [ -1 ] } ]"
            ),
            TWO_INPUTS,
        ),
        ("input []", ModelConfig()),
        ("input { dims: [] }", ModelConfig(input=(ModelInput(),))),
        (
            "input { reshape { shape: [ ] } }",
            ModelConfig(input=(ModelInput(reshape=ModelTensorReshape()),)),
        ),
        ("input { optional: True }", ModelConfig(input=(ModelInput(optional=True),))),
        ("input { optional: 1 }", ModelConfig(input=(ModelInput(optional=True),))),
        ("input { optional: f }", ModelConfig(input=(ModelInput(),))),
        (
            "parameters { value { string_value: 'b' } key: 'a' }",
            ModelConfig(parameters={"a": ModelParameter(string_value="b")}),
        ),
        (
            "parameters [ { key: 'a', value: { string_value: 'b' } }, { key: 'c' } ]",
            ModelConfig(parameters={"a": ModelParameter(string_value="b"), "c": ModelParameter()}),
        ),
        (
            "metric_tags { key: 'a' value: '1' } metric_tags { key: 'a' value: '2' }",
            ModelConfig(metric_tags={"a": "2"}),
        ),
    ],
)
def test_what_people_write_is_read(text, config):
    assert parse(text) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        # A misspelling has a near match; a stranger gets the list.
        (
            "max_batch_sise: 4",
            (
                "config.pbtxt:1:1: max_batch_sise: unknown field 'max_batch_sise'. "
                "Did you mean 'max_batch_size'?"
            ),
        ),
        (
            "name: 'm'\ninput {\n  dim: [ 1 ]\n}",
            "config.pbtxt:3:3: input.dim: unknown field 'dim' in 'input'. Did you mean 'dims'?",
        ),
        (
            "dynamic_batching { preferred_batch_sizes: 4 }",
            (
                "unknown field 'preferred_batch_sizes' in 'dynamic_batching'. "
                "Did you mean 'preferred_batch_size'?"
            ),
        ),
        (
            "input { reshape { dims: 1 } }",
            "input.reshape.dims: unknown field 'dims' in 'reshape'. Known fields are: shape",
        ),
        ("colour: 4", "unknown field 'colour'. Known fields are: name, platform, backend"),
        (
            "input { data_type: INT32 }",
            (
                "config.pbtxt:1:20: input.data_type: 'data_type' has no value INT32. "
                "Did you mean 'TYPE_INT32'?"
            ),
        ),
        ("input { data_type: TYPE_FLOAT32 }", "Did you mean 'TYPE_FP32'?"),
        ("input { data_type: type_fp32 }", "Did you mean 'TYPE_FP32'?"),
        (
            "input { data_type: 'TYPE_FP32' }",
            "input.data_type: found 'TYPE_FP32' in quotes. Write data_type: TYPE_FP32",
        ),
        ("instance_group { kind: GPU }", "'kind' has no value GPU. Did you mean 'KIND_GPU'?"),
        (
            "input { data_type: 99 }",
            "config.pbtxt: input[0].data_type: DataType has no value 99. Write one of TYPE_INVALID",
        ),
        # Values of the wrong kind.
        (
            "name: resnet",
            '1:7: name: expected a string in quotes, found resnet. Write name: "resnet"',
        ),
        (
            "parameters { key: 'a' value: 'b' }",
            (
                "parameters.value: expected a block in braces, found 'b'. "
                "Write value: { string_value: 'b' }"
            ),
        ),
        (
            "parameters { key: 'a' value { string_value: 5 } }",
            (
                "parameters.value.string_value: expected a string in quotes, found 5. "
                'Write string_value: "5"'
            ),
        ),
        (
            "metric_tags { key: 1 value: 'b' }",
            'metric_tags.key: expected a string in quotes, found 1. Write key: "1"',
        ),
        (
            "max_batch_size: '8'",
            "max_batch_size: expected an integer, found '8'. Write max_batch_size: 4",
        ),
        ("max_batch_size: 1.5", "expected an integer, found 1.5"),
        (
            "max_batch_size: 3000000000",
            "3000000000 is out of range. Write -2147483648 to 2147483647",
        ),
        ("input { dims: [ 3, x ] }", "input.dims: expected an integer, found x. Write dims: [ 4 ]"),
        (
            "response_cache { enable: yes }",
            "response_cache.enable: expected true or false, found yes. Write enable: true",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: half } }",
            "expected a number, found half. Write minimum_slot_utilization: 0.5",
        ),
        (
            "dynamic_batching: true",
            "expected a block in braces, found true. Write dynamic_batching: { … }",
        ),
        ("metric_tags: true", 'Write metric_tags: { key: "…" value: … }'),
        # Structure.
        ("name 'm'", "name: a ':' is missing after 'name', found 'm'. Write name: 'm'"),
        ("instance_group { count 2 }", "Write count: 2"),
        ("instance_group [ { kind KIND_CPU } ]", "Write kind: KIND_CPU"),
        ("name = 'm'", "name: a ':' is missing after 'name', found =. Write name: \"text\""),
        ("input [ { name: 'A' }, ]", "input: a comma before ']'. Remove the comma"),
        ("input { dims: [ 1, 2, ] }", "input.dims: a comma before ']'. Remove the comma"),
        ("input { dims: [ 1 2 ] }", "a ',' is missing in the list, found 2. Put a comma before 2"),
        ("x" * 9000 + ": 1", f"{'x' * 200}…: unknown field 'xxx"),
        ("input { dims: [ 1 }", "the list is not closed, found }. Put a ']' before the }"),
        ("input [ { name: 'A' } { name: 'B' } ]", "a ',' is missing in the list, found {"),
        (
            "input {\n name: 'A'\n\n",
            "4:1: input: the block 'input' that opens in line 1 is not closed. Add a '}'",
        ),
        (
            "input <\n reshape {\n shape: 1",
            "input.reshape: the block 'reshape' that opens in line 2 is not closed",
        ),
        (
            "input { name: 'A' }\n}\n",
            "config.pbtxt:2:1: a '}' closes a block that was never opened",
        ),
        ("name:", 'name: the file ends in the middle of a field. Write name: "text"'),
        ("name: 'm", "name: a string does not end in its line. Close it with '"),
        (
            'name: "a\nb"',
            'config.pbtxt:1:7: name: a string does not end in its line. Close it with "',
        ),
        (
            "name: 'm'\n default_model_filename: 'C:\\models'",
            (
                "2:26: default_model_filename: the string has an escape '\\m' that does not "
                "exist. Write \\\\ for a backslash"
            ),
        ),
        (r"name: 'a\\\400'", r"an escape '\400' that does not exist"),
        (r"name: '\xff'", "the string before this position is not UTF-8"),
        ("name: 'a' name: 'b'", "name: 'name' is written twice. Keep one of them"),
        ("optimization {} optimization {}", "'optimization' is written twice"),
        (
            "dynamic_batching {} sequence_batching {}",
            "'sequence_batching' excludes 'dynamic_batching', but both are set. Keep one of them",
        ),
        ('{ "name": "m" }', "Write the fields without braces around them; this file is not JSON"),
        ("5: 'a'", "unknown field '5'"),
        ("[foo.bar]: 3", "Write fields as name: value"),
        ("\x00", r"found '\x00'. Write fields as name: value"),
        ("name: '\ud800'", "Save the file as UTF-8 text"),
        ("name: 'm' extra words here", "unknown field 'extra'"),
        ("model_warmup { inputs { 'a': {} } }", "model_warmup.inputs: Expected identifier"),
    ],
)
def test_what_is_wrong_gets_a_sentence(text, sentence):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("config.pbtxt")


def test_the_error_carries_its_parts():
    with pytest.raises(ConfigError) as caught:
        parse("name: 'm'\ninput { dim: 1 }")
    assert caught.value.file == "config.pbtxt:2:9"
    assert caught.value.field == "input.dim"
    assert caught.value.fix == "Did you mean 'dims'?"


def test_deep_nesting_is_refused_not_fatal():
    with pytest.raises(ConfigError):
        parse("input {" * 100_000)


def test_a_long_token_is_cut_short():
    with pytest.raises(ConfigError) as caught:
        parse("max_batch_size: " + "x" * 10_000)
    assert len(str(caught.value)) < 200

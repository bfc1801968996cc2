"""JSON and protobuf forms of a config."""

from __future__ import annotations

import json
import math

import pytest

from shoal.config import codec
from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelQueuePolicy,
    ModelRateLimiter,
    ModelSequenceBatching,
    ModelTensorReshape,
    ModelVersionPolicy,
    ModelWarmup,
)
from shoal.errors import ConfigError
from shoal.wire.proto import messages


def test_an_empty_config_prints_every_plain_field():
    assert codec.to_dict(ModelConfig()) == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_numbers_stay_numbers_and_unset_members_are_left_out():
    config = ModelConfig(
        name="m",
        version_policy=ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=1)),
        input=(ModelInput(name="a", data_type="TYPE_FP32", dims=(-1, 3)),),
        dynamic_batching=ModelDynamicBatching(
            max_queue_delay_microseconds=100, priority_queue_policy={1: ModelQueuePolicy()}
        ),
        instance_group=(
            ModelInstanceGroup(
                rate_limiter=ModelRateLimiter(
                    resources=(ModelRateLimiter.Resource(name="R", global_=True, count=1),)
                )
            ),
        ),
        model_warmup=(
            ModelWarmup(
                name="w", batch_size=1, inputs={"a": ModelWarmup.Input(dims=(1,), zero_data=True)}
            ),
        ),
    )
    plain = codec.to_dict(config)
    assert plain["version_policy"] == {"latest": {"num_versions": 1}}
    assert plain["input"] == [
        {
            "name": "a",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 3],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert plain["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert plain["dynamic_batching"]["priority_queue_policy"]["1"]["timeout_action"] == "REJECT"
    assert "default_queue_policy" not in plain["dynamic_batching"]
    resources = plain["instance_group"][0]["rate_limiter"]["resources"]
    assert resources == [{"name": "R", "global": True, "count": 1}]
    assert plain["model_warmup"][0]["inputs"]["a"] == {
        "data_type": "TYPE_INVALID",
        "dims": [1],
        "zero_data": True,
    }
    assert codec.parse_json(json.dumps(plain), "here") == config


def test_floats_are_short_and_json_has_words_for_the_rest():
    strategy = ModelSequenceBatching.StrategyDirect(minimum_slot_utilization=0.1)
    config = ModelConfig(sequence_batching=ModelSequenceBatching(direct=strategy))
    assert codec.from_message(codec.to_message(config)) == config
    buckets = (1.0, math.inf)
    control = ModelMetrics.MetricControl(
        histogram_options=ModelMetrics.MetricControl.HistogramOptions(buckets=buckets)
    )
    config = ModelConfig(model_metrics=ModelMetrics(metric_control=(control,)))
    plain = codec.to_dict(config)
    assert plain["model_metrics"]["metric_control"][0]["histogram_options"] == {
        "buckets": [1.0, "Infinity"]
    }
    assert codec.parse_json(json.dumps(plain), "here") == config


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("{}", ModelConfig()),
        ('{"max_batch_size": 8}', ModelConfig(max_batch_size=8)),
        ('{"maxBatchSize": 8}', ModelConfig(max_batch_size=8)),
        ('{"max_batch_size": "8"}', ModelConfig(max_batch_size=8)),
        ('{"max_batch_size": 8.0}', ModelConfig(max_batch_size=8)),
        ('{"max_batch_size": null}', ModelConfig()),
        (
            '{"input": [{"dims": [1, "-1"], "dataType": "type_fp32"}]}',
            ModelConfig(input=(ModelInput(dims=(1, -1), data_type="TYPE_FP32"),)),
        ),
        (
            '{"input": [{"data_type": 11, "reshape": {}}]}',
            ModelConfig(input=(ModelInput(data_type="TYPE_FP32", reshape=ModelTensorReshape()),)),
        ),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"2": {"max_queue_size": 1}}}}',
            ModelConfig(
                dynamic_batching=ModelDynamicBatching(
                    priority_queue_policy={2: ModelQueuePolicy(max_queue_size=1)}
                )
            ),
        ),
        (
            '{"ensemble_scheduling": {"step": [{"model_version": "-1", "input_map": {"a": "b"}}]}}',
            ModelConfig(
                ensemble_scheduling=ModelEnsembling(
                    step=(ModelEnsembling.Step(model_version=-1, input_map={"a": "b"}),)
                )
            ),
        ),
    ],
)
def test_json_is_read(text, config):
    assert codec.parse_json(text, "here") == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "load parameter 'config': not valid JSON: Expecting value"),
        ("{", "not valid JSON"),
        ("name: 'm'", 'Write an object such as {"backend": "onnxruntime"}'),
        ("[]", "load parameter 'config': expected an object, found a list"),
        ("3", "expected an object, found 3. Write an object here"),
        (
            '{"max_batch_sise": 4}',
            (
                "load parameter 'config': max_batch_sise: unknown field 'max_batch_sise' in "
                "ModelConfig. Did you mean 'max_batch_size'?"
            ),
        ),
        (
            '{"input": [{"name": "a"}, {"dim": [1]}]}',
            "input[1].dim: unknown field 'dim' in ModelInput. Did you mean 'dims'?",
        ),
        ('{"input": {"name": "a"}}', "input: expected a list, found an object"),
        ('{"input": ["a"]}', 'input[0]: expected an object, found "a"'),
        ('{"input": [null]}', "input[0]: expected an object, found null"),
        (
            '{"input": [{"data_type": "INT32"}]}',
            "input[0].data_type: DataType has no value \"INT32\". Did you mean 'TYPE_INT32'?",
        ),
        ('{"input": [{"data_type": 77}]}', "DataType has no value 77. Write one of TYPE_INVALID"),
        ('{"input": [{"data_type": true}]}', "expected the name of a value, found true"),
        ('{"max_batch_size": "many"}', 'max_batch_size: expected an integer, found "many"'),
        ('{"max_batch_size": 1.5}', "expected an integer, found 1.5"),
        ('{"max_batch_size": true}', "expected an integer, found true"),
        ('{"max_batch_size": NaN}', "expected an integer, found NaN"),
        ('{"max_batch_size": 3000000000}', "out of range. Write -2147483648 to 2147483647"),
        (
            '{"dynamic_batching": {"priority_levels": -1}}',
            "dynamic_batching.priority_levels: -1 is out of range. Write 0 to 18446744073709551615",
        ),
        (
            '{"dynamic_batching": {"priority_queue_policy": {"one": {}}}}',
            'dynamic_batching.priority_queue_policy[one]: expected an integer, found "one"',
        ),
        (
            '{"dynamic_batching": {"preserve_ordering": "true"}}',
            'expected true or false, found "true"',
        ),
        ('{"name": 5}', "name: expected a string, found 5"),
        ('{"name": "\\ud800"}', 'name: "\\ud800" contains half of a surrogate pair'),
        ('{"\\ud800": 1}', '"\\ud800" contains half of a surrogate pair'),
        ('{"name": "a", "name": "b"}', "name: 'name' is written twice. Keep one of them"),
        ('{"max_batch_size": 1, "maxBatchSize": 2}', "'max_batch_size' is written twice"),
        (
            '{"dynamic_batching": {}, "sequence_batching": {}}',
            "'sequence_batching' excludes 'dynamic_batching', but both are set",
        ),
        (
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": 1e300}}}',
            "1e+300 is out of range. Write a smaller number",
        ),
        (
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": "half"}}}',
            'expected a number, found "half"',
        ),
        ('{"max_batch_size": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": ' + "[" * 50 + "]" * 50 + "}", "name: expected a string, found a list"),
    ],
)
def test_wrong_json_gets_a_sentence(text, sentence):
    with pytest.raises(ConfigError) as caught:
        codec.parse_json(text, "load parameter 'config'")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("load parameter 'config'")


def test_message_fields_keep_their_presence():
    config = ModelConfig(version_policy=ModelVersionPolicy(all=ModelVersionPolicy.All()))
    message = codec.to_message(config)
    assert message.version_policy.WhichOneof("policy_choice") == "all"
    assert codec.from_message(message) == config
    assert messages.ModelConfig.FromString(message.SerializeToString()) == message


def test_two_members_of_a_group_are_a_mistake_of_the_caller():
    config = ModelConfig(
        dynamic_batching=ModelDynamicBatching(), sequence_batching=ModelSequenceBatching()
    )
    with pytest.raises(ValueError, match="exclude each other"):
        codec.to_message(config)


def test_an_unknown_enum_name_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="data_type has no value 'INT32'"):
        codec.to_message(ModelConfig(input=(ModelInput(data_type="INT32"),)))


@pytest.mark.parametrize("value", [0.1, 0.5, 1e-45, 3.4028235e38, 16777216.0, 0.3, -0.0])
def test_shortest_float_is_stable(value):
    short = codec.shortest_float(value)
    assert codec.shortest_float(short) == short
    assert short == pytest.approx(value, rel=1e-6, abs=1e-45)

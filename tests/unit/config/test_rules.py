"""Wrong configs get Triton's sentence and a fix; right ones pass; idle fields are named."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.config import rules
from shoal.config.model import ModelConfig
from shoal.config.normalise import normalise
from shoal.config.pbtxt import parse_pbtxt
from shoal.config.rules.files import escapes
from shoal.config.rules.support import _NOT_ACTED_ON
from shoal.config.rules.tensors import segments
from shoal.errors import ConfigError

INPUT = "input { name: 'A' data_type: TYPE_FP32 dims: [ 2, -1 ] }"
OUTPUT = "output { name: 'Z' data_type: TYPE_FP32 dims: [ 2 ] }"
STEP = "step { model_name: 'one' input_map { key: 'I' value: 'A' } output_map { key: 'O' value: '%s' } }"
ENSEMBLE = "platform: 'ensemble' " + INPUT + OUTPUT


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt("name: 'm' backend: 'python' " + text, "config.pbtxt")


def ensemble_of(text: str) -> ModelConfig:
    return parse_pbtxt("name: 'm' " + text, "config.pbtxt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 8 " + INPUT + OUTPUT,
        "input { name: 'A' data_type: TYPE_STRING dims: 1 } output { name: 'A' data_type: TYPE_BF16 dims: 1 }",
        "max_batch_size: 1 input { name: 'A' data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }",
        "input { name: 'A' data_type: TYPE_FP32 dims: [2,4,-1,6] reshape { shape: [8,-1,1,6] } }",
        "input { name: 'A' data_type: TYPE_FP32 dims: [4] reshape { shape: [1,2,2] } }",
        "input { name: 'A' data_type: TYPE_FP32 dims: [3,-1,-1] format: FORMAT_NCHW }",
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 1, 4 ] }",
        "dynamic_batching {}",
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 2"
            " priority_queue_policy { key: 1 value {} } }"
        ),
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
        "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] } instance_group { passive: true }",
        "version_policy { all {} }",
        "version_policy { specific { versions: [ 3, 1 ] } }",
        "version_policy {}",
        "default_model_filename: '../shared/model.onnx'",
        "output { name: 'Z' data_type: TYPE_FP32 dims: 2 label_filename: 'labels/../a.txt' }",
        INPUT + "model_warmup { name: 'w' batch_size: 2 inputs { key: 'A' value "
        "{ data_type: TYPE_FP32 dims: [ 2, 7 ] random_data: true } } }",
        "model_warmup { name: 'skipped' inputs { key: 'A' value {} } }",
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: 1 optional: true }"
            "model_warmup { batch_size: 1 }"
        ),
        "response_cache { enable: true }",
        (
            "sequence_batching { control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START"
            " int32_false_true: [ 0, 1 ] } } control_input { name: 'C' control "
            "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } }"
        ),
        INPUT + "batch_input { target_name: 'N' data_type: TYPE_INT32 source_input: 'A' }"
        "model_warmup { batch_size: 1 inputs { key: 'N' value { data_type: TYPE_INT32 dims: 1 "
        "zero_data: true } } inputs { key: 'A' value { data_type: TYPE_FP32 dims: [ 2, 1 ] "
        "input_data_file: 'a' } } }",
    ],
)
def test_right(text):
    rules.check(config_of(text), file="config.pbtxt")


def test_a_right_ensemble():
    rules.check(ensemble_of(ENSEMBLE + "ensemble_scheduling { " + STEP % "Z" + " }"), file="f")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "max_batch_size: -1",
            (
                "config.pbtxt: max_batch_size: 'max_batch_size' must be non-negative value for m, "
                "found -1. Write 0"
            ),
        ),
        (
            "version_policy { latest {} }",
            "version_policy.latest.num_versions: version policy 'latest' of m serves no version",
        ),
        ("version_policy { specific {} }", "version policy 'specific' of m lists no versions"),
        ("version_policy { specific { versions: 0 } }", "numbered from 1"),
        # Tensors
        ("input { dims: 1 }", "input[0].name: model input must specify 'name' for m. Write name:"),
        (
            "input { name: 'A' dims: 1 }",
            "input[0].data_type: model input 'A' must specify 'data_type' for m. Write",
        ),
        (
            "max_batch_size: 1 output { name: 'Z' data_type: TYPE_FP32 }",
            (
                "output[0].dims: model output 'Z' must specify 'dims' for m. "
                "Write for example dims: [ 3, 224, 224 ], without the batch dimension"
            ),
        ),
        ("input { name: 'A' data_type: TYPE_FP32 }", "a scalar is dims: [ 1 ]"),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [ 1, 0 ] }",
            (
                "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size "
                "dimension for m, found 0"
            ),
        ),
        ("input { name: 'A' data_type: TYPE_FP32 dims: -2 }", "found -2. Write -1 for any size"),
        (
            INPUT + INPUT,
            "input[1].name: model input 'A' is specified more than once for m. Give",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: 1 reshape {} }",
            (
                "input[0].reshape: model input 'A' cannot have empty reshape for non-batching model as "
                "scalar tensors are not supported for m. Remove the reshape"
            ),
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: 1 reshape { shape: 0 } }",
            "model input 'A' reshape dimensions must be integer >= 1, or -1",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 5 ] } }",
            (
                "model input 'A' has different size for dims and reshape for m, found dims [2, 3] and "
                "reshape [5]. Both need"
            ),
        ),
        (
            (
                "max_batch_size: 1 "
                "output { name: 'Z' data_type: TYPE_FP32 dims: [ 2 ] reshape { shape: [] } }"
            ),
            "model output 'Z' has different size for dims and reshape",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [2,-1] reshape { shape: [2,1] } }",
            "has different size for dims and reshape",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [2,-1,4] reshape { shape: [4,-1,2] } }",
            "has different size for dims and reshape",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [-1,-1] reshape { shape: [-1] } }",
            "has different number of variable-size dimensions for dims and reshape",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: [ 3, 4 ] format: FORMAT_NHWC }",
            "input[0].format: model input NHWC/NCHW require 3 dims for m, found 2 for 'A'",
        ),
        (
            "input { name: 'A' data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }",
            "shape tensors are only supported for TensorRT platform for m. Remove is_shape_tensor",
        ),
        (
            "output { name: 'Z' data_type: TYPE_FP32 dims: 1 is_non_linear_format_io: true }",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
        (
            INPUT + "batch_input { source_input: ['A', 'A'] data_type: TYPE_INT32 }",
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2 for m",
        ),
        (
            INPUT + "batch_input { source_input: 'A' data_type: TYPE_INT64 }",
            (
                "batch_input[0].data_type: batch input data type must be TYPE_INT32 or TYPE_FP32 for m,"
                " found TYPE_INT64"
            ),
        ),
        (
            INPUT + "batch_input { source_input: 'B' data_type: TYPE_INT32 }",
            "unknown source input name 'B' for m. Write one of the inputs: A",
        ),
        (
            INPUT + OUTPUT + "batch_output { source_input: 'A' target_name: 'Y' }",
            "unknown target output name 'Y' for m. Write one of the outputs: Z",
        ),
        (
            INPUT + OUTPUT + "batch_output { source_input: 'A' target_name: ['Z', 'Z'] }",
            "target output name 'Z' can only be specified once for m",
        ),
        # Dynamic batching
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            (
                "dynamic_batching.preferred_batch_size: dynamic batching preferred size must be <= max "
                "batch size for m, found 8 with max_batch_size 4. Raise max_batch_size to 8"
            ),
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m, found 0",
        ),
        (
            "dynamic_batching { priority_levels: 3 }",
            (
                "default priority level must be in range [1, 3] for m, found 0. "
                "Write default_priority_level: 2"
            ),
        ),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
            "default priority level must be in range [1, 3] for m, found 4",
        ),
        (
            (
                "dynamic_batching { priority_levels: 2 default_priority_level: 1"
                " priority_queue_policy { key: 3 value {} } }"
            ),
            (
                "dynamic_batching.priority_queue_policy[3]: priority queue policy must have priority "
                "level in range [1, 2] for m, found 3"
            ),
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true priority_levels: 2 "
                "default_priority_level: 1 }"
            ),
            "Only one priority level is allowed when 'preserve_ordering' is true for m, found 2",
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true default_queue_policy "
                "{ timeout_action: DELAY default_timeout_microseconds: 1 } }"
            ),
            (
                "dynamic_batching.default_queue_policy.timeout_action: Queue policy can not have DELAY "
                "as timeout action when 'preserve_ordering' is true for m. Write timeout_action"
            ),
        ),
        (
            (
                "dynamic_batching { preserve_ordering: true priority_queue_policy { key: 1 value "
                "{ timeout_action: DELAY default_timeout_microseconds: 1 } } }"
            ),
            "dynamic_batching.priority_queue_policy[1].timeout_action: Queue policy can not have",
        ),
        # Sequence batching
        (
            "sequence_batching { control_input {} }",
            "sequence batching control tensor must have a name for m",
        ),
        (
            "sequence_batching { control_input { name: 'S' } control_input { name: 'S' } }",
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            "sequence_batching { control_input { name: 'S' control { } } }",
            (
                "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
                "'bool_false_true' for CONTROL_SEQUENCE_START for m"
            ),
        ),
        (
            (
                "sequence_batching { control_input { name: 'S' control { int32_false_true: [ 0, 1 ] "
                "fp32_false_true: [ 0, 1 ] } } }"
            ),
            (
                "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' "
                "and 'bool_false_true' for CONTROL_SEQUENCE_START for m. Keep one of "
                "int32_false_true, fp32_false_true"
            ),
        ),
        (
            (
                "sequence_batching { control_input { name: 'S' control { kind: CONTROL_SEQUENCE_END "
                "bool_false_true: true } } }"
            ),
            (
                "control[0].bool_false_true: sequence batching control 'bool_false_true' must have "
                "exactly 2 entries for CONTROL_SEQUENCE_END for m, found 1"
            ),
        ),
        (
            (
                "sequence_batching { control_input { name: 'S' control { int32_false_true: [ 0, 1 ] } }"
                "control_input { name: 'T' control { int32_false_true: [ 0, 1 ] } } }"
            ),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            (
                "sequence_batching { control_input { name: 'C' control "
                "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }"
            ),
            (
                "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
                "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
            ),
        ),
        (
            (
                "sequence_batching { control_input { name: 'C' control "
                "{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 int32_false_true: 1 } } }"
            ),
            "sequence batching must not specify either 'int32_false_true'",
        ),
        (
            "max_batch_size: 2 sequence_batching { oldest { preferred_batch_size: 3 } }",
            "sequence batching preferred batch size must be <= max batch size for m, found 3",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m, found 1.5",
        ),
        # Instances
        (
            "instance_group { count: -2 }",
            "instance_group[0].count: instance group m_0 of model m has count -2. Write count: 1",
        ),
        (
            "instance_group { name: 'g' kind: KIND_CPU gpus: 0 }",
            (
                "instance group g of model m has kind KIND_CPU but specifies one or more GPUs, "
                "found gpus [0]. Remove gpus, or write kind: KIND_GPU"
            ),
        ),
        (
            "instance_group {} instance_group { kind: KIND_MODEL gpus: 0 }",
            (
                "instance_group[1].gpus: instance group m_1 of model m has kind KIND_MODEL but "
                "specifies one or more GPUs"
            ),
        ),
        ("instance_group { kind: KIND_GPU gpus: -1 }", "invalid or unsupported gpu id -1"),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 0 ] }", "lists gpu 0 twice. Raise count"),
        ("instance_group { profile: '0' }", "profile field which is only supported for TensorRT"),
        ("instance_group { passive: true }", "every instance group of model m is passive"),
        # Files
        (
            "output { name: 'Z' data_type: TYPE_FP32 dims: 1 label_filename: '../labels.txt' }",
            (
                "output[0].label_filename: label file path '../labels.txt' for output 'Z' in model 'm' "
                "is outside model directory"
            ),
        ),
        (
            "default_model_filename: '../../other/1/model.onnx'",
            (
                "default_model_filename: file '../../other/1/model.onnx' of model 'm' is outside model "
                "directory. Name a file in the model's version folder"
            ),
        ),
        ("default_model_filename: '/etc/passwd'", "outside model directory"),
        (
            "cc_model_filenames { key: '8.0' value: 'C:/model.plan' }",
            "cc_model_filenames[8.0]: file 'C:/model.plan'",
        ),
        (
            "model_warmup { inputs { key: 'A' value { input_data_file: '../../x' } } }",
            "model_warmup[0].inputs[A].input_data_file: file '../../x' of model 'm' is outside",
        ),
        (
            "sequence_batching { state { initial_state { data_file: '../../x' } } }",
            "sequence_batching.state[0].initial_state[0].data_file: file '../../x'",
        ),
        # Warm-up
        (
            "max_batch_size: 2 model_warmup { name: 'w' batch_size: 3 }",
            "warmup setting 'w' of model m has batch size 3, more than max_batch_size 2",
        ),
        (
            (
                "model_warmup { batch_size: 1 inputs { key: 'A' value { data_type: TYPE_FP32 dims: -1 "
                "zero_data: true } } }"
            ),
            (
                "model_warmup[0].inputs[A].dims: warmup setting expects all variable-size dimensions "
                "are specified for input 'A' for m, found [-1]"
            ),
        ),
        (
            "model_warmup { batch_size: 1 inputs { key: 'A' value { data_type: TYPE_FP32 dims: 1 } } }",
            "warmup setting expects input 'A' to have input_data_type set for m. Write zero_data",
        ),
        (
            "model_warmup { batch_size: 1 inputs { key: 'A' value { dims: 1 zero_data: true } } }",
            "warmup setting expects input 'A' to have data_type set for m",
        ),
        (
            INPUT + "model_warmup { batch_size: 1 inputs { key: 'B' value { data_type: TYPE_FP32 "
            "dims: [ 2, 2 ] zero_data: true } } }",
            "warmup setting has unexpected input 'B' for m. Its inputs are: A",
        ),
        (
            INPUT + "model_warmup { batch_size: 1 inputs { key: 'A' value { data_type: TYPE_INT32 "
            "dims: [ 2, 2 ] zero_data: true } } }",
            "warmup setting gives input 'A' data_type TYPE_INT32, but model m expects TYPE_FP32",
        ),
        (
            INPUT + "model_warmup { batch_size: 1 inputs { key: 'A' value { data_type: TYPE_FP32 "
            "dims: [ 3, 2 ] zero_data: true } } }",
            "warmup setting gives input 'A' dims [3, 2], but model m expects [2, -1]",
        ),
        (
            INPUT + "model_warmup { name: 'w' batch_size: 1 }",
            (
                "warmup setting 'w' of model m has no data for input 'A'. Add inputs: "
                '{ key: "A" value: { data_type: TYPE_FP32 dims: [2, -1] zero_data: true } }'
            ),
        ),
        # Rate limiter
        (
            "instance_group { rate_limiter { resources { count: 1 } } }",
            (
                "instance_group[0].rate_limiter.resources[0].name: a resource of instance group "
                "m_0 of model m has no name. Write for example"
            ),
        ),
        (
            "instance_group { rate_limiter { resources [ { name: 'R' }, { name: 'R' } ] } }",
            (
                "instance_group[0].rate_limiter.resources[1].name: instance group m_0 of model m "
                "lists the resource 'R' twice. Keep one of them"
            ),
        ),
        # The rest
        (
            "response_cache { enable: true } sequence_batching {}",
            (
                "Response Cache does not currently support model m with sequence batching scheduler. "
                "Please disable the response cache. Write response_cache"
            ),
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy",
        ),
        (
            "optimization { execution_accelerators { gpu_execution_accelerator {} } }",
            (
                "optimization.execution_accelerators.gpu_execution_accelerator[0].name: an execution "
                "accelerator of m has no name"
            ),
        ),
        (
            "model_metrics { metric_control {} }",
            "metric control must specify 'metric_identifier'",
        ),
        (
            "model_metrics { metric_control { metric_identifier {} } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            "model_metrics { metric_control { metric_identifier { family: 'f' } } }",
            "metric control must specify 'histogram_options'",
        ),
        (
            (
                "model_metrics { metric_control { metric_identifier { family: 'f' } "
                "histogram_options {} } }"
            ),
            "histogram options must specify non-empty 'buckets'",
        ),
        # Ensembles
        (
            "ensemble_scheduling {}",
            (
                "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble. "
                'Write platform: "ensemble"'
            ),
        ),
    ],
)
def test_wrong(text, sentence):
    with pytest.raises(ConfigError) as caught:
        rules.check(config_of(text), file="config.pbtxt")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("config.pbtxt: ")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "platform: 'ensemble'",
            "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        ),
        (
            "platform: 'ensemble' instance_group {} ensemble_scheduling {}",
            "instance group should not be specified for ensemble 'm'",
        ),
        (
            "platform: 'ensemble' optimization {} ensemble_scheduling {}",
            "optimization should not be specified for ensemble 'm'",
        ),
        (
            "platform: 'ensemble' model_warmup {} ensemble_scheduling {}",
            "model_warmup can not be specified for ensemble 'm'",
        ),
        (
            "platform: 'ensemble' ensemble_scheduling {}",
            "ensemble_scheduling.step: must specify 'step' for ensemble 'm'",
        ),
        (
            "platform: 'ensemble' ensemble_scheduling { step {} }",
            (
                "ensemble_scheduling.step[0].model_name: must specify 'model_name' in step 0 of "
                "ensemble 'm'. Write model_name: \"resnet\""
            ),
        ),
        (
            "platform: 'ensemble' ensemble_scheduling { step { model_name: 'a' } }",
            "must specify 'input_map' in step 0 of ensemble 'm'",
        ),
        (
            ENSEMBLE + "ensemble_scheduling { " + STEP % "Z" + STEP % "Z" + " }",
            "ensemble tensor 'Z' can appear in an output map only once for ensemble 'm' step 1",
        ),
        (
            ENSEMBLE + "ensemble_scheduling { " + STEP % "A" + " }",
            "ensemble tensor 'A' is an input of ensemble 'm' and is written by step 0 too",
        ),
        (
            ENSEMBLE + "input { name: 'B' data_type: TYPE_FP32 dims: 1 }"
            "ensemble_scheduling { " + STEP % "Z" + " }",
            "input[1].name: ensemble input 'B' for ensemble 'm' is not used",
        ),
        (
            ENSEMBLE + "ensemble_scheduling { " + STEP % "Y" + " }",
            "output[0].name: ensemble output 'Z' for ensemble 'm' is not used",
        ),
        (
            "platform: 'ensemble' " + OUTPUT + "ensemble_scheduling { " + STEP % "Z" + " }",
            (
                "output 'Z' for ensemble 'm' is not written: at least one of its depending tensors, "
                "'A', is not connected. Let a step write 'A'"
            ),
        ),
        (
            ENSEMBLE + "ensemble_scheduling { " + STEP % "Z" + STEP % "Y" + " }",
            "ensemble tensor 'Y' is unused in ensemble 'm'",
        ),
        (
            ENSEMBLE + "ensemble_scheduling { " + STEP % "S" + "step { model_name: 'loop' "
            "input_map { key: 'a' value: 'Z' } input_map { key: 'b' value: 'S' } "
            "output_map { key: 'c' value: 'Z' } } }",
            "output 'Z' for ensemble 'm' is not written",
        ),
    ],
)
def test_wrong_ensembles(text, sentence):
    with pytest.raises(ConfigError) as caught:
        rules.check(ensemble_of(text), file="config.pbtxt")
    assert sentence in str(caught.value)
    assert caught.value.fix


def test_a_config_needs_a_name():
    with pytest.raises(ConfigError, match="model configuration must specify 'name'"):
        rules.check(ModelConfig(), file="config.pbtxt")


def test_every_fault_can_be_listed():
    config = config_of("max_batch_size: -1 instance_group { count: -1 }" + INPUT + INPUT)
    fields = [fault.field for fault in rules.faults(config)]
    assert fields == ["max_batch_size", "input[1].name", "instance_group[0].count"]


@pytest.mark.parametrize(
    ("folder", "filename", "outside"),
    [
        ("", "labels.txt", False),
        ("", "a/b/../../labels.txt", False),
        ("", "..labels", False),
        ("", "..", True),
        ("", "a/../../labels.txt", True),
        ("", "/etc/passwd", True),
        ("", r"..\labels.txt", True),
        ("", r"c:\labels.txt", True),
        ("", "a\0b", True),
        ("version", "../model.onnx", False),
        ("version", "../../model.onnx", True),
        ("version", "..", False),
    ],
)
def test_escapes(folder, filename, outside):
    assert escapes(folder, filename) is outside


@pytest.mark.parametrize(
    ("dims", "counts"),
    [([], [1]), ([2, 4, -1, 6], [8, 6]), ([-1], [1, 1]), ([-1, -1, 5], [1, 1, 5])],
)
def test_segments(dims, counts):
    assert segments(dims) == counts


NOT_ACTED_ON = {
    "runtime": "runtime: 'model.py'",
    "optimization.priority": "optimization { priority: PRIORITY_MAX }",
    "optimization.cuda": "optimization { cuda { graphs: true } }",
    "optimization.input_pinned_memory.enable": "optimization { input_pinned_memory {} }",
    "optimization.output_pinned_memory.enable": (
        "optimization { output_pinned_memory { enable: false } }"
    ),
    "optimization.gather_kernel_buffer_threshold": (
        "optimization { gather_kernel_buffer_threshold: 1 }"
    ),
    "optimization.eager_batching": "optimization { eager_batching: true }",
    "sequence_batching": "sequence_batching {}",
    "ensemble_scheduling": "ensemble_scheduling {}",
    "instance_group.secondary_devices": "instance_group { secondary_devices {} }",
    "instance_group.profile": "instance_group { profile: '0' }",
    "instance_group.host_policy": "instance_group { host_policy: 'a' }",
    "cc_model_filenames": "cc_model_filenames { key: '8.0' value: 'a' }",
    "metric_tags": "metric_tags { key: 'a' value: 'b' }",
    "model_repository_agents": "model_repository_agents {}",
    "model_metrics": "model_metrics {}",
}


@pytest.mark.parametrize("name", _NOT_ACTED_ON)
def test_a_field_without_effect_is_named(name):
    assert rules.not_acted_on(config_of(NOT_ACTED_ON[name])) == [name]


def test_what_is_acted_on_is_not_named():
    text = """
        version_policy { all {} } max_batch_size: 4 default_model_filename: 'a.onnx'
        dynamic_batching { preferred_batch_size: 4 }
        input { name: 'A' optional: true format: FORMAT_NCHW reshape { shape: 1 } }
        output { name: 'Z' label_filename: 'labels.txt' }
        instance_group { kind: KIND_CPU count: 2 gpus: 0 name: 'g' passive: true
                         rate_limiter { priority: 2 } }
        optimization { graph { level: 1 } input_pinned_memory { enable: true }
                       execution_accelerators { cpu_execution_accelerator { name: 'openvino' } } }
        parameters { key: 'a' value { string_value: 'b' } }
        model_warmup { name: 'w' } model_operations { op_library_filename: 'a.so' }
        model_transaction_policy { decoupled: true } response_cache { enable: true }
    """
    config = config_of(text)
    assert rules.not_acted_on(config) == []
    named = dataclasses.replace(config, name="m")
    assert rules.not_acted_on(normalise(named, directory_name="m", file="f")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ("response_cache {} instance_group {}", []),
        ("response_cache { enable: true }", ["--cache-config"]),
        ("instance_group {} instance_group { rate_limiter {} }", ["--rate-limit=execution_count"]),
    ],
)
def test_a_field_that_needs_a_flag_is_named(text, said):
    sentences = rules.without_use(config_of(text), cache=False, limiter=False)
    assert [flag in sentence for flag, sentence in zip(said, sentences, strict=True)] == [
        True for _ in said
    ]
    assert rules.without_use(config_of(text), cache=True, limiter=True) == []


@pytest.mark.parametrize(
    ("kinds", "is_named"),
    [(["KIND_CPU"], True), (["KIND_CPU", "KIND_GPU"], False), (["KIND_GPU"], False)],
)
def test_an_accelerator_for_a_gpu_is_named_where_every_instance_is_on_the_cpu(kinds, is_named):
    text = "".join(f"instance_group {{ kind: {kind} }} " for kind in kinds)
    text += "optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda' }"
    text += " gpu_execution_accelerator { name: 'tensorrt' } } }"
    sentences = rules.without_use(config_of(text), cache=True, limiter=True)
    assert ["gpu_execution_accelerator (cuda, tensorrt)" in each for each in sentences] == (
        [True] if is_named else []
    )


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("instance_group { count: 2147483647 }", "instance_group[0].count", "at most 4096"),
        (
            "sequence_batching { oldest { max_candidate_sequences: 2147483647 } }",
            "sequence_batching.oldest.max_candidate_sequences",
            "at most 1048576",
        ),
        (
            "max_batch_size: 2147483647 sequence_batching { direct {} }",
            "max_batch_size",
            "at most 1048576",
        ),
        (
            (
                "sequence_batching { state { input_name: 'A' output_name: 'B' data_type: TYPE_FP32 "
                "dims: [ 4294967296 ] } }"
            ),
            "sequence_batching.state[0].dims",
            "at most 1073741824 elements",
        ),
        (
            "max_batch_size: 2147483647 model_warmup { name: 'w' batch_size: 4294967295 count: 1 }",
            "model_warmup[0].batch_size",
            "at most 65536",
        ),
        (
            "model_warmup { name: 'w' batch_size: 1 count: 4294967295 }",
            "model_warmup[0].count",
            "at most 1000000",
        ),
        (
            (
                "model_warmup { name: 'w' batch_size: 1 inputs { key: 'A' value { data_type: TYPE_FP32 "
                "dims: [ 1099511627776 ] zero_data: true } } }"
            ),
            "model_warmup[0].inputs",
            "found 1099511627776",
        ),
    ],
)
def test_numbers_that_take_memory_have_limits(text, field, message):
    found = [fault for fault in rules.faults(config_of(text)) if fault.field == field]
    assert any(message in fault.message for fault in found), found

"""Execution providers from placement and accelerators."""

from __future__ import annotations

import pytest

from shoal.backends.base import Placement
from shoal.backends.onnx_providers import missing_after_start, providers
from shoal.config.model import ModelConfig, ModelOptimizationPolicy, ModelParameter
from shoal.errors import ConfigError

Accelerators = ModelOptimizationPolicy.ExecutionAccelerators
Accelerator = Accelerators.Accelerator

FILE = "m/config.pbtxt"
CPU, CUDA, TRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
OPENVINO, COREML = "OpenVINOExecutionProvider", "CoreMLExecutionProvider"
EVERYTHING = [TRT, CUDA, OPENVINO, COREML, "AzureExecutionProvider", CPU]
ON_CPU = Placement("KIND_CPU")
ON_GPU = Placement("KIND_GPU", 1)


def choose(place, available=EVERYTHING, gpu=(), cpu=(), parameters=None):
    accelerators = Accelerators(
        gpu_execution_accelerator=tuple(Accelerator(*item) for item in gpu),
        cpu_execution_accelerator=tuple(Accelerator(*item) for item in cpu),
    )
    config = ModelConfig(
        optimization=ModelOptimizationPolicy(execution_accelerators=accelerators),
        parameters={key: ModelParameter(text) for key, text in (parameters or {}).items()},
    )
    return providers(config, place, available, FILE)


@pytest.mark.parametrize(
    ("place", "gpu", "cpu", "expected"),
    [
        (ON_CPU, [], [], [(CPU, {})]),
        (Placement("KIND_MODEL"), [], [], [(CPU, {})]),
        (ON_GPU, [], [], [(CUDA, {"device_id": "1"}), (CPU, {})]),
        (
            ON_GPU,
            [("tensorrt",)],
            [],
            [(TRT, {"device_id": "1"}), (CUDA, {"device_id": "1"}), (CPU, {})],
        ),
        (ON_CPU, [("tensorrt",)], [], [(CPU, {})]),  # of no concern to a CPU
        (
            ON_GPU,
            [("cuda", {"cudnn_conv_use_max_workspace": "0", "device_id": "7"})],
            [],
            [(CUDA, {"cudnn_conv_use_max_workspace": "0", "device_id": "1"}), (CPU, {})],
        ),
        (
            ON_GPU,
            [("cuda", {"gpu_mem_limit": "9"}), ("tensorrt", {"precision_mode": "FP16"})],
            [],
            [
                (TRT, {"trt_fp16_enable": "1", "device_id": "1"}),
                (CUDA, {"gpu_mem_limit": "9", "device_id": "1"}),  # what TensorRT leaves over
                (CPU, {}),
            ],
        ),
        (ON_CPU, [], [("openvino",)], [(OPENVINO, {"device_type": "CPU"}), (CPU, {})]),
        (
            ON_CPU,
            [],
            [("openvino", {"device_type": "GPU"})],
            [(OPENVINO, {"device_type": "GPU"}), (CPU, {})],
        ),
        (ON_CPU, [], [(COREML, {"k": "v"})], [(COREML, {"k": "v"}), (CPU, {})]),  # its own name
        (ON_CPU, [], [("CoreML",)], [(COREML, {}), (CPU, {})]),
        (
            ON_CPU,
            [],
            [("openvino",), ("coreml",)],
            [(OPENVINO, {"device_type": "CPU"}), (COREML, {}), (CPU, {})],
        ),
        (
            ON_GPU,
            [],
            [("openvino",)],
            [(CUDA, {"device_id": "1"}), (OPENVINO, {"device_type": "CPU"}), (CPU, {})],
        ),
    ],
)
def test_choice(place, gpu, cpu, expected):
    assert choose(place, gpu=gpu, cpu=cpu) == expected


def test_no_optimization_block():
    assert providers(ModelConfig(), ON_CPU, [CPU], FILE) == [(CPU, {})]


@pytest.mark.parametrize(
    ("key", "text", "option"),
    [
        ("precision_mode", "FP32", {}),
        ("precision_mode", "FP16", {"trt_fp16_enable": "1"}),
        ("precision_mode", "BF16", {"trt_bf16_enable": "1"}),
        ("precision_mode", "INT8", {"trt_int8_enable": "1"}),
        ("max_workspace_size_bytes", "1", {"trt_max_workspace_size": "1"}),
        ("int8_calibration_table_name", "t", {"trt_int8_calibration_table_name": "t"}),
        ("int8_use_native_calibration_table", "1", {"trt_int8_use_native_calibration_table": "1"}),
        ("trt_engine_cache_enable", "true", {"trt_engine_cache_enable": "true"}),
        ("trt_profile_min_shapes", "a:1x3", {"trt_profile_min_shapes": "a:1x3"}),
    ],
)
def test_tensorrt_parameters(key, text, option):
    chosen = dict(choose(ON_GPU, gpu=[("tensorrt", {key: text})]))
    assert chosen[TRT] == {**option, "device_id": "1"}


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"cudnn_conv_algo_search": "0"}, {"cudnn_conv_algo_search": "EXHAUSTIVE"}),
        ({"cudnn_conv_algo_search": "2"}, {"cudnn_conv_algo_search": "DEFAULT"}),
        ({"arena_extend_strategy": "1"}, {"arena_extend_strategy": "kSameAsRequested"}),
        ({"gpu_mem_limit": "4294967200"}, {"gpu_mem_limit": "4294967200"}),
        ({"do_copy_in_default_stream": "1"}, {"do_copy_in_default_stream": "1"}),
        ({"other": "1"}, {}),
    ],
)
def test_cuda_options_in_parameters(parameters, options):
    assert dict(choose(ON_GPU, parameters=parameters))[CUDA] == {**options, "device_id": "1"}


def test_an_accelerators_option_wins_over_parameters():
    gpu = [("cuda", {"gpu_mem_limit": "1"})]
    assert dict(choose(ON_GPU, gpu=gpu, parameters={"gpu_mem_limit": "2"}))[CUDA] == {
        "gpu_mem_limit": "1",
        "device_id": "1",
    }


@pytest.mark.parametrize(
    ("place", "more", "field", "text"),
    [
        (ON_CPU, {"cpu": [("warp",)]}, "cpu_execution_accelerator[0].name", "'warp' is requested"),
        (ON_GPU, {"gpu": [("warp",)]}, "gpu_execution_accelerator[0].name", "Write one of cuda"),
        (
            ON_GPU,
            {"gpu": [("tensorrt", {"precision_mode": "FP8"})]},
            "'precision_mode'",
            "unsupported precision mode 'FP8'",
        ),
        (
            ON_GPU,
            {"gpu": [("tensorrt", {"speed": "max"})]},
            "gpu_execution_accelerator[0].parameters",
            "unknown parameter 'speed' is provided for TensorRT Execution Accelerator",
        ),
        (
            ON_GPU,
            {"parameters": {"cudnn_conv_algo_search": "9"}},
            "'cudnn_conv_algo_search'",
            "unsupported cudnn_conv_algo_search value '9'",
        ),
    ],
)
def test_wrong_requests(place, more, field, text):
    with pytest.raises(ConfigError) as raised:
        choose(place, **more)
    assert field in raised.value.field
    assert text in raised.value.message


@pytest.mark.parametrize(
    ("place", "more", "name", "advice"),
    [
        (ON_GPU, {}, CUDA, "pip install onnxruntime-gpu"),
        (ON_GPU, {}, CUDA, "kind: KIND_CPU"),
        (ON_GPU, {"gpu": [("tensorrt",)]}, TRT, "pip install onnxruntime-gpu"),
        (ON_CPU, {"cpu": [("openvino",)]}, OPENVINO, "pip install onnxruntime-openvino"),
        (ON_CPU, {"cpu": [("FooExecutionProvider",)]}, "FooExecutionProvider", "Install a build"),
    ],
)
def test_a_provider_the_build_lacks(place, more, name, advice):
    with pytest.raises(ConfigError) as raised:
        choose(place, available=[CPU], **more)
    assert f"the installed ONNX Runtime has no {name} (it has {CPU})" in raised.value.message
    assert advice in raised.value.message


def test_providers_that_did_not_start():
    wanted = [(CUDA, {}), (CPU, {})]
    assert missing_after_start(wanted, [CPU]) == [CUDA]
    assert missing_after_start(wanted, [CUDA, CPU]) == []

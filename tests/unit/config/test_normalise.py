"""Defaults, names, backends and instance groups."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.config.model import ModelConfig, ModelInstanceGroup
from shoal.config.normalise import infer_backend, normalise, resolve_instance_groups
from shoal.config.pbtxt import parse_pbtxt
from shoal.errors import ConfigError


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt(text, "config.pbtxt")


def normalised(text: str) -> ModelConfig:
    return normalise(config_of(text), directory_name="m", file="config.pbtxt")


def test_an_empty_config_gets_every_default():
    assert normalised("") == config_of(
        """
        name: "m"
        version_policy { latest { num_versions: 1 } }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        """
    )


def test_what_the_user_wrote_is_kept():
    text = """
        name: "m" max_batch_size: 8
        version_policy { specific { versions: [ 2 ] } }
        dynamic_batching { preferred_batch_size: [ 2 ] }
        optimization { graph { level: 1 } input_pinned_memory { enable: false }
                       output_pinned_memory { enable: true } }
    """
    assert normalised(text) == config_of(text)


def test_the_name_must_be_the_directory():
    with pytest.raises(ConfigError) as caught:
        normalised("name: 'other'")
    assert str(caught.value) == (
        "config.pbtxt: name: unexpected directory name 'm' for model 'other', directory name must "
        'equal model name. Write name: "m", leave it out, or rename the directory'
    )


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("max_batch_size: 8 dynamic_batching {}", (8,)),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }", (4,)),
        ("dynamic_batching {}", ()),
    ],
)
def test_preferred_size_is_the_whole_batch(text, preferred):
    batching = normalised(text).dynamic_batching
    assert batching is not None
    assert batching.preferred_batch_size == preferred


def test_the_batch_size_a_backend_finds_is_taken_up():
    config = dataclasses.replace(normalised("dynamic_batching {}"), max_batch_size=4)
    again = normalise(config, directory_name="m", file="config.pbtxt").dynamic_batching
    assert again is not None
    assert again.preferred_batch_size == (4,)


def test_sequences_have_defaults():
    sequence = normalised("max_batch_size: 2 sequence_batching { oldest {} }").sequence_batching
    assert sequence is not None
    assert sequence.max_sequence_idle_microseconds == 1_000_000
    assert sequence.oldest is not None
    assert sequence.oldest.preferred_batch_size == (2,)
    kept = normalised("sequence_batching { max_sequence_idle_microseconds: 5 }").sequence_batching
    assert kept is not None
    assert kept.max_sequence_idle_microseconds == 5


def test_an_ensemble_has_no_optimization():
    assert normalised("platform: 'ensemble' ensemble_scheduling {}").optimization is None


# ---- backends


@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.plan", "model.onnx"], ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", ["model.xml", "model.bin"], ("openvino", "", "model.xml")),
        ("", ["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ("", ["model.pt", "model.pt2"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.pt", "model.py"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.py", "weights.bin"], ("python", "", "model.py")),
        ("", ["model.savedmodel"], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("backend: 'onnxruntime'", [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("backend: 'python'", ["model.onnx"], ("python", "", "model.py")),
        ("backend: 'pytorch'", ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ("platform: 'onnxruntime_onnx'", [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("platform: 'onnxruntime'", [], ("onnxruntime", "onnxruntime", "model.onnx")),
        ("platform: 'libtorch'", [], ("pytorch", "libtorch", "model.pt")),
        ("platform: 'torch_aoti'", ["model.pt"], ("pytorch", "torch_aoti", "model.pt2")),
        (
            "platform: 'pytorch_libtorch' backend: 'pytorch'",
            [],
            ("pytorch", "pytorch_libtorch", "model.pt"),
        ),
        (
            "default_model_filename: 'model.onnx'",
            [],
            ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
        ),
        (
            "default_model_filename: 'resnet.onnx'",
            ["model.py", "resnet.onnx"],
            ("onnxruntime", "onnxruntime_onnx", "resnet.onnx"),
        ),
        (
            "backend: 'pytorch' default_model_filename: 'net.pt2'",
            [],
            ("pytorch", "torch_aoti", "net.pt2"),
        ),
        ("backend: 'identity'", ["model.onnx"], ("identity", "", "")),
        ("backend: 'identity' platform: 'mine'", [], ("identity", "mine", "")),
        ("platform: 'ensemble'", ["model.onnx"], ("", "ensemble", "")),
    ],
)
def test_the_backend_is_found(text, files, found):
    config = infer_backend(normalised(text), files, "config.pbtxt")
    assert (config.backend, config.platform, config.default_model_filename) == found
    assert infer_backend(config, files, "config.pbtxt") == config


def test_the_model_name_may_name_the_backend():
    config = infer_backend(ModelConfig(name="echo.identity"), [], "config.pbtxt")
    assert config.backend == "identity"
    assert config.default_model_filename == "model.identity"


@pytest.mark.parametrize(
    ("text", "files", "sentence"),
    [
        (
            "",
            ["weights.bin"],
            (
                "config.pbtxt: backend: Invalid model name: Could not determine backend for model 'm' "
                "with no backend in model configuration. Expected model name of the form "
                "'model.<backend_name>'. Write backend: \"onnxruntime\""
            ),
        ),
        ("", ["weights.bin"], "which holds weights.bin"),
        ("", [], "which holds nothing"),
        ("default_model_filename: 'weights.bin'", ["model.onnx"], "Could not determine backend"),
        ("ensemble_scheduling {}", [], 'Write platform: "ensemble"'),
        (
            "platform: 'onnxruntime_onx'",
            [],
            (
                "config.pbtxt: platform: unexpected platform type 'onnxruntime_onx' for m. "
                'Did you mean platform: "onnxruntime_onnx"?'
            ),
        ),
        ("platform: 'caffe'", [], "Known platforms are: tensorflow_savedmodel"),
        (
            "platform: 'tensorrt_plan' backend: 'onnxruntime'",
            [],
            (
                "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime. "
                'Write platform: "onnxruntime_onnx", or leave platform out'
            ),
        ),
        (
            "platform: 'onnxruntim' default_model_filename: 'model.onnx'",
            [],
            "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime",
        ),
        (
            "platform: 'ensemble' backend: 'python'",
            [],
            (
                "Ensemble model 'm' must have platform type 'ensemble' and empty backend type. "
                'Remove backend: "python"'
            ),
        ),
    ],
)
def test_a_backend_that_cannot_be_told(text, files, sentence):
    with pytest.raises(ConfigError) as caught:
        infer_backend(normalised(text), files, "config.pbtxt")
    assert sentence in str(caught.value)


# ---- instance groups


def groups_of(text: str, gpus=(), *, fallback=False) -> tuple[ModelInstanceGroup, ...]:
    return resolve_instance_groups(
        config_of("name: 'm' " + text),
        default_cpu_count=2,
        gpus=gpus,
        gpu_fallback_cpu=fallback,
        file="config.pbtxt",
    ).instance_group


def group(name: str, kind: str, count: int, *gpus: int) -> ModelInstanceGroup:
    return ModelInstanceGroup(name=name, kind=kind, count=count, gpus=gpus)


@pytest.mark.parametrize(
    ("text", "gpus", "groups"),
    [
        ("", [], [group("m", "KIND_CPU", 2)]),
        ("", [0, 1], [group("m", "KIND_GPU", 1, 0, 1)]),
        ("instance_group {}", [], [group("m_0", "KIND_CPU", 2)]),
        ("instance_group { count: 3 }", [], [group("m_0", "KIND_CPU", 3)]),
        ("instance_group { count: 3 }", [0], [group("m_0", "KIND_GPU", 3, 0)]),
        ("instance_group { gpus: 1 }", [0, 1], [group("m_0", "KIND_GPU", 1, 1)]),
        ("instance_group { gpus: [ 0, 7 ] }", [0, 1], [group("m_0", "KIND_CPU", 2)]),
        ("instance_group { gpus: 0 }", [], [group("m_0", "KIND_CPU", 2)]),
        ("instance_group { kind: KIND_CPU }", [0], [group("m_0", "KIND_CPU", 2)]),
        ("instance_group { kind: KIND_MODEL }", [0], [group("m_0", "KIND_MODEL", 1)]),
        ("instance_group { kind: KIND_GPU }", [0, 2], [group("m_0", "KIND_GPU", 1, 0, 2)]),
        (
            "instance_group { kind: KIND_GPU gpus: [ 2 ] count: 4 }",
            [0, 2],
            [group("m_0", "KIND_GPU", 4, 2)],
        ),
        (
            "instance_group { name: 'a' kind: KIND_CPU } instance_group { kind: KIND_CPU count: 1 }",
            [],
            [group("a", "KIND_CPU", 2), group("m_1", "KIND_CPU", 1)],
        ),
    ],
)
def test_groups_are_settled(text, gpus, groups):
    assert groups_of(text, gpus) == tuple(groups)


def test_other_fields_of_a_group_are_kept():
    (kept,) = groups_of("instance_group { passive: true host_policy: 'p' }")
    assert kept.passive
    assert kept.host_policy == "p"


def test_a_gpu_group_needs_a_gpu():
    with pytest.raises(ConfigError) as caught:
        groups_of("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }")
    assert str(caught.value) == (
        "config.pbtxt: instance_group[1]: instance group m_1 of model m has kind KIND_GPU but no "
        "GPUs are available. Write kind: KIND_CPU, or start the server with --gpu-fallback=cpu"
    )


def test_a_listed_gpu_must_exist():
    with pytest.raises(ConfigError, match=r"invalid or unsupported gpu id 3.* are: 0, 1\. Write"):
        groups_of("instance_group { kind: KIND_GPU gpus: [ 0, 3 ] }", [0, 1])


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("instance_group { kind: KIND_GPU }", [], group("m_0", "KIND_CPU", 2)),
        ("instance_group { kind: KIND_GPU gpus: 0 count: 4 }", [], group("m_0", "KIND_CPU", 4)),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 3 ] }", [0], group("m_0", "KIND_GPU", 1, 0)),
        ("instance_group { kind: KIND_GPU gpus: [ 3 ] }", [0], group("m_0", "KIND_CPU", 2)),
        ("instance_group { kind: KIND_GPU }", [0], group("m_0", "KIND_GPU", 1, 0)),
    ],
)
def test_fallback_makes_do_with_what_there_is(text, gpus, expected):
    assert groups_of(text, gpus, fallback=True) == (expected,)


def test_an_ensemble_has_no_instances():
    assert groups_of("platform: 'ensemble' ensemble_scheduling {}") == ()

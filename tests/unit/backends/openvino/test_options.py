"""Parameters to the runtime's properties, with no runtime involved."""

from __future__ import annotations

import pytest

from shoal.backends.openvino.options import compile_options
from shoal.config.model import ModelConfig, ModelParameter
from shoal.config.parameters import Parameters
from shoal.errors import ConfigError


def options(instances=1, cores=8, **values):
    config = ModelConfig(parameters={key: ModelParameter(text) for key, text in values.items()})
    return compile_options(Parameters("openvino", config, {}, "c"), instances, cores)


@pytest.mark.parametrize(
    ("instances", "cores", "streams", "threads"),
    [(1, 8, 1, 8), (4, 8, 4, 8), (16, 8, 8, 8), (0, 2, 1, 2)],
)
def test_instances_share_the_cores(instances, cores, streams, threads):
    properties = options(instances, cores).properties
    assert properties["NUM_STREAMS"] == streams
    assert properties["INFERENCE_NUM_THREADS"] == threads  # of all streams together
    assert properties["ENABLE_CPU_PINNING"] is False


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"CPU_THREADS_NUM": "3"}, {"INFERENCE_NUM_THREADS": 3}),
        ({"INFERENCE_NUM_THREADS": "3"}, {"INFERENCE_NUM_THREADS": 3}),
        ({"CPU_THROUGHPUT_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"CPU_THROUGHPUT_STREAMS": "CPU_THROUGHPUT_AUTO"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "5"}, {"NUM_STREAMS": 5}),
        ({"PERFORMANCE_HINT": "throughput"}, {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ({"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_PRECISION_HINT": "f32"}),
        ({"CPU_BIND_THREAD": "YES"}, {"ENABLE_CPU_PINNING": True}),
        ({"COMPILATION_NUM_THREADS": "2"}, {"COMPILATION_NUM_THREADS": 2}),
    ],
)
def test_properties(values, expected):
    assert expected.items() <= options(**values).properties.items()


def test_a_hint_chooses_the_streams():
    assert "NUM_STREAMS" not in options(PERFORMANCE_HINT="THROUGHPUT").properties


def test_other_devices_have_no_threads_to_share():
    chosen = options(TARGET_DEVICE="gpu")
    assert chosen.device == "GPU"
    assert not {"INFERENCE_NUM_THREADS", "NUM_STREAMS"} & chosen.properties.keys()


def test_batches():
    assert not options().fixed_batch
    assert options(SKIP_DYNAMIC_BATCHSIZE="YES").fixed_batch
    assert options(SKIP_OV_DYNAMIC_BATCHSIZE="YES").fixed_batch
    padded = options(ENABLE_BATCH_PADDING="YES")
    assert padded.fixed_batch
    assert padded.pad_batch
    assert options(RESHAPE_IO_LAYOUTS="YES").reshape


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"PERFORMANCE_HINT": "SPEED"}, "Write LATENCY, THROUGHPUT or"),
        (
            {"CPU_THREADS_NUM": "all"},
            r"parameters\['CPU_THREADS_NUM'\]: found 'all'. Write a whole number",
        ),
        ({"NUM_STREAMS": "some"}, r"parameters\['NUM_STREAMS'\]"),
        ({"ENABLE_BATCH_PADDING": "perhaps"}, "true or false"),
        ({"CPU_BIND_THREAD": "MAYBE"}, "Write YES, NO or NUMA"),
    ],
)
def test_wrong_values(values, text):
    with pytest.raises(ConfigError, match=text):
        options(**values)

"""Session settings from parameters, --backend-config and the thread budget."""

from __future__ import annotations

import pytest

from shoal.backends.onnx_options import global_threads, session_settings, waiting_entries
from shoal.config.model import ModelConfig, ModelOptimizationPolicy, ModelParameter
from shoal.errors import ConfigError

FILE = "m/config.pbtxt"


def settings(parameters=None, backend=None, instances=1, cores=8, level=None):
    optimization = None
    if level is not None:
        graph = ModelOptimizationPolicy.Graph(level=level)
        optimization = ModelOptimizationPolicy(graph=graph)
    config = ModelConfig(
        parameters={key: ModelParameter(text) for key, text in (parameters or {}).items()},
        optimization=optimization,
    )
    return session_settings(config, backend or {}, instances, cores, FILE)


@pytest.mark.parametrize(
    ("cores", "instances", "threads"),
    [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 8, 1), (8, 20, 1), (1, 1, 1), (2, 2, 1), (4, 0, 4)],
)
def test_thread_budget(cores, instances, threads):
    result = settings(cores=cores, instances=instances)
    assert (result.intra_op_threads, result.inter_op_threads) == (threads, 1)


@pytest.mark.parametrize(
    ("parameters", "backend", "cores", "threads"),
    [
        ({}, {}, 8, 8),
        ({}, {}, 1, 0),
        ({"intra_op_thread_count": "8"}, {}, 8, 0),
        ({}, {"intra_op_thread_count": "8"}, 8, 0),
        ({"share_session": "false"}, {}, 8, 0),
        ({}, {"enable-global-threadpool": "1"}, 8, 0),
    ],
)
def test_threads_of_an_execution_that_runs_alone(parameters, backend, cores, threads):
    """Who sets up threads or sessions gets those only."""
    assert settings(parameters, backend, cores=cores).lone_threads == threads


def test_how_threads_wait():
    assert waiting_entries(spins=False) == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
    }
    assert waiting_entries(spins=True) == {
        "session.intra_op.allow_spinning": "1",
        "session.inter_op.allow_spinning": "0",
        "session.intra_op.spin_duration_us": "250",
    }
    assert waiting_entries(spins=True, timed=False) == {
        "session.intra_op.allow_spinning": "1",
        "session.inter_op.allow_spinning": "0",
        "session.force_spinning_stop": "1",
    }


@pytest.mark.parametrize(
    ("parameters", "backend", "intra", "inter"),
    [
        ({"intra_op_thread_count": "3"}, {}, 3, 1),
        ({"inter_op_thread_count": "2"}, {}, 8, 2),
        ({}, {"intra_op_thread_count": "5", "inter_op_thread_count": "6"}, 5, 6),
        ({"intra_op_thread_count": "3"}, {"intra_op_thread_count": "5"}, 3, 1),
        ({"intra_op_thread_count": "0"}, {"intra_op_thread_count": "5"}, 5, 1),
        ({"intra_op_thread_count": "0"}, {}, 8, 1),  # 0 asks for the default
    ],
)
def test_thread_counts(parameters, backend, intra, inter):
    result = settings(parameters, backend)
    assert (result.intra_op_threads, result.inter_op_threads) == (intra, inter)


def test_what_an_empty_config_means():
    result = settings()
    assert result.shared
    assert not result.parallel
    assert not result.global_threads
    assert result.memory_arena is result.memory_pattern is None
    assert result.graph_level == "ORT_ENABLE_ALL"
    assert result.entries == {}
    assert result.run_entries == {}


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (0, "ORT_ENABLE_ALL"),
        (-1, "ORT_ENABLE_BASIC"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (7, "ORT_ENABLE_ALL"),
    ],
)
def test_graph_level(level, name):
    assert settings(level=level).graph_level == name


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("1", True), ("true", True), ("FALSE", False)]
)
def test_flags(text, value):
    keys = ("share_session", "enable_mem_arena", "enable_mem_pattern", "execution_mode")
    result = settings(dict.fromkeys(keys, text), {"enable-global-threadpool": text})
    assert result.shared is value
    assert result.memory_arena is value
    assert result.memory_pattern is value
    assert result.parallel is value
    assert result.global_threads is value


def test_entries_for_the_runtime():
    result = settings(
        {
            "session.use_device_allocator_for_initializers": "1",
            "session.intra_op.allow_spinning": "1",
            "optimization.enable_gelu_approximation": "1",
            "memory.enable_memory_arena_shrinkage": "cpu:0",
            "somebody_elses": "x",
        }
    )
    assert result.entries == {
        "session.use_device_allocator_for_initializers": "1",
        "session.intra_op.allow_spinning": "1",  # spinning comes back for who wants it
        "optimization.enable_gelu_approximation": "1",
    }
    assert result.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("intra_op_thread_count", "many"),
        ("intra_op_thread_count", "-1"),
        ("inter_op_thread_count", "1.5"),
        ("execution_mode", "2"),
        ("enable_mem_arena", "maybe"),
        ("enable_mem_pattern", "2"),
        ("share_session", "2"),
    ],
)
def test_wrong_parameters_are_named(key, text):
    with pytest.raises(ConfigError) as raised:
        settings({key: text})
    assert raised.value.message.startswith(f"{FILE}: parameters['{key}']: found '{text}'. Write ")


@pytest.mark.parametrize(
    ("key", "text"), [("intra_op_thread_count", "x"), ("enable-global-threadpool", "2")]
)
def test_wrong_backend_settings_are_named(key, text):
    with pytest.raises(
        ConfigError, match=f"--backend-config=onnxruntime,{key}: found '{text}'. Write"
    ):
        settings(backend={key: text})


def test_global_threads():
    assert global_threads({}, cores=6) == (6, 1)
    assert global_threads({"intra_op_thread_count": "3", "inter_op_thread_count": "2"}, 6) == (3, 2)

"""The response cache through the whole server: what it must not serve, ensembles, order, flags."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.config.options import NamedSetting
from shoal.errors import InvalidArgument
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import (
    EXECUTION_MODES,
    add_fake,
    add_model,
    add_onnx,
    execution,
    touch,
)

CACHED = "response_cache { enable: true }\n"
LOCAL = (NamedSetting("local", "size", "1M"),)
EXPLICIT = {"model_control_mode": "explicit", "load_model": ("*",)}


def call(running, model, value=1, **options):
    return Infer(**options).add("INPUT0", np.array([[value]], np.int32)).call(running, model)


def ask(running, model, value=1, **options):
    answer = call(running, model, value, **options).response()
    assert answer.status == 200, answer
    return int(outputs(answer)["OUTPUT0"][0, 0])


def counts(running, model, *names):
    stats = running.statistics(model)["inference_stats"]
    return tuple(stats[name]["count"] for name in names)


@pytest.fixture
def serve(tmp_path, fake):
    """A server of what the test put into its folder."""

    def make(**options):
        registry = fake.registry()
        return running_server(tmp_path, backends=registry, **{"cache_config": LOCAL, **options})

    return make


def plus(number):
    """A computation that adds."""
    return lambda inputs, names: [next(iter(inputs.values())) + number for _ in names]


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_wherever_a_model_runs(tmp_path, serve, mode):
    built = onnx_models.identity("INT32", dims=(1,))
    add_onnx(tmp_path, "echo", built, "max_batch_size: 4 " + CACHED + execution(mode))
    with serve() as running:
        assert [ask(running, "echo", 5) for _ in range(3)] == [5, 5, 5]
        assert running.statistics("echo")["execution_count"] == 1
        assert counts(running, "echo", "cache_hit", "cache_miss") == (2, 1)


def test_a_reloaded_model_does_not_use_earlier_responses(tmp_path, serve, fake):
    folder = add_fake(tmp_path, "m", CACHED)
    with serve(**EXPLICIT) as running:
        fake.compute = plus(1)
        assert [ask(running, "m", 1) for _ in range(2)] == [2, 2]
        fake.compute = plus(100)
        assert running.load("m").status == 200  # nothing changed: the same model goes on
        assert ask(running, "m", 1) == 2
        (folder / "1" / "weights").write_bytes(b"new")
        assert running.load("m").status == 200
        assert ask(running, "m", 1) == 101
        config = folder / "config.pbtxt"
        config.write_text(config.read_text() + 'parameters { key: "a" value {} }')
        touch(config)
        fake.compute = plus(1000)
        assert running.load("m").status == 200
        assert ask(running, "m", 1) == 1001
        assert running.unload("m").status == 200
        fake.compute = plus(7)
        assert running.load("m").status == 200
        assert ask(running, "m", 1) == 8


def test_changing_instances_keeps_the_cached_responses(tmp_path, serve, fake):
    folder = add_fake(tmp_path, "m", CACHED + "instance_group { count: 1 kind: KIND_CPU }")
    with serve(**EXPLICIT) as running:
        ask(running, "m")
        config = folder / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 1", "count: 3"))
        assert running.load("m").status == 200
        assert fake.open_executors == 3
        ask(running, "m")
        assert counts(running, "m", "cache_hit", "cache_miss") == (1, 1)


def test_versions_do_not_share_cached_responses(tmp_path, serve, fake):
    add_fake(tmp_path, "m", CACHED + "version_policy { all {} }", versions=(1, 2))
    with serve() as running:
        fake.compute = plus(1)
        assert ask(running, "m/versions/1", 1) == 2
        fake.compute = plus(2)
        assert ask(running, "m/versions/2", 1) == 3
        assert ask(running, "m/versions/1", 1) == 2
        assert ask(running, "m", 1) == 3  # the newest


def test_models_do_not_share_cached_responses(tmp_path, serve, fake):
    add_fake(tmp_path, "a", CACHED)
    add_fake(tmp_path, "b", CACHED)
    with serve() as running:
        fake.compute = plus(1)
        assert ask(running, "a", 1) == 2
        fake.compute = plus(2)
        assert ask(running, "b", 1) == 3
        assert ask(running, "a", 1) == 2


def test_a_failed_execution_is_tried_again(tmp_path, serve, fake):
    def broken(inputs, names):
        raise RuntimeError("not today")

    add_fake(tmp_path, "m", CACHED)
    with serve() as running:
        fake.compute = broken
        assert call(running, "m").response().status == 500
        fake.compute = plus(0)
        assert ask(running, "m", 1) == 1
        assert counts(running, "m", "fail", "cache_hit", "cache_miss") == (1, 0, 1)


def test_hits_are_served_while_the_model_is_busy(tmp_path, serve, fake):
    add_fake(tmp_path, "m", CACHED)
    with serve() as running:
        ask(running, "m", 1)
        fake.started.acquire(timeout=WAIT_SECS)
        fake.gate.clear()
        slow = call(running, "m", 2)
        assert fake.started.acquire(timeout=WAIT_SECS)
        assert ask(running, "m", 1) == 1
        fake.gate.set()
        assert slow.response().status == 200


def test_preserve_ordering_holds_for_hits_too(tmp_path, serve, fake):
    add_fake(tmp_path, "m", CACHED + "dynamic_batching { preserve_ordering: true }")
    with serve() as running:
        ask(running, "m", 1)
        fake.started.acquire(timeout=WAIT_SECS)
        fake.gate.clear()
        slow = call(running, "m", 2)
        assert fake.started.acquire(timeout=WAIT_SECS)
        hit = call(running, "m", 1)
        answered = threading.Event()

        def wait():
            assert hit.response().status == 200
            answered.set()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_until(lambda: counts(running, "m", "cache_hit") == (1,))
        assert not answered.is_set()
        fake.gate.set()
        assert slow.response().status == 200
        assert answered.wait(WAIT_SECS)
        waiting.join(WAIT_SECS)


def test_full_queues_refuse_misses_alone(tmp_path, serve, fake):
    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    add_fake(tmp_path, "m", CACHED + queue + "instance_group { count: 1 kind: KIND_CPU }")
    with serve() as running:
        ask(running, "m", 1)
        fake.started.acquire(timeout=WAIT_SECS)
        fake.gate.clear()
        running_now = call(running, "m", 2)
        assert fake.started.acquire(timeout=WAIT_SECS)
        waiting = call(running, "m", 3)
        running.wait_for_pending("m", 1)
        refused = call(running, "m", 4).response()
        assert refused.status == 503
        assert "Exceeds maximum queue size" in refused.error
        assert ask(running, "m", 1) == 1
        fake.gate.set()
        assert (running_now.response().status, waiting.response().status) == (200, 200)


def test_least_recently_used_responses_are_evicted(tmp_path, serve):
    add_onnx(
        tmp_path, "echo", onnx_models.identity("INT32", dims=(1,)), "max_batch_size: 4 " + CACHED
    )
    with serve(cache_config=(NamedSetting("local", "size", "3000"),)) as running:
        for value in (1, 2, 3, 4, 5, 6):
            ask(running, "echo", value)
        assert running.metric("nv_cache_num_evictions") > 0
        assert running.metric("nv_cache_util") <= 1
        before = counts(running, "echo", "cache_hit")[0]
        ask(running, "echo", 6)
        ask(running, "echo", 1)
        assert counts(running, "echo", "cache_hit")[0] == before + 1


def test_a_response_larger_than_the_cache_is_counted_and_sent(tmp_path, serve):
    built = onnx_models.identity("INT32", dims=(1,))
    add_onnx(tmp_path, "echo", built, "max_batch_size: 4 " + CACHED)
    with serve(cache_config=(NamedSetting("local", "size", "10"),)) as running:
        assert [ask(running, "echo", 5) for _ in range(2)] == [5, 5]
        assert running.metric("shoal_cache_not_done", reason="too_large") == 2
        assert counts(running, "echo", "cache_hit", "cache_miss") == (0, 2)


def test_the_older_flag(tmp_path, serve, fake):
    add_fake(tmp_path, "m", CACHED)
    with serve(cache_config=(), response_cache_byte_size=100_000) as running:
        assert [ask(running, "m") for _ in range(2)] == [1, 1]
        assert counts(running, "m", "cache_hit") == (1,)
    with serve(cache_config=(), response_cache_byte_size=0) as running:
        assert [ask(running, "m") for _ in range(2)] == [1, 1]
        assert counts(running, "m", "cache_hit", "cache_miss") == (0, 0)
        assert "nv_cache" not in running.metrics()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ((NamedSetting("local", "size", "x"),), "'size' is 'x'; write bytes"),
        ((NamedSetting("redis", "host", "x"),), "the cache 'redis' needs 'port'"),
        ((NamedSetting("memcached", "host", "x"),), "there is no cache 'memcached'; installed are"),
    ],
)
def test_an_invalid_cache_is_reported_at_start(serve, settings, sentence):
    with pytest.raises(InvalidArgument, match=sentence), serve(cache_config=settings):
        pass


def test_summaries_count_hits_and_misses(tmp_path, serve):
    add_fake(tmp_path, "m", CACHED)
    add_fake(tmp_path, "plain")
    settings = (NamedSetting("", "summary_latencies", "true"),)
    with serve(metrics_config=settings) as running:
        for _ in range(3):
            ask(running, "m")
            ask(running, "plain")
        text = running.metrics()
        here = {"model": "m", "version": "1"}
        assert running.metric("nv_cache_hit_summary_per_model_count", **here) == 2
        assert running.metric("nv_cache_miss_summary_per_model_count", **here) == 1
        assert running.metric("nv_inference_queue_summary_us_count", **here) == 3
        assert 'nv_inference_request_summary_us_count{model="m"' not in text  # as with Triton
        assert 'nv_inference_request_summary_us_count{model="plain"' in text
        assert 'nv_cache_hit_summary_per_model_count{model="plain"' not in text


def test_a_hit_is_traced_without_an_execution(tmp_path, serve):
    add_fake(tmp_path, "m", CACHED)
    file = tmp_path / "trace.json"
    settings = [("level", "TIMESTAMPS"), ("rate", "1")]
    given = tuple(NamedSetting("", key, value) for key, value in settings)
    with serve(trace_config=(*given, NamedSetting("triton", "file", str(file)))) as running:
        ask(running, "m")
        ask(running, "m")
    text = file.read_text()
    assert text.count("QUEUE_START") == 2
    assert text.count("COMPUTE_START") == 1
    assert text.count("REQUEST_END") == 2


# ---- ensembles


def a_and(other):
    """An ensemble of "a" and another model, with the names of a fake model."""
    return chain("a", other, first="INPUT0", last="OUTPUT0")


def test_a_cached_ensemble_runs_none_of_its_models_again(tmp_path, serve):
    add_fake(tmp_path, "a")
    add_fake(tmp_path, "b")
    add_model(tmp_path, "both", a_and("b") + CACHED)
    with serve() as running:
        assert [ask(running, "both", 3) for _ in range(3)] == [3, 3, 3]
        assert counts(running, "both", "success", "cache_hit", "cache_miss") == (3, 2, 1)
        assert counts(running, "both", "compute_infer") == (1,)
        assert running.statistics("both")["inference_count"] == 1
        for name in ("a", "b"):
            assert counts(running, name, "success", "cache_hit", "cache_miss") == (1, 0, 0)


def test_a_step_may_be_cached_where_the_ensemble_is_not(tmp_path, serve):
    add_fake(tmp_path, "a", CACHED)
    add_fake(tmp_path, "b")
    add_model(tmp_path, "both", a_and("b"))
    with serve() as running:
        assert [ask(running, "both", 3) for _ in range(3)] == [3, 3, 3]
        assert counts(running, "a", "success", "cache_hit", "cache_miss") == (3, 2, 1)
        assert counts(running, "b", "success") == (3,)
        assert counts(running, "both", "success", "cache_hit", "cache_miss") == (3, 0, 0)
        assert ask(running, "a", 3) == 3  # asked by itself it is a model like any other


def test_an_ensemble_notices_that_one_of_its_models_is_another(tmp_path, serve, fake):
    folder = add_fake(tmp_path, "a")
    add_fake(tmp_path, "b")
    add_model(tmp_path, "both", a_and("b") + CACHED)
    add_model(tmp_path, "around", a_and("both") + CACHED)
    with serve(**EXPLICIT) as running:
        before = ask(running, "both", 1), ask(running, "around", 1)
        assert before == (1, 1)
        fake.compute = plus(10)
        assert (ask(running, "both", 1), ask(running, "around", 1)) == before
        (folder / "1" / "weights").write_bytes(b"new")
        assert running.load("a").status == 200
        assert ask(running, "both", 1) == 21
        assert ask(running, "around", 1) == 31


def test_an_ensemble_of_what_cannot_be_cached_cannot_be_either(tmp_path, serve, caplog):
    add_fake(tmp_path, "a")
    sequences = "sequence_batching { max_sequence_idle_microseconds: 1000000 }"
    add_fake(tmp_path, "b", sequences)
    add_model(tmp_path, "both", a_and("b") + CACHED)
    add_model(tmp_path, "around", a_and("inner") + CACHED)
    add_model(tmp_path, "inner", a_and("b"))
    with pytest.raises(ModelsFailed), serve():
        pass
    for name in ("both", "around"):
        sentence = f"Response Cache does not currently support model {name} with a step that has"
        assert sentence in caplog.text
    assert "model inner" not in caplog.text

"""The response cache in a real Redis: shared, outliving servers, and never in anybody's way."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
import redis as redis_client

from shoal.cache import store
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.redis import running_redis
from tests.support.repositories import add_onnx

pytestmark = pytest.mark.redis

CACHED = "max_batch_size: 4 response_cache { enable: true }\n"


@pytest.fixture
def folder(tmp_path):
    models = tmp_path / "models"
    add_onnx(models, "echo", onnx_models.identity("INT32", dims=(1,)), CACHED)
    return models


@pytest.fixture
def redis():
    with running_redis() as running:
        yield running


def call(running, value, model="echo"):
    return Infer().add("INPUT0", np.array([[value]], np.int32)).call(running, model)


def ask(running, value, model="echo"):
    answer = call(running, value, model).response()
    assert answer.status == 200, answer
    assert int(outputs(answer)["OUTPUT0"][0, 0]) == value


def counts(running, model="echo"):
    stats = running.statistics(model)["inference_stats"]
    return stats["cache_hit"]["count"], stats["cache_miss"]["count"]


def kept(running, number):
    """Wait until so many answers have been put into the cache, which happens after they are sent."""
    store = running.server._serving.cache
    wait_until(lambda: store.read().insertions >= number, f"{number} answers are kept")


def test_the_second_response_comes_from_redis(folder, redis):
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)
        kept(running, 1)
        ask(running, 5)
        ask(running, 6)
        assert counts(running) == (1, 2)
        assert running.statistics("echo")["execution_count"] == 2
        assert running.metric("nv_cache_num_hits") == 1
        assert running.metric("nv_cache_num_misses") == 2
        assert running.metric("nv_cache_num_entries") is None  # Redis may hold others' too
        labels = {"model": "echo", "version": "1"}
        assert running.metric("nv_cache_num_hits_per_model", **labels) == 1


def test_cached_responses_outlive_the_server(folder, redis):
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)
        kept(running, 1)
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)
        assert counts(running) == (1, 0)


def test_servers_share_responses_of_equal_models(folder, redis, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    changed = shutil.copytree(folder, tmp_path / "changed")
    add_onnx(changed, "echo", onnx_models.add_sub("INT32", dims=(1,)), CACHED)
    options = {"cache_config": redis.settings()}
    with running_server(folder, **options) as one, running_server(copy, **options) as other:
        ask(one, 5)
        kept(one, 1)
        ask(other, 5)
        assert counts(other) == (1, 0)
        with running_server(changed, **options) as third:
            row = np.array([[5]], np.int32)
            asked = Infer().add("INPUT0", row).add("INPUT1", row).want("OUTPUT0")
            assert int(outputs(asked.send(third, "echo"))["OUTPUT0"][0, 0]) == 10
            assert counts(third) == (0, 1)


def test_entries_have_a_name_of_their_own(folder, redis):
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)
        kept(running, 1)
    with redis_client.Redis(port=redis.port) as client:
        (key,) = client.keys()
        assert key.startswith(b"shoal:")
        client.set(key, b"something else")
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)  # it is not taken for an answer, and is replaced
        kept(running, 1)
        ask(running, 5)
        assert counts(running) == (1, 1)


def test_redis_dies_midway_and_comes_back(folder, redis, caplog, monkeypatch):
    monkeypatch.setattr(store, "FIRST_PAUSE_NS", 50_000_000)
    with running_server(folder, cache_config=redis.settings()) as running:
        ask(running, 5)
        kept(running, 1)
        ask(running, 5)
        assert counts(running) == (1, 1)
        redis.stop()
        for _ in range(20):
            ask(running, 5)  # never an error
        assert counts(running) == (1, 21)
        warnings = [r for r in caplog.records if "models compute every response" in r.message]
        assert len(warnings) == 1
        assert running.metric("shoal_cache_not_done", reason="failed") >= 1
        redis.start()

        def hit():
            ask(running, 5)
            return counts(running)[0] > 1

        wait_until(hit, "it is used again")


def test_a_redis_that_hangs_delays_one_request(folder, redis, monkeypatch):
    monkeypatch.setattr(store, "FIRST_PAUSE_NS", 60_000_000_000)
    settings = redis.settings(socket_timeout="1500", connect_timeout="1500")
    with running_server(folder, cache_config=settings) as running:
        ask(running, 5)
        kept(running, 1)
        redis.pause()
        try:
            ask(running, 5)  # waits for the time limit, then computes
            for value in range(10):  # these do not even ask
                ask(running, value)
            assert running.metric("shoal_cache_not_done", reason="failed") == 1
        finally:
            redis.resume()
        assert counts(running) == (0, 12)


def test_the_event_loop_does_not_wait_for_redis(folder, redis):
    with running_server(folder, cache_config=redis.settings(socket_timeout="20000")) as running:
        ask(running, 5)
        kept(running, 1)
        redis.pause()
        try:
            waiting = call(running, 5)
            wait_until(lambda: running.model("echo").in_flight() == 1)
            assert running.get("/v2/health/ready").status == 200
            assert running.get("/v2/models/echo").status == 200
        finally:
            redis.resume()
        assert waiting.response().status == 200
        assert counts(running) == (1, 1)


def test_a_server_starts_without_its_redis(folder, caplog):
    with running_redis() as gone:
        pass
    with running_server(folder, cache_config=gone.settings()) as running:
        assert running.get("/v2/health/ready").status == 200
        ask(running, 5)
        assert counts(running) == (0, 1)
    assert "the response cache 'redis' cannot be used now" in caplog.text


def test_users_and_passwords(folder, caplog, monkeypatch):
    users = ("--user", "default", "off", "--user", "ann", "on", ">secret", "~shoal:*", "+@all")
    with running_redis(*users) as guarded:
        settings = guarded.settings(user="ann", password="secret")
        with running_server(folder, cache_config=settings) as running:
            ask(running, 5)
            kept(running, 1)
            ask(running, 5)
            assert counts(running) == (1, 1)
        assert not caplog.records
        wrong = guarded.settings(user="ann", password="guessed")
        with running_server(folder, cache_config=wrong) as running:
            ask(running, 5)
            assert counts(running) == (0, 1)
        assert "the response cache 'redis' cannot be used now (" in caplog.text
        assert "secret" not in caplog.text
        assert "guessed" not in caplog.text
        monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "ann")
        monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
        with running_server(folder, cache_config=guarded.settings()) as running:
            ask(running, 5)
            assert counts(running) == (1, 0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of cache.example that vouches for itself, and its key."""
    made = tmp_path_factory.mktemp("tls")
    key, certificate = made / "key.pem", made / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=cache.example", "-addext", "subjectAltName=DNS:cache.example"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return str(key), str(certificate)


def test_tls(folder, certificate, caplog):
    key, public = certificate
    files = ("--tls-cert-file", public, "--tls-key-file", key, "--tls-ca-cert-file", public)
    with running_redis(*files, tls=True) as guarded:  # it asks for a certificate of ours, too
        whole = guarded.settings(cacert=public, cert=public, key=key, sni="cache.example")
        with running_server(folder, cache_config=whole) as running:
            ask(running, 5)
            kept(running, 1)
            ask(running, 5)
            assert counts(running) == (1, 1)
        assert not caplog.records
        another_name = guarded.settings(cacert=public, cert=public, key=key)
        with running_server(folder, cache_config=another_name) as running:
            ask(running, 5)
            assert counts(running) == (0, 1)
        assert "certificate verify failed" in caplog.text


def test_many_requests_at_once(folder, redis):
    with running_server(folder, cache_config=redis.settings()) as running:
        calls = [(value, call(running, value)) for value in [*range(30)] * 2]
        for value, one in calls:
            answer = one.response()
            assert answer.status == 200
            assert int(outputs(answer)["OUTPUT0"][0, 0]) == value
        hits, misses = counts(running)
        assert hits + misses == 60
        wait_until(lambda: running.model("echo").in_flight() == 0, "all is done")

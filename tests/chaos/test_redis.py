"""A response cache in a Redis that is killed, stands still or comes back empty."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.chaos.checker import Checker
from tests.chaos.schedule import PAUSE_SECS, long_run, rounds
from tests.support.redis import running_redis

pytestmark = pytest.mark.redis

VALUES = 40  # so few inputs that most answers are in the cache


@contextlib.contextmanager
def killed(redis):
    redis.stop()
    try:
        yield
    finally:
        redis.start()


@contextlib.contextmanager
def standing_still(redis):
    redis.pause()
    try:
        time.sleep(PAUSE_SECS)
        yield
    finally:
        redis.resume()


@pytest.mark.parametrize("fault", [killed, pytest.param(standing_still, marks=long_run)])
def test_a_cache_that_fails_is_done_without(serve, settled, fault):
    with running_redis() as redis:
        settings = [f"--cache-config=redis,{s.key}={s.value}" for s in redis.settings()]
        server = serve("cached", "onnx", options=settings)
        before = settled(server, "cached", "onnx")
        with Checker(server, "cached", "onnx", values=VALUES) as checker:
            for _ in rounds():
                checker.wait_for_answers(20)
                with fault(redis):
                    checker.wait_for_answers(5)
                checker.wait_for_answers(20)
        checker.check()
        stats = server.statistics()["cached"]["inference_stats"]
        assert stats["cache_hit"]["count"]
        assert (
            stats["cache_hit"]["count"] + stats["cache_miss"]["count"]
            == (stats["success"]["count"])
        )
        server.check_holds_no_more_than(before)
        server.checked_stop()

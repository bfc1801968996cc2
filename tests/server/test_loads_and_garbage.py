"""Loads and unloads leave nothing behind, although what is loaded is left out of collections."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from shoal.repository import memory
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer
from tests.support.repositories import add_fake

pytestmark = pytest.mark.one_process
ROUNDS = 12
WARM_UP = 3


@pytest.fixture
def running(repository, fake):
    add_fake(repository, "m", "dynamic_batching { }\n")
    options = {"model_control_mode": "explicit", "backends": fake.registry()}
    with memory.excluding(), running_server(repository, **options) as running:
        yield running


def ask(running):
    request = Infer().add("INPUT0", np.array([[1]], np.int32), binary=True)
    assert request.send(running, "m").status == 200


def test_models_are_freed_and_nothing_piles_up(running, fake):
    models, frozen = [], []
    for _ in range(ROUNDS):
        assert running.load("m").status == 200
        for _ in range(3):
            ask(running)
        models.append(weakref.ref(running.model("m")))
        assert running.unload("m").status == 200
        wait_until(lambda: not fake.open_models)
        fake.batches.clear()
        fake.loads.clear()
        gc.collect()
        # Left out again, after a collection of everything that the unload has begun on a thread.
        wait_until(lambda: gc.get_freeze_count() > 1000)
        frozen.append(gc.get_freeze_count())
    wait_until(lambda: all(model() is None for model in models))
    assert frozen[-1] - frozen[WARM_UP] < 10 * (ROUNDS - WARM_UP)


def test_a_model_that_was_replaced_is_freed(running, repository, fake):
    assert running.load("m").status == 200
    ask(running)
    replaced = weakref.ref(running.model("m"))
    add_fake(repository, "m", "dynamic_batching { max_queue_delay_microseconds: 1 }\n")
    assert running.load("m").status == 200
    ask(running)
    fake.batches.clear()
    fake.loads.clear()
    wait_until(lambda: replaced() is None)

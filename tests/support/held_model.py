"""Requests to the model "held" of a fake backend, whose order and batches a test decides.

first = hold(running, fake)                    the model is busy until fake.gate is set
calls = queue(running, lambda: ask(running, 1), lambda: ask(running, 2))
fake.gate.set()
assert numbers(fake) == [[0], [1, 2]]
"""

from __future__ import annotations

import numpy as np

from shoal.testing import WAIT_SECS
from tests.support.client import Infer, outputs

ONE = "instance_group { count: 1 kind: KIND_CPU }\n"


def ask(running, number, rows=1, model="held", **parameters):
    """Send a request whose elements are all `number`, without waiting."""
    array = np.full((rows, 1), number, np.int32)
    return Infer(id=str(number), **parameters).add("INPUT0", array).call(running, model)


def hold(running, fake):
    """A request that the model does not finish before the gate opens."""
    fake.gate.clear()
    call = ask(running, 0)
    assert fake.started.acquire(timeout=WAIT_SECS)
    return call


def queue(running, *calls):
    """Make each call once the one before is in the queue, so that their order is known."""
    made = []
    for call in calls:
        made.append(call())
        running.wait_for_pending("held", len(made))
    return made


def numbers(fake):
    """The elements of each batch."""
    return [batch["INPUT0"].reshape(-1).tolist() for batch in fake.batches]


def seen(fake):
    """The elements of all batches."""
    return [number for batch in numbers(fake) for number in batch]


def failures(running, reason, model="held"):
    """The metric of failed requests."""
    return running.metric("nv_inference_request_failure", model=model, version="1", reason=reason)


def check(call, number, rows=1):
    """Wait for the response, whose elements must all be `number`."""
    got = outputs(call.response())["OUTPUT0"]
    assert got.tolist() == [[number]] * rows

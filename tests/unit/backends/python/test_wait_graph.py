from __future__ import annotations

import pytest

from shoal.backends.python.api.host import OUTSIDE, Context
from shoal.backends.python.wait_graph import WaitGraph
from shoal.errors import Unavailable


@pytest.fixture
def waits():
    return WaitGraph()


def instance(waits, model):
    made = Context(OUTSIDE.host, model, f"{model}_0")
    waits.join(made)
    return made


def test_a_model_with_one_instance_cannot_ask_itself(waits):
    a = instance(waits, "a")
    with pytest.raises(Unavailable, match=r"model 'a' calls model 'a'.*more instances"):
        waits.begin(a, "a")
    waits.begin(a, "b")  # the refused call is forgotten


def test_with_two_it_can_once(waits):
    first, second = instance(waits, "a"), instance(waits, "a")
    waits.begin(first, "a")
    with pytest.raises(Unavailable):
        waits.begin(second, "a")
    waits.end(first)
    waits.begin(second, "a")


def test_a_circle_of_models(waits):
    a, b, c = (instance(waits, name) for name in "abc")
    waits.begin(a, "b")
    waits.begin(b, "c")
    with pytest.raises(Unavailable):
        waits.begin(c, "a")


def test_waiting_for_one_that_works_is_no_circle(waits):
    a, b = instance(waits, "a"), instance(waits, "b")
    instance(waits, "b")  # free
    waits.begin(a, "b")
    waits.begin(b, "onnx")


def test_an_instance_that_leaves_waits_no_more(waits):
    a, b = instance(waits, "a"), instance(waits, "b")
    waits.begin(a, "b")
    waits.leave(a)
    other = instance(waits, "a")
    waits.begin(b, "a")
    waits.leave(other)

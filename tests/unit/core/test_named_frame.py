"""Names of frames in tracebacks."""

from __future__ import annotations

import sys

from shoal.core.named_frame import named_frame


def test_a_copy_has_frames_of_another_name():
    outside = 5

    def add(one, two=2, *, three=3):
        return sys._getframe().f_code.co_name, one + two + three + outside

    named = named_frame(add, "model 'm' version 1 was running")
    assert named(1) == ("model 'm' version 1 was running", 11)
    assert named(1, 1, three=1) == ("model 'm' version 1 was running", 8)
    assert add(1) == ("add", 11)


def test_methods_can_be_replaced_for_one_object():
    class Model:
        def __init__(self, name):
            self.run = named_frame(Model.run, name).__get__(self)

        def run(self):
            return self, sys._getframe().f_code.co_name

    one, other = Model("one"), Model("other")
    assert one.run() == (one, "one")
    assert other.run() == (other, "other")

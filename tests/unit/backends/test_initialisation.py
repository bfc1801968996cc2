"""Users' Python code is imported and initialised one model at a time."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.backends.base import LoadContext, Placement
from shoal.backends.function import declaration as declarations
from shoal.backends.function.backend import FunctionBackend
from shoal.backends.function.code import CodeFile
from shoal.backends.initialisation import (
    initialising,
    initialising_with,
    released,
    released_by,
)
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.initialisation import in_thread, overlap_probe

Floats = npt.NDArray[np.float32]
HERE = Placement("KIND_CPU", 0, "m_0")


@pytest.fixture
def probe():
    with overlap_probe() as made:
        yield made


def visit(probe, name):
    with initialising(name), probe.visit(name):
        return name


def test_the_second_waits_for_the_first_and_says_so(probe):
    line = probe.check(lambda: visit(probe, "a"), lambda: visit(probe, "b"))
    assert line == "model 'b' waits for the initialisation of model 'a'"
    assert probe.visits == ["a", "b"]


def test_one_that_fails_lets_the_next_one_go():
    with pytest.raises(ValueError, match="broken"), initialising("a"):
        raise ValueError("broken")
    with initialising("b"):
        pass


def test_within_itself_it_does_nothing():
    with initialising("a") as outer, initialising("a") as inner:
        assert inner is outer


def test_a_wait_for_another_model_lets_that_one_be_initialised():
    def load_b():
        with initialising("b"):
            return "b"

    with initialising("a"):
        with released():
            assert in_thread(load_b).result(WAIT_SECS) == "b"
            assert load_b() == "b"  # on the same thread, too
        with initialising("a"):  # it has the lock again
            blocked = in_thread(load_b)
    assert blocked.result(WAIT_SECS) == "b"


def test_a_thread_of_the_model_can_release_it():
    def load_b():
        with initialising("b"):
            return "b"

    with initialising("a") as own:

        def helper():
            with released(own):
                return load_b()

        assert in_thread(helper).result(WAIT_SECS) == "b"


def test_it_continues_when_its_last_thread_has_waited():
    first, second = threading.Event(), threading.Event()

    def helper(own, done):
        with released(own):
            assert done.wait(WAIT_SECS)

    def load_b():
        with initialising("b"):
            return "b"

    with initialising("a") as own:
        helpers = [in_thread(lambda done=done: helper(own, done)) for done in (first, second)]
        wait_until(lambda: own.waits == 2)
        first.set()
        helpers[0].result(WAIT_SECS)  # it does not take the lock while the other one waits
        assert in_thread(load_b).result(WAIT_SECS) == "b"
        second.set()
        helpers[1].result(WAIT_SECS)


def test_an_unknown_thread_belongs_to_the_model_that_loads_others():
    def load(name):
        with released_by(None, known=False), initialising(name):
            return name

    with initialising("a") as own:
        with released(own):
            pass
        assert in_thread(lambda: load("b")).result(WAIT_SECS) == "b"


def test_a_thread_of_the_model_that_outlives_its_initialisation_takes_nothing():
    going, done = threading.Event(), threading.Event()

    def helper(own):
        with released(own):
            going.set()
            assert done.wait(WAIT_SECS)

    with initialising("a") as own:
        outliving = in_thread(lambda: helper(own))
        assert going.wait(WAIT_SECS)
    with initialising("b"):
        done.set()
        outliving.result(WAIT_SECS)  # it does not wait for b


def test_outside_of_an_initialisation_there_is_nothing_to_release():
    with released():
        pass


# ---- what is initialised


def load(function):
    declaration = declarations.of(function)
    model = FunctionBackend(declaration).load(
        LoadContext(Path(), Path(), 1, declaration.config, [HERE])
    )
    model.executor(HERE).close()
    model.close()


def test_two_classes_with_shoal_model(probe):
    @shoal.model
    class First:
        def __init__(self):
            with probe.visit("first"):
                pass

        def __call__(self, x: Floats) -> Floats:
            return x

    @shoal.model
    class Second:
        async def load(self):
            with probe.visit("second"):
                pass

        def __call__(self, x: Floats) -> Floats:
            return x

    probe.check(lambda: load(First), lambda: load(Second))
    assert probe.visits == ["first", "second"]


def test_two_files_with_shoal_model(probe, tmp_path, monkeypatch):
    source = """
import overlap_probe, shoal
with overlap_probe.visit(__file__):
    pass

@shoal.model
def echo(x: float) -> float:
    return x
"""
    monkeypatch.setitem(sys.modules, "overlap_probe", probe)
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text(source)
    line = probe.check(*[lambda file=file: CodeFile(file).release() for file in files])
    assert line == "model 'b.py' waits for the initialisation of model 'a.py'"
    assert probe.visits == [str(file) for file in files]


def test_backends_of_other_packages_unless_they_say_otherwise(probe):
    backend = FakeBackend()
    backend.loads_in_parallel = False

    def visit_with(model):
        with initialising_with(backend, model), probe.visit(model):
            pass

    probe.check(lambda: visit_with("a"), lambda: visit_with("b"))
    backend.loads_in_parallel = True
    with initialising("c"):
        in_thread(lambda: visit_with("d")).result(WAIT_SECS)


def test_built_in_backends_load_in_parallel():
    backend = FunctionBackend()
    with initialising("a"):

        def load_beside():
            with initialising_with(backend, "b"):
                return True

        assert in_thread(load_beside).result(WAIT_SECS)


def test_a_file_is_loaded_while_others_import(tmp_path):
    """A collection may start anywhere, and let another thread import a module."""
    file = tmp_path / "app.py"
    file.write_text("import shoal\n\n@shoal.model\ndef echo(x: float) -> float:\n    return x\n")
    names = []

    def import_something(*_):
        names.append(f"imported_{len(names)}")
        sys.modules[names[-1]] = ModuleType(names[-1])

    for _ in range(5000):  # a collection starts only where Python has to allocate
        import_something()
    thresholds = gc.get_threshold()
    gc.callbacks.append(import_something)
    gc.set_threshold(20)
    try:
        CodeFile(file).release()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_something)
        for name in names:
            sys.modules.pop(name, None)
    assert len(names) > 5000

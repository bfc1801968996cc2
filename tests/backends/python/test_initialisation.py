"""Python models on threads are imported and initialised one after the other."""

from __future__ import annotations

import sys

import pytest

from shoal.errors import Internal
from shoal.testing.server import running_server
from tests.backends.python.conftest import CONFIG, HEAD, PythonModels
from tests.support.fakes import WAIT_SECS
from tests.support.initialisation import in_thread, overlap_probe
from tests.support.repositories import add_model

SLOW_MODULE = """
import overlap_probe
with overlap_probe.visit("slow_module"):
    complete = True
"""
# The module is imported once; each model is initialised by itself.
MODEL = """
import overlap_probe

class TritonPythonModel:
    def initialize(self, args):
        import slow_module
        with overlap_probe.visit(args["model_name"]):
            assert slow_module.complete

    def execute(self, requests):
        return [answer(value(request)) for request in requests]
"""


@pytest.fixture
def probe(monkeypatch, tmp_path):
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with overlap_probe() as made:
        monkeypatch.setitem(sys.modules, "overlap_probe", made)
        yield made
    sys.modules.pop("slow_module", None)


def test_two_models_that_import_a_slow_module(probe, tmp_path):
    threads = PythonModels(tmp_path, "thread")
    line = probe.check(lambda: threads.load(MODEL, name="a"), lambda: threads.load(MODEL, name="b"))
    assert line == "model 'b' waits for the initialisation of model 'a'"
    assert probe.visits == ["slow_module", "a", "b"]
    threads.close_all()


def test_a_failed_initialisation_lets_the_next_model_go(tmp_path):
    threads = PythonModels(tmp_path, "thread")
    broken = MODEL.replace("import slow_module", "raise ValueError('broken')")
    with pytest.raises(Internal, match="broken"):
        threads.load(broken.replace("import overlap_probe", ""), name="a")
    threads.load(ECHO, name="b")
    threads.close_all()


LOADS_OTHERS = """
from concurrent.futures import ThreadPoolExecutor

class TritonPythonModel:
    def initialize(self, args):
        {loading}
        assert pb_utils.is_model_ready("b") and pb_utils.is_model_ready("c")

    def execute(self, requests):
        return [answer(value(request)) for request in requests]
"""
ECHO = """
class TritonPythonModel:
    def initialize(self, args):
        pass

    def execute(self, requests):
        return [answer(value(request)) for request in requests]
"""


@pytest.mark.parametrize(
    "loading",
    [
        "pb_utils.load_model('b'); pb_utils.load_model('c')",
        "list(ThreadPoolExecutor().map(pb_utils.load_model, ['b', 'c']))",
        "[ThreadPoolExecutor().submit(pb_utils.load_model, n).result() for n in 'bc']",
    ],
    ids=["on its thread", "on threads of its own", "on one thread after the other"],
)
def test_a_model_may_load_others_while_it_is_initialised(tmp_path, loading):
    sources = {"a": LOADS_OTHERS.replace("{loading}", loading), "b": ECHO, "c": ECHO}
    for name, source in sources.items():
        add_model(tmp_path, name, CONFIG, {"1/model.py": (HEAD + source).encode()})
    with running_server(tmp_path, model_control_mode="explicit", load_model=()) as running:
        loaded = in_thread(lambda: running.load("a")).result(WAIT_SECS)
        assert loaded.status == 200, loaded
        assert {row["name"]: row["state"] for row in running.index()} == dict.fromkeys(
            "abc", "READY"
        )

"""Loading and running functions without a server around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.backends.base import LoadContext, Placement
from shoal.backends.function import declaration as declarations
from shoal.backends.function.backend import FunctionBackend
from shoal.backends.function.code import CodeFile
from shoal.config.model import ModelConfig, ModelInput
from shoal.core.request import Request
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Cancelled, ConfigError, Internal

Floats = npt.NDArray[np.float32]
HERE = Placement("KIND_CPU", 0, "m_0")


def loaded(function, **changes):
    declaration = declarations.of(function)
    config = changes.pop("config", declaration.config)
    context = LoadContext(Path(), Path(), 1, config, [HERE])
    return FunctionBackend(declaration).load(context)


def run(function, inputs, outputs=("output",)):
    model = loaded(function)
    executor = model.executor(HERE)
    try:
        return executor.run(inputs, list(outputs))
    finally:
        executor.close()
        model.close()


class PendingRequest:
    """Keeps what was sent."""

    def __init__(self, **inputs):
        tensors = {name: Tensor.from_array(name, array) for name, array in inputs.items()}
        self.request = Request("m", tensors, reply=None)
        self.sent = []
        self.on_send = lambda: None

    def send(self, outputs=(), *, final=True, **_):
        self.sent.append(([tensor.array.tolist() for tensor in outputs], final))
        self.on_send()


# ---- functions


def test_one_call_for_a_batch():
    calls = []

    @shoal.model(batch=8)
    def double(x: Floats) -> Floats:
        calls.append(x.shape)
        return 2 * x

    (result,) = run(double, {"x": np.ones((5, 3), np.float32)})
    assert result.shape == (5, 3)
    assert calls == [(5, 3)]


def test_only_the_outputs_asked_for_in_their_order():
    @shoal.model(outputs=["a", "b", "c"])
    def three(x: float) -> tuple[float, float, float]:
        return x, x + 1, x + 2

    results = run(three, {"x": np.array([1.0])}, ["c", "a"])
    assert [result.tolist() for result in results] == [[3.0], [1.0]]


def test_an_input_that_was_left_out_has_its_default():
    @shoal.model
    def greet(name: str, greeting: str = "hello") -> str:
        return f"{greeting} {name}"

    (result,) = run(greet, {"name": np.array([b"Ada"], dtype=object)})
    assert result.tolist() == [b"hello Ada"]


def test_a_coroutine_runs_on_a_loop_of_the_models_own():
    seen = []

    @shoal.model
    async def later(x: int) -> int:
        seen.append(threading.current_thread().name)
        await asyncio.sleep(0)
        return x + 1

    (result,) = run(later, {"x": np.array([1])})
    assert result.tolist() == [2]
    assert seen == ["later-asyncio"]
    assert "later-asyncio" not in {thread.name for thread in threading.enumerate()}


def test_what_does_not_fit_names_the_function():
    @shoal.model
    def wrong(x: Floats) -> Floats:
        return "text"

    with pytest.raises(BackendFailure, match="wrong: output 'output' is FP32, but the function"):
        run(wrong, {"x": np.ones(1, np.float32)})


# ---- classes


def test_each_instance_has_an_object_of_its_own():
    events = []

    @shoal.model
    class Counter:
        def __init__(self):
            events.append("init")
            self.count = 0

        def load(self):
            events.append("load")

        def __call__(self, x: int) -> int:
            self.count += x
            return self.count

        def close(self):
            events.append("close")

    model = loaded(Counter)
    one, two = model.executor(HERE), model.executor(HERE)
    one.run({"x": np.array([1])}, ["output"])
    assert one.run({"x": np.array([1])}, ["output"])[0].tolist() == [2]
    assert two.run({"x": np.array([1])}, ["output"])[0].tolist() == [1]
    one.close()
    two.close()
    model.close()
    assert events == ["init", "load"] * 2 + ["close"] * 2


def test_instances_of_an_async_class_share_one_object():
    events = []

    @shoal.model
    class Shared:
        async def load(self):
            events.append("load")

        async def __call__(self, x: int) -> int:
            return id(self)

        async def close(self):
            events.append("close")

    model = loaded(Shared)
    executors = [model.executor(HERE) for _ in range(3)]
    results = {e.run({"x": np.array([1])}, ["output"])[0].item() for e in executors}
    assert len(results) == 1
    for executor in executors:
        executor.close()
    model.close()
    assert events == ["load", "close"]


@pytest.mark.parametrize("method", ["__init__", "load"])
def test_an_object_that_cannot_be_made_says_why_and_where(method):
    def fail(self):
        raise RuntimeError("no weights")

    def call(self, x: int) -> int: ...

    broken = type("Broken", (), {method: fail, "__call__": call})
    model = loaded(shoal.model(broken))
    with pytest.raises(Internal) as caught:
        model.executor(HERE)
    assert "Broken could not be made ready: RuntimeError: no weights" in caught.value.message
    assert "test_backend.py:" in caught.value.message
    model.close()


# ---- streams


@shoal.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@shoal.model
async def count_later(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0)
        yield number


@shoal.model
def count_by_another(n: int) -> Iterator[int]:
    return iter(range(n))


@pytest.mark.parametrize("function", [count, count_later, count_by_another])
def test_each_item_is_a_response(function):
    model = loaded(function)
    pending = PendingRequest(n=np.array([3]))
    model.executor(HERE).execute([pending])
    assert pending.sent == [([[0]], False), ([[1]], False), ([[2]], False), ([], True)]
    model.close()


def test_a_stream_ends_when_the_client_has_gone():
    ended = []

    @shoal.model
    def forever(n: int) -> Iterator[int]:
        try:
            while True:
                yield n
        finally:
            ended.append(True)

    model = loaded(forever)
    pending = PendingRequest(n=np.array([3]))
    pending.on_send = pending.request.cancel
    with pytest.raises(Cancelled):
        model.executor(HERE).execute([pending])
    assert pending.sent == [([[3]], False)]
    assert ended == [True]


# ---- configs


def test_a_config_is_completed_from_the_declaration():
    completed = FunctionBackend(declarations.of(count)).complete(
        ModelConfig(name="other"), Path(), Path(), {}
    )
    declared = declarations.of(count).config
    assert completed.name == "other"
    assert completed.input == declared.input
    assert completed.model_transaction_policy.decoupled


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (ModelConfig(max_batch_size=4), "max_batch_size is 4 in the config, but the function does"),
        (ModelConfig(), "the config lacks the input 'n'"),
        (
            ModelConfig(input=(ModelInput("n", "TYPE_FP32", dims=(1,)),)),
            "the config has the input 'n' of TYPE_FP32, the function has: n (TYPE_INT64)",
        ),
    ],
)
def test_a_config_must_fit_the_function(config, sentence):
    with pytest.raises(ConfigError) as caught:
        loaded(count, config=config)
    assert sentence in caught.value.message


# ---- files

APP = """
import numpy as np
import numpy.typing as npt
import helper
import shoal

@shoal.model(batch=4)
def double(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    import late
    return helper.FACTOR * x + late.NOTHING
"""


@pytest.fixture
def app(tmp_path):
    (tmp_path / "helper.py").write_text("FACTOR = 2\n")
    (tmp_path / "late.py").write_text("NOTHING = 0\n")
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


def test_a_file_in_a_repository(app):
    backend = FunctionBackend()
    config = ModelConfig(name="m", default_model_filename="app.py")
    config = backend.complete(config, app.parent, app.parent, {})
    assert config.max_batch_size == 4
    model = backend.load(LoadContext(app.parent, app.parent, 1, config, [HERE]))
    executor = model.executor(HERE)
    assert executor.run({"x": np.ones((1, 1), np.float32)}, ["output"])[0].tolist() == [[2]]
    executor.close()
    model.close()


def test_an_older_import_goes_on_beside_a_newer_one(app):
    old = CodeFile(app)
    assert not old.changed()
    (app.parent / "helper.py").write_text("FACTOR = 200\n")
    assert old.changed()
    new = CodeFile(app)
    values = [code.models["double"].target(np.ones(1)).item() for code in (old, new, old)]
    assert values == [2, 200, 2]
    old.release()
    new.release()


TWICE = """
import shoal
@shoal.model(name="a")
def f(x: str) -> str: ...
@shoal.model(name="a")
def g(x: str) -> str: ...
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def f(:\n", "app.py:1: the file cannot be imported: SyntaxError"),
        ("import shoal\n\nraise ValueError('no')\n", "app.py:3: the file cannot be imported: Val"),
        ("import no_such_module\n", "app.py:1: the file cannot be imported: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "app.py:2: the file cannot be imported: SystemExit: 3"),
        ("x = 1\n", "app.py: there is no model in this file. Write @shoal.model above a function"),
        ("import shoal\n@shoal.model\ndef f(x): ...\n", "app.py:2: f(x): the argument has no type"),
        (
            TWICE,
            "g: another model is called 'a': f (",
        ),
    ],
)
def test_a_file_that_is_wrong(tmp_path, text, sentence):
    file = tmp_path / "app.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        CodeFile(file)
    assert sentence in caught.value.message


def test_several_models_in_a_file_of_a_repository(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "import shoal\n@shoal.model\ndef f(x: str) -> str: ...\n"
        "@shoal.model\ndef g(x: float) -> float: ...\n"
    )
    backend = FunctionBackend()
    completed = backend.complete(ModelConfig(name="g"), tmp_path, tmp_path, {})
    assert completed.input[0].data_type == "TYPE_FP64"
    with pytest.raises(ConfigError, match="there are 2 models in this file"):
        backend.complete(ModelConfig(name="h"), tmp_path, tmp_path, {})

"""Running models on the CPU: datatypes, strings, forms of results, and what models may do."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import Placement  # noqa: E402
from shoal.backends.pytorch.library import TORCH_TYPES, process  # noqa: E402
from shoal.core import dtypes  # noqa: E402
from shoal.errors import BackendFailure, ConfigError, InvalidArgument  # noqa: E402
from tests.support.torch_models import AddSub  # noqa: E402

ON_CPU = Placement("KIND_CPU")
NUMBERS = [datatype for datatype in dtypes.ALL if datatype is not dtypes.BYTES]


def only(executor, array, output="y", name="x"):
    (result,) = executor.run({name: array}, [output])
    return result


class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x], dim=-1)


def sample(datatype):
    if datatype is dtypes.BF16:  # 1.0, -2.0
        return np.array([[0x3F80, 0xC000]], np.uint16)
    return np.array([[1, 0]]).astype(datatype.numpy)


@pytest.mark.parametrize("form", ["script", "export"])
@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
def test_datatypes(loader, config, datatype, form):
    if form == "script":
        loader.script(Twice())
    else:
        loader.export(Twice(), torch.zeros(2, 2, dtype=TORCH_TYPES[datatype]))
    written = config([("x", datatype.name, 2)], [("OUTPUT__0", datatype.name, 4)], 8)
    array = sample(datatype)
    result = only(loader.executor(written), array, "OUTPUT__0")
    assert result.dtype == datatype.numpy
    assert np.array_equal(result, np.concatenate([array, array], axis=1))


def test_arrays_that_lie_badly(loader, config):
    loader.script(Twice())
    executor = loader.executor(config([("x", "FP32", 2)], [("y", "FP32", 4)], 8))
    values = np.float32([[1, 2], [3, 4]])
    unaligned = np.frombuffer(b"x" + values.tobytes(), np.float32, offset=1).reshape(2, 2)
    backwards = values[::-1, ::-1]
    for array in (unaligned, backwards, np.asfortranarray(values)):
        assert np.array_equal(only(executor, array)[:, :2], array)


def test_no_rows(loader, config):
    loader.script(Twice())
    executor = loader.executor(config([("x", "FP32", -1, 2)], [("y", "FP32", -1, 4)]))
    assert only(executor, np.zeros((0, 2), np.float32)).shape == (0, 4)


# --- strings ---


class Greet(torch.nn.Module):
    def forward(self, names: list[str], polite: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        greetings = ["Dear " + name for name in names]
        return greetings, polite * len(names)


def test_strings(loader, config):
    loader.script(Greet())
    written = config(
        [("names", "STRING", 1), ("polite", "INT64", 1)],
        [("greetings__0", "STRING", 1), ("count__1", "INT64", 1)],
        8,
    )
    executor = loader.executor(written)
    names = np.array([[b"Ada"], ["Ümit".encode()]], object)
    greetings, count = executor.run(
        {"names": names, "polite": np.array([[1], [2]])}, ["greetings__0", "count__1"]
    )
    assert greetings.tolist() == [[b"Dear Ada"], ["Dear Ümit".encode()]]
    assert count.tolist() == [[2], [4]]
    with pytest.raises(InvalidArgument, match="BYTES input 'names' is not UTF-8 text"):
        executor.run(
            {"names": np.array([[b"\xff"]], object), "polite": np.array([[1]])}, ["count__1"]
        )


class Words(torch.nn.Module):
    def forward(self, texts: list[str]) -> list[str]:
        return texts[0].split(" ")


def test_strings_without_a_batch(loader, config):
    loader.script(Words())
    executor = loader.executor(config([("texts", "STRING", -1)], [("words", "STRING", -1)]))
    result = only(executor, np.array([b"one two three"], object), "words", "texts")
    assert result.tolist() == [b"one", b"two", b"three"]


def test_strings_that_are_no_rows(loader, config):
    loader.script(Words())
    executor = loader.executor(config([("texts", "STRING", 1)], [("words", "STRING", 2)], 8))
    with pytest.raises(BackendFailure, match=r"a list of 3 strings, which is not \[2\] for each"):
        only(executor, np.array([[b"one two three"]], object), "words", "texts")


# --- forms of arguments and results ---


class TakesDictionary(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"total": tensors["a"] + tensors["b"], "difference": tensors["a"] - tensors["b"]}


def test_one_dictionary(loader, config):
    loader.script(TakesDictionary())
    written = config(
        [("b", "FP32", 1), ("a", "FP32", 1)], [("difference", "FP32", 1), ("total", "FP32", 1)]
    )
    executor = loader.executor(written)
    inputs = {"a": np.float32([5]), "b": np.float32([3])}
    assert [r.tolist() for r in executor.run(inputs, ["difference", "total"])] == [[2], [8]]
    assert [r.tolist() for r in executor.run(inputs, ["total"])] == [[8]]


class Pair(NamedTuple):
    total: torch.Tensor
    difference: torch.Tensor


class GivesPair(torch.nn.Module):
    def forward(self, a, b) -> Pair:
        return Pair(a + b, a - b)


class GivesList(torch.nn.Module):
    def forward(self, a, b) -> list[torch.Tensor]:
        return [a + b, a - b]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (GivesPair(), ("difference", "total")),
        (GivesPair(), ("OUTPUT__1", "OUTPUT__0")),
        (GivesList(), ("OUTPUT__1", "OUTPUT__0")),
        (GivesList(), ("RESULT[1]", "RESULT[0]")),
        (AddSub(), ("RESULT[1]", "RESULT[0]")),
    ],
)
def test_forms_of_results(loader, config, model, names):
    loader.script(model)
    inputs = ("left", "right") if isinstance(model, AddSub) else ("a", "b")
    written = config([(name, "FP32", 1) for name in inputs], [(name, "FP32", 1) for name in names])
    values = dict(zip(inputs, (np.float32([5]), np.float32([3])), strict=True))
    results = loader.executor(written).run(values, names)
    assert [result.tolist() for result in results] == [[2], [8]]


def test_results_in_the_order_of_the_config(loader, config, caplog):
    loader.script(AddSub())
    written = config(
        [("first", "FP32", 1), ("second", "FP32", 1)], [("sum", "FP32", 1), ("minus", "FP32", 1)]
    )
    values = {"second": np.float32([3]), "first": np.float32([5])}
    results = loader.executor(written).run(values, ["minus", "sum"])
    assert [result.tolist() for result in results] == [[2], [8]]
    assert len([record for record in caplog.records if "in the order" in record.message]) == 2


class Optionals(torch.nn.Module):
    def forward(self, x, bias: torch.Tensor | None = None, factor: float = 2.0):
        return x * factor if bias is None else x * factor + bias


def test_an_optional_input(loader, config):
    from dataclasses import replace

    loader.script(Optionals())
    written = config([("x", "FP32", 1), ("bias", "FP32", 1)], [("y", "FP32", 1)])
    optional = replace(written.input[1], optional=True)
    executor = loader.executor(replace(written, input=(written.input[0], optional)))
    assert only(executor, np.float32([3])).tolist() == [6]
    result = executor.run({"x": np.float32([3]), "bias": np.float32([1])}, ["y"])
    assert result[0].tolist() == [7]


def test_eager_forms(loader, config):
    loader.eager(
        """
class M(torch.nn.Module):
    def forward(self, **tensors):
        return {"y": sum(tensors.values()), "n": len(tensors)}
"""
    )
    written = config([("a", "FP32", 1), ("b", "FP32", 1)], [("n", "INT32", 1), ("y", "FP32", 1)])
    results = loader.executor(written).run({"a": np.float32([1]), "b": np.float32([2])}, ["n", "y"])
    assert [result.tolist() for result in results] == [[2], [3]]


def test_any_number_of_arguments(loader, config):
    loader.eager(
        "class M(torch.nn.Module):\n    def forward(self, *xs):\n        return xs[0] - xs[1]\n"
    )
    written = config([("b__1", "FP32", 1), ("a__0", "FP32", 1)], [("y", "FP32", 1)])
    values = {"a__0": np.float32([5]), "b__1": np.float32([3])}
    assert loader.executor(written).run(values, ["y"])[0].tolist() == [2]


class Total(torch.nn.Module):
    def forward(self, x):
        return x.sum()


def test_scalars(loader, config):
    loader.script(Total())
    written = config([("x", "FP32", 3)], [("y", "FP32", 1)])
    assert only(loader.executor(written), np.float32([1, 2, 3])).tolist() == [6]


def test_a_scalar_input(loader):
    loader.export(Twice2(), torch.tensor(3.0), batch=False)
    completed = loader.complete()
    assert completed.input[0].dims == (1,)
    assert only(loader.executor(completed), np.float32([4]), "OUTPUT__0").tolist() == [8]


class Twice2(torch.nn.Module):
    def forward(self, x):
        return x * 2


# --- what models may do ---


class InPlace(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


@pytest.mark.parametrize("form", ["script", "export", "eager"])
def test_a_request_is_never_written_to(loader, config, form):
    if form == "script":
        loader.script(InPlace())
    elif form == "export":
        loader.export(InPlace(), torch.zeros(2, 2))
    else:
        loader.eager(
            "class M(torch.nn.Module):\n    def forward(self, x):\n        return x.add_(1)\n"
        )
    executor = loader.executor(config([("x", "FP32", 2)], [("y", "FP32", 2)], 8))
    received = bytes(8)
    assert only(executor, np.frombuffer(received, np.float32).reshape(1, 2)).tolist() == [[1, 1]]
    assert received == bytes(8)


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True)
        )

    def forward(self, x):
        return self.layers(x)


def test_a_model_that_does_not_write_to_its_inputs_gets_no_copy(loader, config):
    loader.script(Plain())
    loaded = loader.load(config([("x", "FP32", 3, 5, 5)], [("y", "FP32", 4, 3, 3)], 8))
    assert loaded.shares_weights
    program = next(iter(loaded._programs.values()))
    assert (program.mutates_inputs, program.stateful) == (False, False)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(x.sum())
        return self.count


def test_a_state_is_an_instance_s_own_and_its_results_stay(loader, config):
    loader.script(Counter())
    loaded = loader.load(
        config([("x", "FP32", 1)], [("y", "FP32", 1)]), placements=[ON_CPU, ON_CPU]
    )
    assert not loaded.shares_weights
    assert not loaded.may_run_on_loop
    one, two = loaded.executor(ON_CPU), loaded.executor(ON_CPU)
    first = only(one, np.float32([1]))
    second = only(one, np.float32([1]))
    assert (first.tolist(), second.tolist()) == ([1], [2])
    assert only(two, np.float32([1])).tolist() == [1]


def test_sharing_can_be_switched_on(loader, config):
    loader.script(Counter())
    loaded = loader.load(
        config([("x", "FP32", 1)], [("y", "FP32", 1)]), parameters={"ENABLE_WEIGHT_SHARING": "true"}
    )
    one, two = loaded.executor(ON_CPU), loaded.executor(ON_CPU)
    only(one, np.float32([1]))
    assert only(two, np.float32([1])).tolist() == [2]


def test_instances_share_stateless_parts(loader, config):
    loader.export(torch.nn.Linear(4, 4), torch.zeros(2, 4))
    loaded = loader.load(placements=[ON_CPU, ON_CPU])
    assert loaded.shares_weights
    assert loaded.may_run_on_loop
    loaded.executor(ON_CPU)
    loaded.executor(ON_CPU)
    assert len(loaded._programs) == 1


class Fails(torch.nn.Module):
    def forward(self, x):
        if bool(x.sum() < 0):
            raise RuntimeError("negative")
        return x


def test_an_error_in_the_model(loader, config):
    loader.script(Fails())
    executor = loader.executor(config([("x", "FP32", 2)], [("y", "FP32", 2)], 8))
    with pytest.raises(BackendFailure) as raised:
        only(executor, np.float32([[-1, -1]]))
    assert raised.value.message == (
        "PyTorch execute failure: model 'm' failed: RuntimeError: negative"
    )
    assert only(executor, np.float32([[1, 1]])).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("body", "datatype", "text"),
    [
        (
            "return x.double()",
            "FP32",
            "configuration expects datatype TYPE_FP32 for output 'y', mo",
        ),
        ("return None", "FP32", "output 'y' of model 'm' is None"),
        ("return 'text'", "FP32", "output 'y' of model 'm' is a str"),
        ("return x", "STRING", "configuration expects datatype TYPE_STRING"),
        ("return ()", "FP32", "model provides 0. The model has no outputs"),
        ("return [1, 'x']", "STRING", "output 'y' of model 'm' is a int"),
    ],
)
def test_results_that_cannot_be(loader, config, body, datatype, text):
    loader.eager(f"class M(torch.nn.Module):\n    def forward(self, x):\n        {body}\n")
    executor = loader.executor(config([("x", "FP32", 1)], [("y", datatype, 1)]))
    with pytest.raises((BackendFailure, InvalidArgument)) as raised:
        only(executor, np.float32([1]))
    assert text in raised.value.message


def test_an_instance_that_is_closed(loader, config):
    loader.script(Twice())
    executor = loader.executor(config([("x", "FP32", 2)], [("y", "FP32", 4)]))
    executor.close()
    with pytest.raises(BackendFailure, match="closed"):
        only(executor, np.float32([1, 2]))


# --- parameters ---


def test_inference_mode(loader, config):
    loader.eager(
        """
class M(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.is_inference_mode_enabled(), torch.is_grad_enabled()])
"""
    )
    written = config([("x", "FP32", 1)], [("y", "BOOL", 2)])
    assert only(loader.executor(written), np.float32([1])).tolist() == [True, False]
    executor = loader.executor(written, parameters={"INFERENCE_MODE": "false"})
    assert only(executor, np.float32([1])).tolist() == [False, False]


def threads_of(executor):
    """How many threads the model has when it is run on a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(int(only(executor, np.float32([1]))[0])))
    thread.start()
    thread.join()
    return found[0]


def test_every_instance_has_its_own_threads(loader, config):
    loader.eager(
        """
class M(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.get_num_threads()])
"""
    )
    written = config([("x", "FP32", 1)], [("y", "INT64", 1)])
    shared = loader.executor(written, placements=[ON_CPU, ON_CPU], cores=4)
    alone = loader.executor(written, cores=4)
    chosen = loader.executor(written, parameters={"INTRA_OP_THREAD_COUNT": "3"})
    for _ in range(2):
        assert [threads_of(executor) for executor in (shared, alone, chosen)] == [2, 4, 3]
        # And on one thread, one after the other.
        assert [only(e, np.float32([1]))[0] for e in (shared, alone, chosen)] == [2, 4, 3]
    process.prepare(2, process.applied)


def test_inter_op_threads_are_everybody_s(loader, config, caplog):
    loader.script(Twice())
    written = config([("x", "FP32", 2)], [("y", "FP32", 4)])
    loader.load(written, parameters={"INTER_OP_THREAD_COUNT": "2"})
    loader.load(written, parameters={"NUM_INTEROP_THREADS": "7"})
    assert "INTER_OP_THREAD_COUNT" in caplog.text
    assert "one such number for the whole process" in caplog.text


@pytest.mark.parametrize(
    "key",
    [
        "DISABLE_OPTIMIZED_EXECUTION",
        "DISABLE_CUDNN",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
        "ENABLE_CACHE_CLEANING",
    ],
)
@pytest.mark.parametrize("value", ["true", "false"])
def test_switches_last_as_long_as_their_model_runs(loader, config, key, value):
    loader.script(Twice())
    written = config([("x", "FP32", 2)], [("y", "FP32", 4)])
    special = loader.executor(written, parameters={key: value})
    plain = loader.executor(written)
    for executor in (special, plain, special):
        assert only(executor, np.float32([1, 2])).tolist() == [1, 2, 1, 2]
    only(plain, np.float32([1, 2]))
    assert torch._C._get_cudnn_enabled()
    assert torch._C._get_graph_executor_optimize()
    assert torch._C._jit_texpr_fuser_enabled()
    if key == "DISABLE_OPTIMIZED_EXECUTION":
        only(special, np.float32([1, 2]))
        assert torch._C._get_graph_executor_optimize() is (value == "false")
        only(plain, np.float32([1, 2]))


@pytest.mark.parametrize("form", ["script", "export", "eager"])
@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_half_precision(loader, config, form, half):
    model = torch.nn.Linear(8, 4)
    if form == "script":
        loader.script(model)
    elif form == "export":
        loader.export(model, torch.zeros(2, 8))
    else:
        loader.eager(
            "Model = torch.nn.Linear\nclass M(Model):\n"
            "    def __init__(self):\n        super().__init__(8, 4)\n",
            model,
        )
    name = "input"
    written = config([(name, "FP32", 8)], [("OUTPUT__0", "FP32", 4)], 8)
    array = np.random.default_rng(0).random((2, 8), np.float32)
    exact = only(loader.executor(written), array, "OUTPUT__0", name)
    result = only(
        loader.executor(written, parameters={"HALF_PRECISION": half}), array, "OUTPUT__0", name
    )
    assert result.dtype == np.float32
    assert not np.array_equal(result, exact)  # it was rounded on the way
    assert np.allclose(result, exact, atol=0.05)


def test_channels_last(loader, config):
    loader.script(Plain())
    written = config([("x", "FP32", 3, 8, 8)], [("y", "FP32", 4, 6, 6)], 8)
    array = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    expected = only(loader.executor(written), array)
    result = only(loader.executor(written, parameters={"CHANNELS_LAST": "true"}), array)
    assert np.allclose(result, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["export", "eager"])
def test_torch_compile(loader, config, form):
    if form == "export":
        loader.export(Twice2(), torch.zeros(2, 3))
    else:
        loader.eager("class M(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n")
    written = config([("x", "FP32", 3)], [("OUTPUT__0", "FP32", 3)], 8)
    loaded = loader.load(
        written,
        parameters={"TORCH_COMPILE_OPTIONAL_PARAMETERS": '{"backend": "eager", "dynamic": true}'},
    )
    assert not loaded.may_run_on_loop
    executor = loaded.executor(ON_CPU)
    assert only(executor, np.float32([[1, 2, 3]]), "OUTPUT__0").tolist() == [[2, 4, 6]]


def test_torch_compile_of_torchscript(loader, config, caplog):
    loader.script(Twice())
    loader.load(
        config([("x", "FP32", 2)], [("y", "FP32", 4)]), parameters={"ENABLE_TORCH_COMPILE": "true"}
    )
    assert (
        "ENABLE_TORCH_COMPILE has no effect: the model (TorchScript) is compiled already"
        in caplog.text
    )


def test_a_module_that_picks_its_own_device(loader, config):
    loader.eager("class M(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n")
    on_its_own = Placement("KIND_MODEL")
    loaded = loader.load(config([("x", "FP32", 1)], [("y", "FP32", 1)]), placements=[on_its_own])
    assert only(loaded.executor(on_its_own), np.float32([4])).tolist() == [8]


def test_a_sequence_s_controls_are_inputs_too(loader, config):
    from dataclasses import replace

    from shoal.config.model import ModelSequenceBatching

    loader.script(AddSub())
    control = ModelSequenceBatching.Control(kind="CONTROL_SEQUENCE_START", fp32_false_true=(0, 1))
    sequences = ModelSequenceBatching(
        control_input=(ModelSequenceBatching.ControlInput(name="START__1", control=(control,)),)
    )
    written = config([("INPUT__0", "FP32", 1)], [("OUTPUT__0", "FP32", 1)], 4)
    executor = loader.executor(replace(written, sequence_batching=sequences))
    values = {"INPUT__0": np.float32([[5]]), "START__1": np.float32([[1]])}
    assert executor.run(values, ["OUTPUT__0"])[0].tolist() == [[6]]


def test_a_missing_input_of_an_export(loader, config):
    from dataclasses import replace

    loader.export(AddSub(), torch.zeros(2, 1), torch.zeros(2, 1))
    written = config([("left", "FP32", 1), ("right", "FP32", 1)], [("OUTPUT__0", "FP32", 1)], 4)
    optional = replace(written.input[1], optional=True)
    executor = loader.executor(replace(written, input=(written.input[0], optional)))
    with pytest.raises(InvalidArgument, match="cannot run without 'right'"):
        executor.run({"left": np.float32([[1]])}, ["OUTPUT__0"])


def test_cuda_graphs_want_a_gpu(loader, config):
    loader.script(Twice())
    written = config([("x", "FP32", 2)], [("y", "FP32", 4)], 8)
    executor = loader.executor(written, parameters={"CUDA_GRAPHS": "true"})  # no effect on a CPU
    assert only(executor, np.float32([[1, 2]])).shape == (1, 4)
    with pytest.raises(ConfigError):
        loader.load(written, parameters={"CUDA_GRAPHS": "9"})

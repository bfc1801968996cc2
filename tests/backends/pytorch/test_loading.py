"""Every form a PyTorch model comes in: telling them apart, completing configs, and refusals."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import Placement  # noqa: E402
from shoal.backends.pytorch.archive import ProgramKind  # noqa: E402
from shoal.config.model import ModelConfig  # noqa: E402
from shoal.errors import ConfigError, InvalidArgument, NotFound, ShoalError  # noqa: E402
from tests.support.torch_models import AddSub  # noqa: E402

ON_CPU = Placement("KIND_CPU")
ADD_SUB_EAGER = """
class AddSub(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right
"""
BOTH = [("INPUT__0", "FP32", 3), ("INPUT__1", "FP32", 3)]
RESULTS = [("OUTPUT__0", "FP32", 3), ("OUTPUT__1", "FP32", 3)]


def shapes(tensors):
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in tensors}


def check_add_sub(executor, names=("INPUT__0", "INPUT__1")):
    left, right = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[1, 1, 1], [2, 2, 2]])
    difference, total = executor.run(
        dict(zip(names, (left, right), strict=True)), ["OUTPUT__1", "OUTPUT__0"]
    )
    assert np.array_equal(total, left + right)
    assert np.array_equal(difference, left - right)


# --- the forms ---


def test_torchscript(loader, config):
    loader.script(AddSub())
    loaded = loader.load(config(BOTH, RESULTS, 8))
    assert loaded.kind is ProgramKind.SCRIPT
    check_add_sub(loaded.executor(ON_CPU))


def test_a_torch_export_program(loader, config):
    loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    loaded = loader.load(config(BOTH, RESULTS, 8))
    assert loaded.kind is ProgramKind.EXPORTED
    check_add_sub(loaded.executor(ON_CPU))


def test_a_module_in_python(loader, config):
    loader.eager(ADD_SUB_EAGER)
    loaded = loader.load(config(BOTH, RESULTS, 8))
    assert loaded.kind is ProgramKind.EAGER
    check_add_sub(loaded.executor(ON_CPU))


def test_a_module_in_python_with_weights(loader, config):
    text = """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.factor
"""

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.full((1,), 5.0))

    loader.eager(text, Scale())
    for runtime in ("", "model.py"):
        loaded = loader.load(config([("x", "FP32", 2)], [("y", "FP32", 2)], runtime=runtime))
        assert loaded.kind is ProgramKind.EAGER
        (result,) = loaded.executor(ON_CPU).run({"x": np.float32([1, 2])}, ["y"])
        assert result.tolist() == [5, 10]


def test_the_runtime_decides_between_script_and_module(loader, config):
    loader.script(AddSub())
    (loader.version_folder / "model.py").write_text("import torch\n" + ADD_SUB_EAGER)
    assert loader.load(config(BOTH, RESULTS)).kind is ProgramKind.SCRIPT
    loader.script_file.unlink()
    torch.save({}, loader.script_file)
    assert loader.load(config(BOTH, RESULTS, runtime="model.py")).kind is ProgramKind.EAGER


def test_the_contents_decide_and_not_the_name(loader, config):
    loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    loader.exported_file.rename(loader.script_file)
    assert loader.load(config(BOTH, RESULTS, 8)).kind is ProgramKind.EXPORTED


def test_another_name(loader, config):
    loader.script(AddSub()).rename(loader.version_folder / "net.pt")
    loaded = loader.load(config(BOTH, RESULTS, default_model_filename="net.pt"))
    assert loaded.kind is ProgramKind.SCRIPT


def test_several_classes(loader, config, caplog):
    loader.eager(
        """
class Block(torch.nn.Module):
    def forward(self, x):
        return x + 1

class Whole(torch.nn.Module):
    def forward(self, x):
        return x + 2
"""
    )
    one = config([("x", "FP32", 1)], [("y", "FP32", 1)])
    (result,) = loader.executor(one).run({"x": np.float32([0])}, ["y"])
    assert result.tolist() == [1]
    assert "several module classes (Block, Whole): Block is served" in caplog.text
    executor = loader.executor(one, parameters={"MODEL_CLASS": "Whole"})
    assert executor.run({"x": np.float32([0])}, ["y"])[0].tolist() == [2]
    with pytest.raises(ConfigError, match=r"has no module class 'Net'\. It has: Block, Whole"):
        loader.load(one, parameters={"MODEL_CLASS": "Net"})


def test_modules_in_python_do_not_meet(tmp_path, loader, config):
    loader.eager("from helper import VALUE\n" + ADD_SUB_EAGER)
    (loader.version_folder / "helper.py").write_text("VALUE = 1\n")
    loader.load(config(BOTH, RESULTS))
    import sys

    assert "helper" not in sys.modules


# --- completing a config ---


def test_an_export_declares_everything(loader):
    loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    completed = loader.complete()
    assert completed.max_batch_size == 4
    assert completed.dynamic_batching is not None
    assert shapes(completed.input) == {"left": ("TYPE_FP32", [3]), "right": ("TYPE_FP32", [3])}
    assert shapes(completed.output) == {
        "OUTPUT__0": ("TYPE_FP32", [3]),
        "OUTPUT__1": ("TYPE_FP32", [3]),
    }
    check_add_sub(loader.executor(completed), ("left", "right"))
    assert loader.complete(settings={"default-max-batch-size": "16"}).max_batch_size == 16


class Pool(torch.nn.Module):
    def forward(self, tokens, weight):
        return {"mean": (tokens * weight).mean(1), "first": tokens[:, 0], "count": tokens.sum(1)}


def test_variable_dimensions_and_names_of_outputs(loader):
    batch, length = torch.export.Dim("batch", max=6), torch.export.Dim("length")
    shape = {0: batch, 1: length}
    loader.export(Pool(), torch.zeros(2, 5, 4), torch.zeros(2, 5, 1), dynamic_shapes=(shape, shape))
    completed = loader.complete()
    assert completed.max_batch_size == 4
    assert loader.complete(settings={"default-max-batch-size": "9"}).max_batch_size == 6
    assert shapes(completed.input) == {
        "tokens": ("TYPE_FP32", [-1, 4]),
        "weight": ("TYPE_FP32", [-1, 1]),
    }
    assert sorted(shapes(completed.output)) == ["count", "first", "mean"]
    loaded = loader.load(completed)
    assert len(set(loaded.axis_names["tokens"][:2])) == 2
    assert loaded.axis_names["tokens"][1] == loaded.axis_names["weight"][1]
    first, mean = loaded.executor(ON_CPU).run(
        {"tokens": np.ones((3, 7, 4), np.float32), "weight": np.ones((3, 7, 1), np.float32)},
        ["first", "mean"],
    )
    assert first.shape == mean.shape == (3, 4)
    with pytest.raises(ConfigError, match="exported for batches of at most 6, not 8"):
        loader.load(ModelConfig(max_batch_size=8))


def test_an_export_without_a_batch(loader):
    loader.export(AddSub(), torch.zeros(3), torch.zeros(3), batch=False)
    completed = loader.complete()
    assert completed.max_batch_size == 0
    assert shapes(completed.input) == {"left": ("TYPE_FP32", [3]), "right": ("TYPE_FP32", [3])}


class TwoLengths(torch.nn.Module):
    def forward(self, left, right):
        return left * 2, right * 2


def test_first_dimensions_that_differ_are_no_batch(loader):
    one, two = torch.export.Dim("one"), torch.export.Dim("two")
    loader.export(
        TwoLengths(), torch.zeros(2, 3), torch.zeros(4, 3), dynamic_shapes=({0: one}, {0: two})
    )
    completed = loader.complete()
    assert completed.max_batch_size == 0
    assert shapes(completed.input)["left"] == ("TYPE_FP32", [-1, 3])


def test_one_side_is_written(loader, config):
    loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    completed = loader.complete(config([("b__1", "FP32", 3), ("a__0", "FP32", 3)], batch=2))
    assert completed.max_batch_size == 2
    assert [tensor.name for tensor in completed.input] == ["b__1", "a__0"]
    assert sorted(shapes(completed.output)) == ["OUTPUT__0", "OUTPUT__1"]


def test_a_traced_model_is_learned_from_its_example(loader):
    loader.trace(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    completed = loader.complete()
    assert completed.max_batch_size == 4
    assert shapes(completed.input) == {"left": ("TYPE_FP32", [3]), "right": ("TYPE_FP32", [3])}
    assert sorted(shapes(completed.output)) == ["OUTPUT__0", "OUTPUT__1"]
    check_add_sub(loader.executor(completed), ("left", "right"))


class Flat(torch.nn.Module):
    def forward(self, x):
        return x.reshape(6).to(torch.int64)


def test_a_model_traced_without_a_batch(loader):
    loader.trace(Flat(), torch.zeros(2, 3))
    completed = loader.complete()
    assert completed.max_batch_size == 0
    assert shapes(completed.input) == {"x": ("TYPE_FP32", [2, 3])}
    assert shapes(completed.output) == {"OUTPUT__0": ("TYPE_INT64", [6])}


@pytest.mark.parametrize("form", ["script", "eager"])
def test_outputs_are_learned_by_running(loader, config, form):
    if form == "script":
        loader.script(AddSub())
    else:
        loader.eager(ADD_SUB_EAGER)
    completed = loader.complete(
        config([("left", "FP16", 3, -1), ("right", "FP16", 3, -1)], batch=8)
    )
    assert completed.max_batch_size == 8
    assert shapes(completed.output) == {
        "OUTPUT__0": ("TYPE_FP16", [3, -1]),
        "OUTPUT__1": ("TYPE_FP16", [3, -1]),
    }


def test_outputs_that_cannot_be_learned(loader, config):
    loader.eager("class M(torch.nn.Module):\n    def forward(self, x):\n        return x[100]\n")
    with pytest.raises(ConfigError, match=r"running it on zeros failed \(.*\)\. Write output"):
        loader.complete(config([("x", "FP32", 3)]))


def test_a_script_does_not_declare_its_inputs(loader):
    loader.script(AddSub())
    with pytest.raises(ConfigError) as raised:
        loader.complete()
    assert "its file (TorchScript) does not contain their types (forward takes left, right)" in str(
        raised.value
    )
    assert 'name: "right"' in raised.value.fix


# --- nested inputs and outputs ---


class Nested(torch.nn.Module):
    def forward(self, a, options: dict[str, torch.Tensor], n: int, *, scale):
        return {"sum": a + options["p"], "more": (a * scale, options["q"] * n)}


def exported_nested(loader):
    size = torch.export.Dim("batch")
    row = {0: size}
    a, p, q, scale = (torch.zeros(2, 3) for _ in range(4))  # one of each: they are told apart
    with torch.no_grad():
        program = torch.export.export(
            Nested(),
            (a, {"p": p, "q": q}, 3),
            {"scale": scale},
            dynamic_shapes={"a": row, "options": {"p": row, "q": row}, "n": None, "scale": row},
        )
    torch.export.save(program, loader.exported_file)


@pytest.mark.filterwarnings("ignore")
def test_nested_arguments(loader):
    exported_nested(loader)
    completed = loader.complete()
    assert sorted(shapes(completed.input)) == ["ARGS[1][p]", "ARGS[1][q]", "a", "scale"]
    assert sorted(shapes(completed.output)) == ["OUTPUT__1", "OUTPUT__2", "sum"]
    values = {
        name: np.full((1, 3), number, np.float32)
        for name, number in {"a": 1, "ARGS[1][p]": 10, "ARGS[1][q]": 100, "scale": 7}.items()
    }
    results = loader.executor(completed).run(values, ["sum", "OUTPUT__1", "OUTPUT__2"])
    assert [result[0, 0] for result in results] == [11, 7, 300]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3"], ["OUTPUT__0", "OUTPUT__2"]),
        (
            ["ARGS[0]", "ARGS[1][p]", "ARGS[1][q]", "KWARGS[scale]"],
            ["RESULT[sum]", "RESULT[more][1]"],
        ),
    ],
)
def test_nested_arguments_by_triton_names(loader, config, inputs, outputs):
    exported_nested(loader)
    written = config(
        [(name, "FP32", 3) for name in inputs], [(name, "FP32", 3) for name in outputs], 8
    )
    values = {
        name: np.full((1, 3), number, np.float32)
        for name, number in zip(inputs, (1, 10, 100, 7), strict=True)
    }
    results = loader.executor(written).run(values, outputs)
    assert [result[0, 0] for result in results] == [11, 300]


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n rubbish", "damaged or of another format"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "Run git lfs pull"),
    ],
)
@pytest.mark.parametrize("filename", ["model.pt", "model.pt2"])
def test_a_file_that_is_none(loader, config, content, text, filename):
    (loader.version_folder / filename).write_bytes(content)
    with pytest.raises(InvalidArgument) as raised:
        loader.load(config(BOTH, RESULTS))
    assert f"'m/1/{filename}' is not a PyTorch model" in raised.value.message
    assert text in raised.value.message


def test_a_damaged_archive(loader, config):
    loader.script(AddSub())
    content = bytearray(loader.script_file.read_bytes())
    start = content.index(b"AddSub")
    content[start : start + 200] = b"x" * 200
    loader.script_file.write_bytes(bytes(content))
    with pytest.raises(InvalidArgument, match=r"cannot load 'm/1/model.pt'"):
        loader.load(config(BOTH, RESULTS))


@pytest.mark.parametrize("what", [{"weight": torch.zeros(1)}, AddSub()], ids=["weights", "module"])
def test_what_torch_save_wrote(loader, config, what):
    torch.save(what, loader.script_file)
    with pytest.raises(InvalidArgument) as raised:
        loader.load(config(BOTH, RESULTS))
    assert "holds weights or a pickled object" in raised.value.message
    assert "Put a model.py with the nn.Module class beside" in raised.value.message


def test_no_file(loader, config):
    with pytest.raises(NotFound, match=r"unable to find 'model.pt' or .*Put the PyTorch model th"):
        loader.load(config(BOTH, RESULTS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("x = 1", "has no subclass of torch.nn.Module"),
        (
            "class M(torch.nn.Module):\n    def __init__(self, size):\n        pass\n",
            "the class M of 'm/1/model.py' cannot be made without arguments: TypeError",
        ),
    ],
)
def test_a_module_that_cannot_be(loader, config, text, expected):
    loader.eager(text)
    with pytest.raises(InvalidArgument) as raised:
        loader.load(config(BOTH, RESULTS))
    assert expected in raised.value.message


def test_weights_of_another_module(loader, config):
    loader.eager(ADD_SUB_EAGER, torch.nn.Linear(2, 2))
    with pytest.raises(
        InvalidArgument, match=r"'m/1/model.pt' does not hold the weights of AddSub"
    ):
        loader.load(config(BOTH, RESULTS))


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (BOTH[:1], RESULTS, "its input 'right' is missing in the configuration"),
        ([*BOTH, ("INPUT__2", "FP32", 3)], RESULTS, "This model has 2 inputs"),
        (BOTH, [("OUTPUT__2", "FP32", 3)], "This model has 2 outputs"),
    ],
)
@pytest.mark.parametrize("form", ["script", "export"])
def test_names_that_do_not_fit(loader, config, inputs, outputs, text, form):
    if form == "script":
        loader.script(AddSub())
    else:
        loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ConfigError) as raised:
        loader.load(config(inputs, outputs, 8))
    if form == "script" or "missing" not in text:
        assert text in raised.value.message
    assert raised.value.fix


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([("left", "INT32", 3), ("right", "FP32", 3)], "expects datatype TYPE_INT32 for input 'le"),
        ([("left", "FP32", 4), ("right", "FP32", 3)], "the model expects 2 dimensions"),
    ],
)
def test_a_config_that_contradicts_the_export(loader, config, inputs, text):
    loader.export(AddSub(), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ConfigError) as raised:
        loader.load(config(inputs, RESULTS, 8))
    assert text in raised.value.message


class TakesNumber(torch.nn.Module):
    def forward(self, x, n: int):
        return x * n


def test_an_argument_no_request_can_carry(loader, config):
    loader.script(TakesNumber())
    with pytest.raises(ConfigError, match="the argument 'n' of forward is int, which no request"):
        loader.load(config([("x", "FP32", 3), ("n", "INT64", 1)], [("y", "FP32", 3)]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it can")
def test_no_gpu(loader, config):
    loader.script(AddSub())
    with pytest.raises(ConfigError) as raised:
        loader.load(config(BOTH, RESULTS), placements=[Placement("KIND_GPU")])
    assert "cannot use the GPU" in raised.value.message
    assert "KIND_CPU" in raised.value.fix


def test_an_error_leaves_nothing_behind(loader, config):
    loader.eager("raise RuntimeError('no')")
    import sys

    before = set(sys.modules)
    with pytest.raises(ShoalError):
        loader.load(config(BOTH, RESULTS))
    assert not [name for name in set(sys.modules) - before if name.startswith("shoal_python")]

"""Running models: every datatype, awkward arrays, optional inputs, failures, many threads."""

from __future__ import annotations

import ctypes
import threading

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from shoal.backends.base import ArrayForm, Placement
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
from shoal.core import dtypes
from shoal.errors import BackendFailure, ConfigError, InvalidArgument
from tests.support import onnx_models as models

NUMBERS = [datatype for datatype in dtypes.ALL if datatype not in (dtypes.BYTES, dtypes.BOOL)]
ON_CPU = Placement("KIND_CPU")


def strings(*elements, shape=None):
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def sample(datatype, shape):
    """Every bit pattern has to come through, so take many."""
    count = int(np.prod(shape))
    if datatype is dtypes.BYTES:
        return strings(*(f"é{i}".encode() for i in range(count)), shape=shape)
    if datatype is dtypes.BOOL:
        return (np.arange(count) % 2 == 0).reshape(shape)
    raw = np.random.default_rng(1).bytes(count * datatype.itemsize)
    return np.frombuffer(raw, datatype.numpy).reshape(shape)  # read-only, as from the network


def same(left, right):
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and left.tobytes() == right.tobytes()
    )


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_every_datatype_comes_back_unchanged(loader, datatype):
    executor = loader.executor(models.identity(datatype, dims=(-1, 2)))
    for shape in [(1, 3, 2), (4, 1, 2), (2, 0, 2)]:
        array = sample(datatype, shape)
        (result,) = executor.run({"INPUT0": array}, ["OUTPUT0"])
        assert same(result, array)
        assert not np.shares_memory(result, array)


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_scalars_of_every_datatype(loader, datatype):
    executor = loader.executor(models.scalar(datatype))
    array = sample(datatype, (1,))
    (result,) = executor.run({"INPUT0": array}, ["OUTPUT0"])
    assert same(result, array)  # [1] in, [1] out, as the config has it


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_awkward_memory(loader, datatype):
    executor = loader.executor(models.identity(datatype, dims=(3,)))
    across = sample(datatype, (3, 2)).T
    assert not across.flags.c_contiguous
    every_other = sample(datatype, (4, 3))[::2]
    arrays = [across, every_other]
    if datatype is not dtypes.BYTES:
        plain = sample(datatype, (2, 3))
        shifted = np.frombuffer(b"x" + plain.tobytes(), datatype.numpy, offset=1).reshape(2, 3)
        arrays.append(shifted)
        assert datatype.itemsize == 1 or not shifted.flags.aligned
    for array in arrays:
        (result,) = executor.run({"INPUT0": array}, ["OUTPUT0"])
        assert result.tolist() == array.tolist() or result.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", NUMBERS, ids=str)
def test_the_model_computes_in_every_datatype(loader, datatype):
    executor = loader.executor(models.add_sub(datatype, dims=(2,)))
    kind = ml_dtypes.bfloat16 if datatype is dtypes.BF16 else datatype.numpy
    left, right = np.array([[5, 9]], kind), np.array([[2, 1]], kind)
    if datatype is dtypes.BF16:
        inputs = {"INPUT0": left.view(np.uint16), "INPUT1": right.view(np.uint16)}
    else:
        inputs = {"INPUT0": left, "INPUT1": right}
    total, difference = executor.run(inputs, ["OUTPUT0", "OUTPUT1"])
    assert total.view(kind).tolist() == [[7, 10]]
    assert difference.view(kind).tolist() == [[3, 8]]


def test_strings_are_computed_with(loader):
    executor = loader.executor(models.string_join())
    left = strings("größe".encode(), b"", b"\0", "日本".encode() * 1000, shape=(2, 2))
    right = strings(b"!", b"", b"a\0b", "🐟".encode(), shape=(2, 2))
    (result,) = executor.run({"INPUT0": left, "INPUT1": right}, ["OUTPUT0"])
    assert result.shape == (2, 2)
    joined = [a + b for a, b in zip(left.ravel(), right.ravel(), strict=True)]
    assert result.ravel().tolist() == joined
    assert all(type(element) is bytes for element in result.ravel())


def test_numbers_in_text(loader):
    executor = loader.executor(models.add_sub("BYTES", dims=(1,)))
    inputs = {"INPUT0": strings(b"12", shape=(1, 1)), "INPUT1": strings(b"-3", shape=(1, 1))}
    results = executor.run(inputs, ["OUTPUT0", "OUTPUT1"])
    assert [array.item() for array in results] == [b"9", b"15"]


def string_equality():
    """OUTPUT0 says where INPUT0 and INPUT1 hold the same bytes."""
    return models.model(
        [helper.make_node("Equal", ["INPUT0", "INPUT1"], ["OUTPUT0"])],
        inputs=[models.value(f"INPUT{i}", "BYTES", ("n",)) for i in range(2)],
        outputs=[models.value("OUTPUT0", "BOOL", ("n",))],
        opset=19,
        ir_version=9,
    )


def test_bytes_that_are_not_text_reach_the_model_where_they_can(loader):
    executor = loader.executor(string_equality(), settings={"default-max-batch-size": "0"})
    binary = strings(b"\xff\x00\x01", b"\x80\x00\x00")
    inputs = {"INPUT0": binary, "INPUT1": strings(b"\xff\x00\x01", b"\x80\x00\x01")}
    (result,) = executor.run(inputs, ["OUTPUT0"])
    assert result.tolist() == [True, False]


def test_bytes_that_are_not_text_are_refused_where_they_would_be_damaged(loader):
    executor = loader.executor(models.identity("BYTES"))
    with pytest.raises(InvalidArgument, match="'INPUT0' is not UTF-8 text"):
        executor.run({"INPUT0": strings(b"\xff", b"ab", shape=(1, 2))}, ["OUTPUT0"])
    with pytest.raises(BackendFailure, match="computed a string that is not UTF-8"):
        executor.run({"INPUT0": strings(b"\xff\xfe", shape=(1, 1))}, ["OUTPUT0"])


def test_strings_and_bf16_in_one_model(loader):
    loader.save(models.mixed_strings_and_bf16())
    with pytest.raises(ConfigError, match=r"output\[1\]: .*BF16 output 'OUTPUT1'.*takes strings"):
        loader.load()
    output = ModelOutput(name="OUTPUT0", data_type="TYPE_STRING", dims=(-1,))
    executor = loader.load(ModelConfig(max_batch_size=4, output=(output,))).executor(ON_CPU)
    inputs = {"INPUT0": strings(b"a", shape=(1, 1)), "INPUT1": np.ones((1, 1), np.uint16)}
    assert executor.run(inputs, ["OUTPUT0"])[0].tolist() == [[b"a"]]


def test_outputs_come_in_the_requested_order(loader):
    executor = loader.executor(models.add_sub(dims=(1,)))
    inputs = {"INPUT0": np.array([[5]], np.int32), "INPUT1": np.array([[2]], np.int32)}
    assert [a.item() for a in executor.run(inputs, ["OUTPUT1", "OUTPUT0"])] == [3, 7]
    assert [a.item() for a in executor.run(inputs, ("OUTPUT1",))] == [3]


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_results_outlive_the_next_run_and_the_model(loader, datatype):
    executor = loader.executor(models.identity(datatype, dims=(512,)))
    first, second = sample(datatype, (2, 512)), sample(datatype, (2, 512))[::-1]
    (kept,) = executor.run({"INPUT0": first}, ["OUTPUT0"])
    executor.run({"INPUT0": second}, ["OUTPUT0"])
    executor.close()
    loader.close()
    assert same(kept, first)


def form(name, array):
    return ArrayForm(name, array.shape, array.dtype)


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_a_bound_run_gives_the_same(loader, datatype):
    executor = loader.executor(models.identity(datatype, dims=(8,)))
    arrays = [sample(datatype, (2, 8)), sample(datatype, (2, 8))[::-1].copy()]
    run = executor.bind([form("INPUT0", arrays[0])], [form("OUTPUT0", arrays[0])])
    if datatype in (dtypes.BYTES, dtypes.BF16):
        assert run is None
        return
    kept = [run(array.tobytes()) for array in arrays]
    assert kept == [array.tobytes() for array in arrays]


def test_bound_outputs_come_in_their_order(loader):
    executor = loader.executor(models.add_sub(dims=(1,)))
    array = np.array([[5]], np.int32)
    inputs = [form("INPUT1", array), form("INPUT0", array)]
    run = executor.bind(inputs, [form("OUTPUT1", array), form("OUTPUT0", array)])
    assert np.frombuffer(run(np.array([2, 5], np.int32).tobytes()), np.int32).tolist() == [3, 7]
    assert executor.bind(inputs[:1], [form("OUTPUT0", array)]) is None  # INPUT0 is required


@pytest.mark.parametrize(("width", "pieces"), [(3, 2), (8, 1)])
def test_bound_numbers_lie_at_multiples_of_their_size(loader, width, pieces):
    """Those of an input behind bytes would not, if all inputs were in one piece of memory."""
    kinds = ("INPUT", "OUTPUT")
    tensors = [
        [models.value(f"{kind}{i}", ("UINT8", "FP64")[i], ("batch", width)) for i in range(2)]
        for kind in kinds
    ]
    nodes = [helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"]) for i in range(2)]
    executor = loader.executor(models.model(nodes, inputs=tensors[0], outputs=tensors[1]))
    arrays = [np.arange(width, dtype=dtype)[None] for dtype in (np.uint8, np.float64)]
    run = executor.bind(*[[form(f"{kind}{i}", arrays[i]) for i in range(2)] for kind in kinds])
    contents = b"".join([array.tobytes() for array in arrays])
    assert run(contents) == run(memoryview(contents)) == contents
    targets, results, *_ = run.__defaults__
    assert len(targets) == len(results) == pieces
    memory, place = targets[-1]
    assert (ctypes.addressof(memory) + width - place.start) % 8 == 0


def test_what_is_not_bound(loader):
    """An output of any size, whose contents decide about it."""
    output = ModelOutput(name="OUTPUT0", data_type="TYPE_FP32", dims=(-1, 2))
    given = ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=(-1, 2))
    config = ModelConfig(max_batch_size=4, input=(given,), output=(output,))
    executor = loader.executor(models.unknown_rank(), config)
    array = np.zeros((1, 3, 2), np.float32)
    assert executor.bind([form("INPUT0", array)], [form("OUTPUT0", array)]) is None


def test_a_bound_run_fails_as_the_model_does(loader, capfd):
    executor = loader.executor(models.picker(4))
    (result,) = executor.run({"INPUT0": np.array([[3]])}, ["OUTPUT0"])
    run = executor.bind([form("INPUT0", np.array([[3]]))], [form("OUTPUT0", result)])
    with pytest.raises(Exception, match="must be within the inclusive range"):
        run(np.array([[9]]).tobytes())
    assert run(np.array([[2]]).tobytes()) == np.array([[20]], result.dtype).tobytes()
    assert capfd.readouterr() == ("", "")


def test_a_shape_that_was_not_declared(loader):
    output = ModelOutput(name="OUTPUT0", data_type="TYPE_FP32", dims=(-1, 2))
    given = ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=(-1, 2))
    config = ModelConfig(max_batch_size=4, input=(given,), output=(output,))
    executor = loader.executor(models.unknown_rank(), config)
    array = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert same(executor.run({"INPUT0": array}, ["OUTPUT0"])[0], array)


@pytest.mark.parametrize(
    ("built", "size"), [(models.default_input(), 1), (models.optional_input(), 2)]
)
def test_optional_inputs(loader, built, size):
    bias = ModelInput(name="BIAS", data_type="TYPE_FP32", dims=(-1,), optional=True)
    given = ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=(2,))
    executor = loader.executor(built, ModelConfig(input=(given, bias)))
    array = np.array([1, 2], np.float32)
    with_bias = {"INPUT0": array, "BIAS": np.full(size, 5, np.float32)}
    assert executor.run(with_bias, ["OUTPUT0"])[0].tolist() == [6, 7]
    assert executor.run({"INPUT0": array}, ["OUTPUT0"])[0].tolist() == [11, 12]


def test_an_input_marked_optional_that_the_model_needs(loader):
    inputs = tuple(
        ModelInput(name=f"INPUT{i}", data_type="TYPE_INT32", dims=(2,), optional=True)
        for i in range(2)
    )
    executor = loader.executor(models.add_sub(dims=(2,)), ModelConfig(input=inputs))
    with pytest.raises(InvalidArgument, match="'m' cannot run without 'INPUT1': the config"):
        executor.run({"INPUT0": np.zeros((1, 2), np.int32)}, ["OUTPUT0"])


def test_failures_are_one_clean_sentence(loader, capfd):
    executor = loader.executor(models.picker(4))
    assert executor.run({"INPUT0": np.array([[3]])}, ["OUTPUT0"])[0].item() == 30
    with pytest.raises(BackendFailure) as raised:
        executor.run({"INPUT0": np.array([[9]])}, ["OUTPUT0"])
    text = raised.value.message
    assert text.startswith("model 'm' failed: Non-zero status code returned while running Gather")
    assert "idx=9 must be within the inclusive range [-4,3]" in text
    assert "ONNXRuntimeError" not in text
    assert ".cc:" not in text
    assert "\n" not in text
    assert capfd.readouterr() == ("", "")  # it is not printed as well
    assert executor.run({"INPUT0": np.array([[2]])}, ["OUTPUT0"])[0].item() == 20


def test_a_shape_the_model_cannot_take(loader):
    given = ModelInput(name="INPUT0", data_type="TYPE_INT32", dims=(-1,))
    other = ModelInput(name="INPUT1", data_type="TYPE_INT32", dims=(-1,))
    executor = loader.executor(models.add_sub(dims=(2,)), ModelConfig(input=(given, other)))
    wrong = np.zeros((1, 3), np.int32)
    with pytest.raises(BackendFailure, match=r"invalid dimensions for input: INPUT. .*Expected: 2"):
        executor.run({"INPUT0": wrong, "INPUT1": wrong}, ["OUTPUT0"])


def test_a_closed_instance_raises(loader):
    executor = loader.executor(models.identity())
    executor.close()
    with pytest.raises(BackendFailure, match="closed"):
        executor.run({"INPUT0": np.zeros((1, 1), np.float32)}, ["OUTPUT0"])


@pytest.mark.parametrize("share", ["true", "false"])
def test_two_instances_in_two_threads(loader, share):
    loader.save(models.matmul_chain(size=32, layers=3))
    loaded = loader.load(placements=[ON_CPU, ON_CPU], parameters={"share_session": share})
    start = threading.Barrier(2)
    wrong = []

    def work(executor, offset):
        start.wait()
        for i in range(100):
            row = np.full((1, 32), offset + i, np.float32)
            (result,) = executor.run({"INPUT0": row}, ["OUTPUT0"])
            if not np.allclose(result, row):
                wrong.append((offset + i, result))

    threads = [
        threading.Thread(target=work, args=(loaded.executor(ON_CPU), offset))
        for offset in (1, 1000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

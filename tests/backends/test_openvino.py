"""OpenVINO with real models: what the common suite does not ask of every format."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from shoal.backends.base import Placement
from shoal.config.model import ModelConfig, ModelInput, ModelOutput, ModelParameter
from shoal.errors import BackendFailure, ConfigError, InvalidArgument
from tests.support import onnx_models

pytest.importorskip("openvino")

from shoal.backends.openvino.backend import OpenVinoBackend
from tests.support import openvino_models

ON_CPU = Placement("KIND_CPU")


@pytest.fixture
def openvino_loader(loader):
    loader.backend = OpenVinoBackend()
    return loader


def fixed(rows=4):
    """OUTPUT0 = 2 * INPUT0, always so many rows."""
    return onnx_models.model(
        [helper.make_node("Add", ["INPUT0", "INPUT0"], ["OUTPUT0"])],
        inputs=[onnx_models.value("INPUT0", "FP32", (rows, 2))],
        outputs=[onnx_models.value("OUTPUT0", "FP32", (rows, 2))],
    )


def rows(count, width=2):
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def config(max_batch_size=4, dims=(2,), **parameters):
    return ModelConfig(
        max_batch_size=max_batch_size,
        input=(ModelInput(name="INPUT0", data_type="TYPE_FP32", dims=dims),),
        output=(ModelOutput(name="OUTPUT0", data_type="TYPE_FP32", dims=dims),),
        parameters={key: ModelParameter(text) for key, text in parameters.items()},
    )


def test_completion_reads_names_types_and_dims(openvino_loader):
    openvino_models.save_ir(onnx_models.add_sub("INT32"), openvino_loader.version_folder)
    done = openvino_loader.complete()
    assert done.max_batch_size == 4
    assert done.dynamic_batching is not None
    assert [(t.name, t.data_type, t.dims) for t in done.input] == [
        ("INPUT0", "TYPE_INT32", (16,)),
        ("INPUT1", "TYPE_INT32", (16,)),
    ]
    assert [t.name for t in done.output] == ["OUTPUT0", "OUTPUT1"]
    assert openvino_loader.complete(settings={"default-max-batch-size": "16"}).max_batch_size == 16


def test_instances_are_requests_of_one_compiled_model(openvino_loader):
    openvino_loader.save(onnx_models.add_sub("FP32"))
    places = [Placement("KIND_CPU", name=str(index)) for index in range(2)]
    loaded = openvino_loader.load(placements=places, cores=2)
    assert loaded.runtime_property("NUM_STREAMS") == 2
    assert loaded.runtime_property("INFERENCE_NUM_THREADS") == 2
    first, second = (loaded.executor(place) for place in places)
    a, b = np.ones((2, 16), np.float32), np.full((2, 16), 3, np.float32)
    (kept,) = first.run({"INPUT0": a, "INPUT1": b}, ["OUTPUT0"])
    second.run({"INPUT0": b, "INPUT1": b}, ["OUTPUT0"])
    first.run({"INPUT0": b, "INPUT1": b}, ["OUTPUT0"])
    assert (kept == 4).all()  # answers outlive the next execution


def test_inputs_are_not_copied_and_may_be_read_only(openvino_loader):
    openvino_loader.save(onnx_models.identity("FP32", dims=(4,)))
    executor = openvino_loader.load().executor(ON_CPU)
    array = rows(2, 4)
    array.flags.writeable = False
    assert np.array_equal(executor.run({"INPUT0": array}, ["OUTPUT0"])[0], array)
    assert np.shares_memory(executor._request.get_input_tensor(0).data, array)
    odd = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 4)
    for other in (np.asfortranarray(array), array[:, ::-1], odd):
        assert np.array_equal(executor.run({"INPUT0": other}, ["OUTPUT0"])[0], other)


def test_a_scalar(openvino_loader):
    openvino_loader.save(onnx_models.scalar("FP32"))
    done = openvino_loader.complete()
    assert (done.max_batch_size, done.input[0].dims) == (0, (1,))
    executor = openvino_loader.load().executor(ON_CPU)
    (answer,) = executor.run({"INPUT0": np.array([2.5], np.float32)}, ["OUTPUT0"])
    assert answer.tolist() == [2.5]


def test_a_fixed_batch_becomes_a_variable_one(openvino_loader):
    openvino_loader.save(fixed())
    assert openvino_loader.complete().max_batch_size == 0  # unless somebody asks for it
    executor = openvino_loader.load(config(8)).executor(ON_CPU)
    for count in (1, 8):
        (answer,) = executor.run({"INPUT0": rows(count)}, ["OUTPUT0"])
        assert np.array_equal(answer, 2 * rows(count))


def test_smaller_batches_are_filled_up(openvino_loader):
    openvino_loader.save(fixed())
    executor = openvino_loader.load(config(4, ENABLE_BATCH_PADDING="YES")).executor(ON_CPU)
    for count in (1, 3, 4):
        (answer,) = executor.run({"INPUT0": rows(count)}, ["OUTPUT0"])
        assert np.array_equal(answer, 2 * rows(count))


def test_without_dynamic_batches_only_whole_ones_run(openvino_loader):
    openvino_loader.save(fixed())
    executor = openvino_loader.load(config(4, SKIP_DYNAMIC_BATCHSIZE="YES")).executor(ON_CPU)
    assert executor.run({"INPUT0": rows(4)}, ["OUTPUT0"])[0].shape == (4, 2)
    with pytest.raises(InvalidArgument, match="takes batches of exactly 4 rows, got 2"):
        executor.run({"INPUT0": rows(2)}, ["OUTPUT0"])


def test_the_config_may_reshape_the_model(openvino_loader):
    openvino_loader.save(fixed())
    with pytest.raises(ConfigError, match=r"the model expects 2 dimensions \(shape \[-1,2\]\)"):
        openvino_loader.load(config(4, dims=(6,)))
    loaded = openvino_loader.load(config(4, dims=(6,), RESHAPE_IO_LAYOUTS="YES"))
    (answer,) = loaded.executor(ON_CPU).run({"INPUT0": rows(3, 6)}, ["OUTPUT0"])
    assert np.array_equal(answer, 2 * rows(3, 6))


def test_shapes_the_model_cannot_take(openvino_loader):
    built = onnx_models.model(
        [helper.make_node("Reshape", ["INPUT0", "shape"], ["OUTPUT0"])],
        inputs=[onnx_models.value("INPUT0", "FP32", (4, 2))],
        outputs=[onnx_models.value("OUTPUT0", "FP32", (4, 2))],
        constants={"shape": np.array([4, 2], np.int64)},
    )
    openvino_loader.save(built)
    wider = config(4, dims=(3,), RESHAPE_IO_LAYOUTS="YES", SKIP_DYNAMIC_BATCHSIZE="YES")
    with pytest.raises(ConfigError, match="cannot take the shapes of its configuration"):
        openvino_loader.load(wider)


def test_a_device_that_is_not_there(openvino_loader):
    openvino_loader.save(onnx_models.identity("FP32"))
    with pytest.raises(ConfigError, match=r"OpenVINO finds no device 'NPU' here.* CPU"):
        openvino_loader.load(parameters={"TARGET_DEVICE": "NPU"})


def test_a_library_of_operators_that_is_not_there(openvino_loader):
    openvino_loader.save(onnx_models.identity("FP32"))
    with pytest.raises(ConfigError, match=r"CPU_EXTENSION_PATH.*no_such\.so.*does not load"):
        openvino_loader.load(parameters={"CPU_EXTENSION_PATH": "/no_such.so"})


def test_weights_that_are_missing(openvino_loader):
    folder = openvino_loader.version_folder
    openvino_models.save_ir(onnx_models.matmul_chain(64, 2), folder)
    (folder / "model.bin").unlink()
    with pytest.raises(InvalidArgument, match=r"cannot read 'm/1/model\.xml'"):
        openvino_loader.load()


def test_a_repeated_failure_stays_one(openvino_loader):
    """The runtime itself would answer the second one with what it computed before."""
    built = onnx_models.model(
        [helper.make_node("Reshape", ["INPUT0", "SHAPE"], ["OUTPUT0"])],
        inputs=[
            onnx_models.value("INPUT0", "FP32", ("n",)),
            onnx_models.value("SHAPE", "INT64", (2,)),
        ],
        outputs=[onnx_models.value("OUTPUT0", "FP32", ("a", "b"))],
    )
    openvino_loader.save(built)
    places = [Placement("KIND_CPU", name=str(index)) for index in range(2)]
    loaded = openvino_loader.load(placements=places)
    executors = [loaded.executor(place) for place in places]
    good = {"INPUT0": np.zeros(6, np.float32), "SHAPE": np.array([2, 3])}
    bad = {**good, "SHAPE": np.array([2, 4])}

    def asked(executor):
        for _ in range(3):
            assert executor.run(good, ["OUTPUT0"])[0].shape == (2, 3)
            for _ in range(2):
                with pytest.raises(BackendFailure, match=r"model 'm' failed: .*reshape"):
                    executor.run(bad, ["OUTPUT0"])

    for executor in executors:
        asked(executor)


def test_requests_from_many_threads(openvino_loader):
    openvino_loader.save(onnx_models.matmul_chain(64, 2))
    places = [Placement("KIND_CPU", name=str(index)) for index in range(3)]
    loaded = openvino_loader.load(placements=places)
    wrong = []

    def work(executor):
        for count in range(1, 9):
            ones = np.full((count, 64), count, np.float32)
            (answer,) = executor.run({"INPUT0": ones}, ["OUTPUT0"])
            if not np.allclose(answer, ones, rtol=1e-2):
                wrong.append(answer)

    threads = [threading.Thread(target=work, args=(loaded.executor(place),)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_optional_input_the_model_needs(openvino_loader):
    openvino_loader.save(onnx_models.add_sub("FP32", dims=(2,)))
    done = openvino_loader.complete()
    optional = replace(done.input[1], optional=True)
    executor = openvino_loader.load(replace(done, input=(done.input[0], optional))).executor(ON_CPU)
    with pytest.raises(InvalidArgument, match="cannot run without 'INPUT1'"):
        executor.run({"INPUT0": rows(1)}, ["OUTPUT0"])

"""Loading models: files and folders, completion, and every refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from shoal.backends.base import Placement
from shoal.backends.onnx_session import clean_message
from shoal.config.model import (
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
)
from shoal.errors import ConfigError, InvalidArgument, NotFound, ShoalError
from tests.support import onnx_models as models

ON_CPU = Placement("KIND_CPU")


def row(value, size=1024):
    return np.full((1, size), value, np.float32)


def check_heavy(loaded):
    inputs = {"INPUT0": row(1), "INDEX": np.array([[7]])}
    (result,) = loaded.executor(ON_CPU).run(inputs, ["OUTPUT0"])
    assert np.array_equal(result, row(8))


# --- where the model lies ---


def test_a_file(loader):
    loader.save(models.heavy(1))
    check_heavy(loader.load())


def test_a_folder(loader):
    loader.save(models.heavy(1), "model.onnx/model.onnx")
    check_heavy(loader.load())


def test_another_name(loader):
    loader.save(models.heavy(1), "net.onnx")
    check_heavy(loader.load(ModelConfig(default_model_filename="net.onnx")))


@pytest.mark.parametrize("filename", ["model.onnx", "model.onnx/model.onnx"])
def test_external_data(loader, filename):
    models.save_with_external_data(models.heavy(1), loader.version_folder / filename)
    check_heavy(loader.load())


def test_external_data_that_is_missing(loader):
    file = models.save_with_external_data(models.heavy(1), loader.version_folder / "model.onnx")
    (file.parent / "weights.bin").unlink()
    with pytest.raises(ShoalError, match=r"cannot load 'm/1/model\.onnx': .*weights\.bin"):
        loader.load()


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        ([], "", "unable to find 'model.onnx' in 'm/1' for model 'm'. Put the ONNX file there"),
        (["net.onnx"], "", 'rename the file to model.onnx or write default_model_filename: "net.o'),
        (["model.onnx"], "net.onnx", "unable to find 'net.onnx' in 'm/1'"),
        (["model.onnx/net.onnx"], "", "unable to find 'model.onnx' in 'm/1/model.onnx'"),
        (["a.onnx"], "sub/a.onnx", "It holds a.onnx: rename the file to sub/a.onnx or"),
    ],
)
def test_no_file(loader, files, name, text):
    loader.version_folder.mkdir(parents=True)
    for file in files:
        loader.save(models.identity(), file)
    with pytest.raises(NotFound) as raised:
        loader.load(ModelConfig(default_model_filename=name))
    assert text in raised.value.message


@pytest.mark.parametrize("name", ["../1/model.onnx", "/etc/passwd"])
def test_a_name_that_leads_elsewhere(loader, name):
    loader.save(models.identity())
    with pytest.raises(ConfigError, match=r"default_model_filename: .*leads out of the version's"):
        loader.load(ModelConfig(default_model_filename=name))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n rubbish", "damaged or of another format"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "Run git lfs pull"),
        (models.add_sub().SerializeToString()[:100], "'m/1/model.onnx'"),
    ],
)
def test_a_file_that_is_not_onnx(loader, content, text, capfd):
    loader.version_folder.mkdir(parents=True)
    (loader.version_folder / "model.onnx").write_bytes(content)
    complete = ModelConfig(
        input=(ModelInput(name="a", data_type="TYPE_FP32", dims=(1,)),),
        output=(ModelOutput(name="x", data_type="TYPE_FP32", dims=(1,)),),
    )
    for config in (None, complete):  # found out by completion, or by loading
        with pytest.raises(InvalidArgument) as raised:
            loader.load(config)
        assert "'m/1/model.onnx'" in raised.value.message
        assert text in raised.value.message
        assert "ONNXRuntimeError" not in raised.value.message
    assert capfd.readouterr() == ("", "")


def test_an_unknown_operator(loader):
    built = models.model(
        [helper.make_node("Frobnicate", ["a"], ["x"], domain="acme")],
        inputs=[models.value("a", "FP32", ("n",))],
        outputs=[models.value("x", "FP32", ("n",))],
        check=False,
    )
    built.opset_import.append(helper.make_opsetid("acme", 1))
    loader.save(built)
    with pytest.raises(ShoalError, match=r"cannot load 'm/1/model\.onnx': .*Frobnicate"):
        loader.load()


# --- completion from real files; the rules themselves are tested without a runtime ---


def summary(tensors):
    return [(t.name, t.data_type, t.dims, t.reshape) for t in tensors]


@pytest.mark.parametrize(
    ("built", "max_batch_size", "inputs", "outputs"),
    [
        (
            models.add_sub("INT8", dims=(16,)),
            4,
            [("INPUT0", "TYPE_INT8", (16,), None), ("INPUT1", "TYPE_INT8", (16,), None)],
            [("OUTPUT0", "TYPE_INT8", (16,), None), ("OUTPUT1", "TYPE_INT8", (16,), None)],
        ),
        (
            models.identity("BYTES", dims=(-1, 3), batch=False),
            4,  # the first of its own dimensions is variable: it counts as the batch
            [("INPUT0", "TYPE_STRING", (3,), None)],
            [("OUTPUT0", "TYPE_STRING", (3,), None)],
        ),
        (
            models.identity("FP16", dims=(3,), batch=1),
            0,
            [("INPUT0", "TYPE_FP16", (1, 3), None)],
            [("OUTPUT0", "TYPE_FP16", (1, 3), None)],
        ),
        (
            models.identity("BF16", dims=()),
            4,
            [("INPUT0", "TYPE_BF16", (1,), ModelTensorReshape(()))],
            [("OUTPUT0", "TYPE_BF16", (1,), ModelTensorReshape(()))],
        ),
        (
            models.scalar("FP64"),
            0,
            [("INPUT0", "TYPE_FP64", (1,), None)],
            [("OUTPUT0", "TYPE_FP64", (1,), None)],
        ),
        (
            models.default_input(),
            0,
            [("INPUT0", "TYPE_FP32", (2,), None)],
            [("OUTPUT0", "TYPE_FP32", (2,), None)],
        ),
        (
            # Its file promises a batch dimension; only the runtime finds out that there is none.
            models.reshape_to_one_row(),
            0,
            [("INPUT0", "TYPE_FP32", (-1, 4), None)],
            [("OUTPUT0", "TYPE_FP32", (1, -1), None)],
        ),
        (
            models.list_output(),
            4,
            [("INPUT0", "TYPE_FP32", (-1,), None)],
            [("OUTPUT0", "TYPE_FP32", (-1,), None)],
        ),
    ],
)
def test_completion(loader, built, max_batch_size, inputs, outputs):
    loader.save(built)
    config = loader.complete()
    assert config.max_batch_size == max_batch_size
    assert (config.dynamic_batching is not None) is (max_batch_size > 1)
    assert summary(config.input) == inputs
    assert summary(config.output) == outputs
    loader.load(config)


def test_the_default_batch_size_is_a_setting(loader):
    loader.save(models.add_sub())
    assert loader.complete(settings={"default-max-batch-size": "32"}).max_batch_size == 32
    assert loader.complete(settings={"default-max-batch-size": "0"}).max_batch_size == 0


def test_a_complete_config_needs_no_file(loader):
    config = ModelConfig(
        name="m",
        input=(ModelInput(name="a", data_type="TYPE_FP32", dims=(1,)),),
        output=(ModelOutput(name="x", data_type="TYPE_FP32", dims=(1,)),),
    )
    assert loader.complete(config) == config


def test_conflicts_are_found_at_load(loader):
    loader.save(models.add_sub(dims=(16,)))
    config = loader.complete()
    wrong = replace(config.input[0], dims=(15,))
    with pytest.raises(
        ConfigError, match=r"m/config\.pbtxt: input\[0\] 'INPUT0'\.dims: .*\[ 16 \]"
    ):
        loader.load(replace(config, input=(wrong, config.input[1])))


def test_dims_may_be_looser_or_tighter_than_the_models(loader):
    loader.save(models.identity(dims=(4,), count=1))
    config = loader.complete()
    looser = replace(
        config,
        input=(replace(config.input[0], dims=(-1,)),),
        output=(replace(config.output[0], dims=(-1,)),),
    )
    array = np.ones((2, 4), np.float32)
    (result,) = loader.load(looser).executor(ON_CPU).run({"INPUT0": array}, ["OUTPUT0"])
    assert np.array_equal(result, array)


# --- the runtime's words ---


CODE = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (CODE + "Bad shape.\n Fix it.", "Bad shape. Fix it"),
        (CODE + "Load model from /a b/m.onnx failed:No such op.", "No such op"),
        (
            CODE + "Status: /src/core/value.h:97 const T& V::Get() const [with T = Seq] was false.",
            "Status: was false",
        ),
        (CODE + "/x/init.cc:35 ns::Init::Init(const Tensor&, Path) [Mismatch]", "[Mismatch]"),
        ("/x/state.cc:29 ns::add(m&, Fn)::<lambda(const O&, bool)> must be false", "must be false"),
        ("", "ValueError"),
    ],
)
def test_messages_without_source_paths(text, clean):
    assert clean_message(ValueError(text)) == clean


def test_a_parameter_the_runtime_refuses(loader):
    loader.save(models.identity())
    config = loader.complete()
    parameters = {"session." + "x" * 2000: ModelParameter("1")}
    with pytest.raises(ConfigError, match=r"m/config\.pbtxt: parameters 'session\.xxx"):
        loader.load(replace(config, parameters=parameters))

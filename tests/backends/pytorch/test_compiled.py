"""AOTInductor packages: compiled here by the machine's own compiler, where it has one."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shoal.backends.base import Placement  # noqa: E402
from shoal.backends.pytorch.archive import ProgramKind  # noqa: E402
from shoal.backends.pytorch.library import quiet  # noqa: E402
from shoal.errors import ConfigError, InvalidArgument  # noqa: E402
from tests.support.torch_models import AddSub  # noqa: E402

ON_CPU = Placement("KIND_CPU")

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
    ),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]

# What matters here is that it is compiled, not how well.
QUICKLY = {
    "compile_threads": 1,
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "cpp.vec_isa_ok": False,
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    batch = torch.export.Dim("batch")
    with pytest.MonkeyPatch.context() as patch, quiet:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
        program = torch.export.export(
            AddSub(),
            (torch.zeros(2, 3), torch.zeros(2, 3)),
            dynamic_shapes={"left": {0: batch}, "right": {0: batch}},
        )
        return torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs=QUICKLY
        )


INPUTS = [("INPUT__0", "FP32", 3), ("INPUT__1", "FP32", 3)]


def test_a_package(loader, config, package):
    shutil.copy(package, loader.exported_file)
    written = config(INPUTS, [("OUTPUT__1", "FP32", 3), ("OUTPUT__0", "FP32", 3)], 8)
    loaded = loader.load(written, placements=[ON_CPU, ON_CPU])
    assert loaded.kind is ProgramKind.COMPILED
    assert loaded.shares_weights
    one, two = loaded.executor(ON_CPU), loaded.executor(ON_CPU)
    left, right = np.float32([[1, 2, 3]] * 5), np.float32([[1, 1, 1]] * 5)
    for executor in (one, two):
        difference, total = executor.run(
            {"INPUT__0": left, "INPUT__1": right}, ["OUTPUT__1", "OUTPUT__0"]
        )
        assert np.array_equal(total, left + right)
        assert np.array_equal(difference, left - right)


def test_its_names(loader, config, package):
    shutil.copy(package, loader.exported_file)
    written = config(
        [("ARGS[1]", "FP32", 3), ("ARGS[0]", "FP32", 3)], [("RESULT[1]", "FP32", 3)], 8
    )
    values = {"ARGS[0]": np.float32([[5, 5, 5]]), "ARGS[1]": np.float32([[1, 2, 3]])}
    assert loader.executor(written).run(values, ["RESULT[1]"])[0].tolist() == [[4, 3, 2]]


def test_its_outputs_are_learned(loader, config, package):
    shutil.copy(package, loader.exported_file)
    completed = loader.complete(config(INPUTS, batch=8))
    assert [(t.name, t.data_type, t.dims) for t in completed.output] == [
        ("OUTPUT__0", "TYPE_FP32", (3,)),
        ("OUTPUT__1", "TYPE_FP32", (3,)),
    ]
    with pytest.raises(ConfigError, match=r"forward takes ARGS\[0\], ARGS\[1\]"):
        loader.complete()


def test_what_it_cannot_do(loader, config, package, caplog):
    shutil.copy(package, loader.exported_file)
    written = config(INPUTS, [("OUTPUT__0", "FP32", 3)], 8)
    with pytest.raises(ConfigError, match="has the precision it was compiled with"):
        loader.load(written, parameters={"HALF_PRECISION": "fp16"})
    loader.load(written, parameters={"ENABLE_TORCH_COMPILE": "true"})
    assert "has no effect: the model (AOTInductor package) is compiled already" in caplog.text


def test_a_damaged_package(loader, config, package):
    content = bytearray(package_bytes(package))
    place = content.index(b"\x7fELF")
    content[place : place + 4096] = bytes(4096)
    loader.exported_file.write_bytes(bytes(content))
    with pytest.raises(InvalidArgument, match=r"cannot load 'm/1/model.pt2'.*compiled with"):
        loader.load(config(INPUTS, [("OUTPUT__0", "FP32", 3)], 8))


def package_bytes(package):
    from pathlib import Path

    return Path(package).read_bytes()

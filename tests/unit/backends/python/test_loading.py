"""Models that share a process: their modules never meet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.backends.python.api.errors import TritonModelException
from shoal.backends.python.loading import PrivateModule, model_class


@pytest.fixture
def lay(tmp_path):
    """Write a model's files and import its model.py; closed when the test ends."""
    opened = []

    def write(name, files):
        folder = tmp_path / name / "1"
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        module = PrivateModule(folder / "model.py")
        opened.append(module)
        return module.module

    write.opened = opened
    yield write
    for module in opened:
        module.close()


def test_helpers_of_the_same_name_are_different(lay):
    one = lay("one", {"model.py": "import helper\nNAME = helper.NAME", "helper.py": "NAME = 'one'"})
    two = lay("two", {"model.py": "from helper import NAME", "helper.py": "NAME = 'two'"})
    assert (one.NAME, two.NAME) == ("one", "two")
    assert "helper" not in sys.modules


def test_a_change_within_the_second_and_of_the_same_size_is_seen(lay, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    files = {"model.py": "import helper\nNUMBER = 1", "helper.py": "NUMBER = 1"}
    before = lay("m", files)
    changed = lay("m", {name: text.replace("1", "2") for name, text in files.items()})
    assert (before.NUMBER, before.helper.NUMBER) == (1, 1)
    assert (changed.NUMBER, changed.helper.NUMBER) == (2, 2)
    assert not list(Path(before.__file__).parent.glob("__pycache__"))


def test_two_instances_of_a_model_share_nothing(lay):
    files = {"model.py": "import helper", "helper.py": "seen = []"}
    one, two = lay("m", files), lay("m", files)
    one.helper.seen.append(1)
    assert two.helper.seen == []


def test_imports_inside_functions_and_helpers(lay):
    module = lay(
        "m",
        {
            "model.py": "def late():\n    import helper\n    return helper.value()",
            "helper.py": "def value():\n    from deeper import VALUE\n    return VALUE",
            "deeper.py": "VALUE = 3",
        },
    )
    assert module.late() == 3


def test_packages_and_relative_imports(lay):
    module = lay(
        "m",
        {
            "model.py": "import tools.words\nfrom tools import numbers\nfrom .beside import B\n"
            "from . import beside\nV = (tools.words.W, numbers.N, B, beside.B)",
            "tools/__init__.py": "",
            "tools/words.py": "from .numbers import N\nfrom tools.numbers import N as M\nW = N + M",
            "tools/numbers.py": "N = 2",
            "beside.py": "B = 5",
        },
    )
    assert module.V == (4, 2, 5, 5)


def test_the_folder_above_is_searched_too(lay, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "shared.py").write_text("S = 1")
    assert lay("m", {"model.py": "from shared import S"}).S == 1


def test_the_standard_library_is_never_hidden(lay):
    module = lay("m", {"model.py": "import json\nD = json.dumps", "json.py": "oops = 1"})
    assert module.D([1]) == "[1]"


def test_a_folder_of_weights_hides_no_package(lay):
    module = lay("m", {"model.py": "import numpy\nV = numpy.zeros(1)", "numpy/weights.bin": ""})
    assert module.V.shape == (1,)


def test_installed_packages_and_pb_utils_are_the_processes_own(lay):
    import numpy as np

    import triton_python_backend_utils as pb_utils

    text = "import numpy\nimport triton_python_backend_utils as pb_utils"
    module = lay("m", {"model.py": text})
    assert module.numpy is np
    assert module.pb_utils is pb_utils


def test_nothing_stays_when_it_is_closed(lay):
    before = set(sys.modules)
    lay("m", {"model.py": "import helper", "helper.py": ""})
    lay.opened.pop().close()
    assert set(sys.modules) - before == set()


def test_nothing_stays_when_the_import_fails(lay, tmp_path):
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        lay("m", {"model.py": "import helper\n1 / 0", "helper.py": ""})
    assert set(sys.modules) - before == set()
    assert str(tmp_path / "m" / "1") not in sys.path


def test_what_is_missing_is_named(lay, tmp_path):
    with pytest.raises(TritonModelException, match="Python model file not found in"):
        PrivateModule(tmp_path / "model.py")
    with pytest.raises(TritonModelException, match=r"must end with '\.py'"):
        PrivateModule(tmp_path / "model.txt")
    file = tmp_path / "m" / "1" / "model.py"
    with pytest.raises(TritonModelException, match="has no class TritonPythonModel"):
        model_class(lay("m", {"model.py": "x = 1"}), file)
    with pytest.raises(TritonModelException, match="does not implement `execute` method"):
        model_class(lay("m", {"model.py": "class TritonPythonModel: ..."}), file)

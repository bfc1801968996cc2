"""Finding backends: built in, installed, aliased, unknown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from shoal.backends import registry
from shoal.backends.identity import IdentityBackend
from shoal.backends.registry import BackendRegistry, backend_name
from shoal.config.backends import BACKENDS
from shoal.errors import ConfigError

BUILT_IN = {name: backend for name, backend in BACKENDS.items() if backend.entry_point}
EXTRAS = {name: backend.extra for name, backend in BUILT_IN.items() if backend.extra}


@pytest.fixture
def installed(monkeypatch):
    """Sets what the environment's packages offer; nothing at first, as in a source tree."""

    def install(**targets):
        entries = [EntryPoint(name, target, registry.GROUP) for name, target in targets.items()]
        monkeypatch.setattr(
            registry, "entry_points", lambda **query: EntryPoints(entries).select(**query)
        )

    install()
    return install


@pytest.mark.parametrize(
    ("backend", "platform", "name"),
    [
        ("onnxruntime", "", "onnxruntime"),
        ("", "onnxruntime_onnx", "onnxruntime"),
        ("onnxruntime_onnx", "", "onnxruntime"),
        ("", "pytorch_libtorch", "pytorch"),
        ("", "torch_aoti", "pytorch"),
        ("", "tensorrt_plan", "tensorrt"),
        ("", "tensorflow_savedmodel", "tensorflow"),
        ("", "ensemble", "ensemble"),
        ("mine", "", "mine"),
        ("", "", ""),
    ],
)
def test_backend_name(backend, platform, name):
    assert backend_name(backend, platform) == name


def test_the_built_in_ones_need_no_installation(installed):
    backends = BackendRegistry()
    assert backends.names() == tuple(sorted(BUILT_IN))
    assert backends.get("identity").name == "identity"
    assert backends.get("onnxruntime").name == "onnxruntime"


def test_a_backend_is_made_once(installed):
    backends = BackendRegistry()
    assert backends.get("identity") is backends.get("identity")
    assert backends.get("onnxruntime") is backends.get("onnxruntime_onnx")


def test_the_process_has_one_registry():
    assert registry.get("identity") is registry.get("identity")
    assert {"identity", "onnxruntime"} <= set(registry.names())


def test_an_installed_package_adds_one(installed):
    installed(mine="shoal.backends.identity:IdentityBackend")
    backends = BackendRegistry()
    assert backends.names() == tuple(sorted({"mine", *BUILT_IN}))
    assert isinstance(backends.get("mine"), IdentityBackend)


def test_an_extra_one_comes_first(installed):
    class Mine(IdentityBackend):
        pass

    assert isinstance(BackendRegistry({"identity": Mine}).get("identity"), Mine)


def test_unknown(installed):
    with pytest.raises(ConfigError) as raised:
        BackendRegistry().get("onnxrt", file="m/config.pbtxt")
    assert raised.value.message == (
        "m/config.pbtxt: backend: unable to find backend library for backend 'onnxrt', try "
        "specifying runtime on the model configuration. "
        f"The backends installed here are: {', '.join(sorted(BUILT_IN))}"
    )


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("tensorflow", "tf2onnx"),
        ("tensorflow_savedmodel", "TFLiteConverter"),
        ("dali", "Python model"),
        ("vllm", "to the folder vllm in that of --backend-directory"),
        ("tensorrtllm", "Python model"),
    ],
)
def test_well_known_ones_that_are_not_there(installed, name, way_out):
    with pytest.raises(ConfigError, match=r"Shoal has no '\w+' backend\..* identity,") as raised:
        BackendRegistry().get(name)
    assert way_out in raised.value.message


def test_no_name_at_all(installed):
    with pytest.raises(ConfigError, match="no backend is named"):
        BackendRegistry().get("")


def test_a_missing_runtime_says_what_to_install(installed):
    installed(mine="no_such_runtime.backend:Backend")
    with pytest.raises(
        ConfigError, match=r"'no_such_runtime' is not installed.*pip install no_such"
    ):
        BackendRegistry().get("mine")


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_the_missing_library_of_a_built_in_one_names_its_extra(installed, name):
    def without_library():
        raise ModuleNotFoundError("No module named 'library'", name="library.part")

    with pytest.raises(ConfigError) as raised:
        BackendRegistry({name: without_library}).get(name, file="m/config.pbtxt")
    assert raised.value.message == (
        f"m/config.pbtxt: backend: the backend '{name}' cannot be used because 'library.part' is "
        f"not installed. Install it, for instance with: pip install 'shoal[{EXTRAS[name]}]'"
    )


def test_pyproject_has_the_declared_entry_points_and_extras(root):
    text = (root / "pyproject.toml").read_text()
    section = text.partition('[project.entry-points."shoal.backends"]\n')[2].partition("\n\n")[0]
    written = dict(line.replace('"', "").split(" = ") for line in section.splitlines())
    assert written == {name: backend.entry_point for name, backend in BUILT_IN.items()}
    for extra in EXTRAS.values():
        assert f"\n{extra} = [" in text


@pytest.mark.parametrize("declaration", BUILT_IN.values(), ids=str)
def test_a_declared_backend_has_the_name_of_its_class(declaration):
    module, _, attribute = declaration.entry_point.partition(":")
    made = getattr(pytest.importorskip(module, exc_type=ImportError), attribute)
    assert made.name == declaration.name


def test_a_broken_plug_in_costs_only_its_own_models(installed):
    def broken():
        raise RuntimeError("out of order")

    backends = BackendRegistry({"mine": broken})
    with pytest.raises(ConfigError, match="'mine' failed to start: RuntimeError: out of order"):
        backends.get("mine")
    assert backends.get("identity").name == "identity"


@pytest.fixture
def directory(tmp_path):
    """A folder of --backend-directory, with backends called `mine` and `onnxruntime`."""
    for name in ("mine", "onnxruntime"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text("")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_with_a_model_py_is_a_backend(installed, directory):
    backends = BackendRegistry(directory=directory)
    found = backends.get("mine")
    assert (found.name, found.code_folder) == ("mine", directory / "mine")
    assert found.runs_python_models
    assert pickle.loads(pickle.dumps(found)).code_folder == found.code_folder
    assert "mine" in backends.names()


def test_installed_backends_come_first_unless_the_runtime_is_named(installed, directory):
    backends = BackendRegistry(directory=directory)
    assert backends.get("onnxruntime").code_folder is None
    named = backends.get("onnxruntime", runtime="model.py")
    assert named.code_folder == directory / "onnxruntime"


def test_pytorch_and_python_read_the_runtime_themselves(installed, directory):
    backends = BackendRegistry({"pytorch": IdentityBackend}, directory=directory)
    assert isinstance(backends.get("pytorch", runtime="model.py"), IdentityBackend)
    assert backends.get("python", runtime="model.py").code_folder is None


def test_a_backend_may_be_added_later(installed, directory):
    backends = BackendRegistry(directory=directory)
    with pytest.raises(ConfigError, match=r"There is no '.*/empty/model.py'"):
        backends.get("empty")
    (directory / "empty" / "model.py").write_text("")
    assert backends.get("empty").name == "empty"


def test_a_missing_python_based_backend_in_tritons_words(installed, directory):
    with pytest.raises(ConfigError) as raised:
        BackendRegistry(directory=directory).get("empty", runtime="model.py", model="m")
    assert (
        "unable to find Python backend based backend library 'model.py' for model 'm', searched: "
        f"'{directory}/empty/model.py'" in raised.value.message
    )


def test_a_library_in_c_is_not_loaded(installed, directory):
    (directory / "empty" / "libtriton_empty.so").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"libtriton_empty.so' is in C\+\+, which cannot be loaded"
    ):
        BackendRegistry(directory=directory).get("empty")


@pytest.mark.parametrize("name", ["../mine", "..", ".", "a/../mine", "mine/", "mine\0", "/"])
@pytest.mark.parametrize("runtime", ["", "model.py"])
def test_a_name_stays_inside_the_directory(installed, directory, name, runtime):
    (directory / "model.py").write_text("")
    backends = BackendRegistry(directory=directory / "mine")
    with pytest.raises(ConfigError, match="unable to find"):
        backends.get(name, runtime=runtime, model="m")


def test_the_runtime_is_imported_late():
    script = (
        "import sys; from shoal.backends import registry; registry.names(); "
        "registry.get('identity'); registry.get('fil'); "
        "sys.exit(bool({'onnxruntime', 'openvino', 'sklearn', 'xgboost', 'jax'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

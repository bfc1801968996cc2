from __future__ import annotations

import pytest

from shoal.backends.python import settings
from shoal.backends.python.completion import may_complete
from shoal.backends.python.settings import PythonSettings
from shoal.config.model import ModelConfig, ModelParameter
from shoal.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def read(folder, parameters=None, given=None):
    wrapped = {key: ModelParameter(text) for key, text in (parameters or {}).items()}
    config = ModelConfig(name="m", parameters=wrapped)
    return settings.read(config, folder, folder / "1", given or {})


def test_defaults(folder):
    assert read(folder) == PythonSettings()
    assert not read(folder).brings_python


@pytest.mark.parametrize("mode", ["auto", "thread", "process"])
def test_the_config_decides_then_the_command_line(folder, mode):
    assert read(folder, {"python_execution": mode}, {"execution": "thread"}).execution == mode
    assert read(folder, given={"execution": mode}).execution == mode


@pytest.mark.parametrize(("isolation", "mode"), [("process", "process"), ("none", "thread")])
def test_isolation_means_the_same(folder, isolation, mode):
    other = "thread" if mode == "process" else "process"
    assert read(folder, {"isolation": isolation}, {"execution": other}).execution == mode
    both = {"isolation": isolation, "python_execution": mode}
    assert read(folder, both).execution == mode
    with pytest.raises(ConfigError, match="Leave one of the two out"):
        read(folder, {"isolation": isolation, "python_execution": other})


def test_requirements_ask_for_a_process(folder):
    (folder / "1" / "requirements.txt").write_text("")
    chosen = read(folder)
    assert chosen.execution == "process"
    assert chosen.requirements == folder / "1" / "requirements.txt"


def test_requirements_beside_the_config_will_do(folder):
    (folder / "requirements.txt").write_text("")
    assert read(folder).requirements == folder / "requirements.txt"


def test_an_environment_inside_the_model(folder):
    (folder / "env").mkdir()
    (folder / "requirements.txt").write_text("")
    chosen = read(folder, {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    assert chosen.environment == folder / "env"
    assert chosen.requirements is None
    assert chosen.execution == "process"


def of_backend(folder, parameters=None, given=None):
    """The settings of a model whose backend has the folder `code`."""
    code = folder.parent / "code"
    code.mkdir(exist_ok=True)
    wrapped = {key: ModelParameter(text) for key, text in (parameters or {}).items()}
    config = ModelConfig(name="m", backend="mine", parameters=wrapped)
    return settings.read(config, folder, folder / "1", given or {}, code)


def test_models_of_a_python_based_backend_have_processes(folder):
    assert of_backend(folder).execution == "process"
    assert of_backend(folder, given={"execution": "auto"}).execution == "process"
    assert of_backend(folder, given={"execution": "thread"}).execution == "thread"
    assert of_backend(folder, {"python_execution": "thread"}).execution == "thread"
    assert of_backend(folder, {"isolation": "none"}).execution == "thread"


def test_the_environment_of_a_python_based_backend(folder):
    (folder / "1" / "requirements.txt").write_text("")  # a file of the model, not of the code
    assert not of_backend(folder).brings_python
    code = folder.parent / "code"
    (code / "requirements.txt").write_text("")
    assert of_backend(folder).requirements == code / "requirements.txt"
    archive = code / "pb_exec_env_model.py.tar.gz"  # Triton's name
    archive.write_bytes(b"")
    assert of_backend(folder).environment == archive
    assert of_backend(folder).requirements is None
    (folder / "env").mkdir()
    own = {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}
    assert of_backend(folder, own).environment == folder / "env"


@pytest.mark.parametrize(
    ("parameters", "given", "text"),
    [
        ({"python_execution": "fiber"}, {}, "Write thread, process or auto"),
        ({}, {"execution": "fiber"}, "--backend-config=python,execution: found 'fiber'"),
        ({"EXECUTION_ENV_PATH": "/nowhere/env"}, {}, "there is no '/nowhere/env'"),
        (
            {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/../../other"},
            {},
            "leads out of the model's folder",
        ),
        ({}, {"stub-timeout-seconds": "0"}, "greater than 0"),
        ({}, {"stub-timeout-seconds": "soon"}, "greater than 0"),
    ],
)
def test_what_cannot_be(folder, parameters, given, text):
    with pytest.raises(ConfigError) as raised:
        read(folder, parameters, given)
    assert text in raised.value.message


def test_a_thread_has_no_environment_of_its_own(folder):
    (folder / "requirements.txt").write_text("")
    with pytest.raises(ConfigError, match="Write process, or leave one of the two out"):
        read(folder, {"python_execution": "thread"})
    with pytest.raises(ConfigError, match=r"parameters\['isolation'\]: .* Write process"):
        read(folder, {"isolation": "none"})


def test_settings_of_tritons_shared_memory_are_accepted(folder):
    given = {"shm-default-byte-size": "1", "thread-pool-size": "8", "stub-timeout-seconds": "7"}
    assert read(folder, given=given).start_secs == 7


@pytest.mark.parametrize(
    ("source", "may"),
    [
        ("class TritonPythonModel:\n    def execute(self, r): ...", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): ...", True),
        ("class TritonPythonModel(Base): ...", True),
        ("class TritonPythonModel(metaclass=Meta): ...", True),
        ("@decorated\nclass TritonPythonModel: ...", True),
        ("from elsewhere import TritonPythonModel", True),
        ("this is no python", True),
    ],
)
def test_a_model_is_started_for_completion_only_if_it_may_complete(tmp_path, source, may):
    file = tmp_path / "model.py"
    file.write_text(source)
    assert may_complete(file) is may

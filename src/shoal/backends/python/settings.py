"""How a model's instances run, by its config and --backend-config=python,…"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters
from shoal.errors import ConfigError

logger = logging.getLogger(__name__)

AUTO, THREAD, PROCESS = "auto", "thread", "process"
EXECUTION = "python_execution"
ISOLATION = "isolation"
ENVIRONMENT = "EXECUTION_ENV_PATH"
REQUIREMENTS = "requirements.txt"
ARCHIVE = "pb_exec_env_model.py.tar.gz"  # Triton's name for the environment of a backend
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"

_START_SECS = 30.0
# Triton's settings for shared memory and threads, which Shoal does not have.
_WITHOUT_EFFECT = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-region-prefix-name",
    "shm_message_queue_size",
    "thread-pool-size",
)


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """How one model's instances run."""

    execution: str = AUTO  # auto: a thread for a single instance, processes for several
    environment: Path | None = None  # a folder or archive with a Python environment
    requirements: Path | None = None  # for a virtual environment
    start_secs: float = _START_SECS  # for a process to start, before it imports the model
    cache_folder: Path | None = None  # where environments are stored

    @property
    def brings_python(self) -> bool:
        """Whether the model has its own Python environment."""
        return self.environment is not None or self.requirements is not None


def read(
    config: ModelConfig,
    model_folder: Path,
    version_folder: Path,
    settings: Mapping[str, str],
    code_folder: Path | None = None,
) -> PythonSettings:
    """The settings of one version. ConfigError for an invalid parameter.

    `code_folder` is that of a Python-based backend. It may have the environment of its models,
    which run in processes unless they are configured otherwise.
    """
    file = f"{model_folder.name}/config.pbtxt"
    for key in _WITHOUT_EFFECT:
        if key in settings:
            logger.debug("--backend-config=python,%s has no effect: it is not needed", key)
    parameters = Parameters("python", config, settings, file)
    written = _written(parameters, config, file)
    execution = written or parameters.text("execution") or AUTO
    if execution == AUTO and code_folder is not None:
        execution = PROCESS
    environment = _environment(parameters.text(ENVIRONMENT), model_folder, file)
    if environment is None and code_folder is not None and (code_folder / ARCHIVE).is_file():
        environment = code_folder / ARCHIVE
    requirements = None
    if environment is None:
        folders = (version_folder, model_folder) if code_folder is None else (code_folder,)
        candidates = [folder / REQUIREMENTS for folder in folders]
        requirements = next((path for path in candidates if path.is_file()), None)
    if execution == THREAD and (environment or requirements):
        reason = f"parameters['{ENVIRONMENT}']" if environment else f"the file {requirements}"
        raise ConfigError(
            f"instances run on a thread, but {reason} requires the model's own Python environment",
            file=file,
            field=f"parameters['{EXECUTION if parameters.text(EXECUTION) else ISOLATION}']"
            if written
            else "--backend-config=python,execution",
            fix=f"Write {PROCESS}, or leave one of the two out",
        )
    cache = parameters.text("environment-folder")
    return PythonSettings(
        execution=PROCESS if environment or requirements else execution,
        environment=environment,
        requirements=requirements,
        start_secs=parameters.number("stub-timeout-seconds") or _START_SECS,
        cache_folder=Path(cache) if cache else None,
    )


def _written(parameters: Parameters, config: ModelConfig, file: str) -> str:
    """Where the config says that instances run; "" if it does not."""
    execution = parameters.text(EXECUTION)
    isolation = Parameters("", config, {}, file).text(ISOLATION)
    meant = {"process": PROCESS, "none": THREAD}.get(isolation, "")
    if execution and meant and execution != meant:
        raise ConfigError(
            f"found '{execution}', but parameters['{ISOLATION}'] is '{isolation}'",
            file=file,
            field=f"parameters['{EXECUTION}']",
            fix="Leave one of the two out",
        )
    return execution or meant


def _environment(written: str, model_folder: Path, file: str) -> Path | None:
    if not written:
        return None
    inside = MODEL_DIRECTORY in written
    path = Path(written.replace(MODEL_DIRECTORY, str(model_folder)))
    if inside and not path.resolve().is_relative_to(model_folder.resolve()):
        raise ConfigError(
            f"'{written}' leads out of the model's folder",
            file=file,
            field=f"parameters['{ENVIRONMENT}']",
            fix=f"Write a path below {MODEL_DIRECTORY}, or an absolute one without it",
        )
    if not path.exists():
        raise ConfigError(
            f"there is no '{path}'",
            file=file,
            field=f"parameters['{ENVIRONMENT}']",
            fix="Name the folder of a Python environment, or an archive made by conda-pack",
        )
    return path

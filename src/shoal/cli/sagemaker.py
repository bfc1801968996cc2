"""`shoal sagemaker`: serves in a container that SageMaker starts, as its environment says.

    SAGEMAKER_..., /opt/ml/model  -->  the words of a command line  -->  shoal serve

The variables are those of Triton's container for SageMaker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.cli import serve
from shoal.cli.parser import help_requested
from shoal.config.options import OptionError
from shoal.config.options.checks import INFERENCE_TYPES

MODEL_FOLDER = Path("/opt/ml/model")  # where the platform unpacks the archive

_DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
_PING_MODE = "SAGEMAKER_TRITON_PING_MODE"
_ALWAYS = ("--allow-sagemaker=true", "--allow-http=false", "--model-control-mode=explicit")

# Variable, the start of what it sets, and its value if it is not set; "": nothing then.
_VARIABLES = (
    ("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", "--model-namespacing=", "true"),
    ("SAGEMAKER_BIND_TO_PORT", "--sagemaker-port=", ""),
    ("SAGEMAKER_SAFE_PORT_RANGE", "--sagemaker-safe-port-range=", ""),
    ("SAGEMAKER_TRITON_ALLOW_GRPC", "--allow-grpc=", "false"),
    ("SAGEMAKER_TRITON_ALLOW_METRICS", "--allow-metrics=", "false"),
    ("SAGEMAKER_TRITON_METRICS_PORT", "--metrics-port=", ""),
    ("SAGEMAKER_TRITON_GRPC_PORT", "--grpc-port=", ""),
    ("SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT", "--buffer-manager-thread-count=", ""),
    ("SAGEMAKER_TRITON_THREAD_COUNT", "--sagemaker-thread-count=", ""),
    ("SAGEMAKER_TRITON_LOG_VERBOSE", "--log-verbose=", ""),
    ("SAGEMAKER_TRITON_LOG_INFO", "--log-info=", ""),
    ("SAGEMAKER_TRITON_LOG_WARNING", "--log-warning=", ""),
    ("SAGEMAKER_TRITON_LOG_ERROR", "--log-error=", ""),
    (
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
        "--backend-config=python,shm-default-byte-size=",
        "",
    ),
    (
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE",
        "--backend-config=python,shm-growth-byte-size=",
        "",
    ),
    ("SAGEMAKER_TRITON_TENSORFLOW_VERSION", "--backend-config=tensorflow,version=", ""),
)

_HELP = f"""\
usage: shoal sagemaker [serve] [OPTION ...]

Serve in a container of Amazon SageMaker: the model in {MODEL_FOLDER}, or with
SAGEMAKER_MULTI_MODEL=true the models that the platform loads. The variables of Triton's container
(SAGEMAKER_TRITON_..., SAGEMAKER_BIND_TO_PORT, SAGEMAKER_SAFE_PORT_RANGE) are read. An OPTION is one
of `shoal serve`; it wins over the variables.

Example, in a Dockerfile:
  ENTRYPOINT ["shoal", "sagemaker"]
"""


def run(words: Sequence[str]) -> int:
    """Serve until a signal arrives; returns the exit code. Raises OptionError for the words.

    What is wrong with the environment is printed as Triton's container prints it.
    """
    if help_requested(words):
        print(_HELP, end="")
        return 0
    options = list(words[1:] if words[:1] == ["serve"] else words)
    many = is_multi_model(os.environ)
    with TemporaryDirectory(prefix="shoal-sagemaker-") as empty:
        try:
            own, variables = command_line(os.environ, Path(empty) if many else MODEL_FOLDER)
        except OptionError as error:
            print(f"ERROR: {error.message}", file=sys.stderr)
            return 1
        os.environ.update(variables)
        return serve.run([*own, *options], program="shoal sagemaker")


def is_multi_model(environ: Mapping[str, str]) -> bool:
    """Whether the platform loads the models."""
    return environ.get("SAGEMAKER_MULTI_MODEL") == "true"


def command_line(environ: Mapping[str, str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The words for `shoal serve`, and the variables to set for it. Raises OptionError.

    `folder` is the repository; with many models an empty one.
    """
    many = is_multi_model(environ)
    inference_type = environ.get(_INFERENCE_TYPE)
    if inference_type and inference_type not in INFERENCE_TYPES:
        raise OptionError(
            f"Invalid {_INFERENCE_TYPE} '{inference_type}'. Must be one of: "
            f"{', '.join(INFERENCE_TYPES)}"
        )
    ping_mode = environ.get("SAGEMAKER_TRITON_OVERRIDE_PING_MODE") or ("live" if many else "ready")
    variables = {_PING_MODE: ping_mode}
    words = [*_ALWAYS, f"--model-repository={folder}"]
    for name, start, default in _VARIABLES:
        value = environ.get(name) or default
        if value:
            words.append(start + value)
    limit = environ.get("SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT")
    if limit:
        from shoal.instance import device  # looks for GPUs

        words += [f"--model-load-gpu-limit={gpu}:{limit}" for gpu in device.gpus()]
    if not many:
        variables[_DEFAULT_MODEL] = model = _only_model(environ, folder)
        words.append(f"--load-model={model}")
    return [*words, *environ.get("SAGEMAKER_TRITON_ADDITIONAL_ARGS", "").split()], variables


def _only_model(environ: Mapping[str, str], folder: Path) -> str:
    """The model of an endpoint with one."""
    if (folder / "config.pbtxt").is_file():
        raise OptionError(
            f"Incorrect directory structure: {folder} has a config.pbtxt. Model directory needs to "
            "contain the top level folder: put the files into a folder with the model's name"
        )
    named = environ.get(_DEFAULT_MODEL)
    if named:
        if not (folder / named).is_dir():
            raise OptionError(
                f"Directory with provided {_DEFAULT_MODEL} {named} does not exist in {folder}"
            )
        return named
    found = sorted(path.name for path in folder.glob("*") if path.is_dir())
    if not found:
        raise OptionError(f"No model found in model repository {folder}")
    if len(found) > 1:
        raise OptionError(
            f"More than 1 model directory found in model repository {folder} ({', '.join(found)}); "
            f"provide a single one, or set {_DEFAULT_MODEL} to the name of the ensemble"
        )
    print(
        f"WARNING: No {_DEFAULT_MODEL} provided. Starting with the only existing model directory "
        f"{found[0]}",
        file=sys.stderr,
    )
    return found[0]

"""Loading and unloading other models from inside one."""

from __future__ import annotations

from shoal.backends.initialisation import released_by
from shoal.backends.python.api import arguments, host
from shoal.backends.python.api.errors import TritonModelException
from shoal.errors import ShoalError

_FILE_PREFIX = "file:"


def load_model(
    model_name: str | bytes, config: str | bytes = "", files: dict[str, bytes] | None = None
) -> None:
    """Load or reload a model, with `config` (JSON) and `files` ("file:1/model.py": …) if given.

    Returns when the model is ready. The server must run with explicit model control.
    """
    model_name = arguments.text("model_name", model_name)
    config = arguments.text("config", config)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and "
            f"file contents"
        )
    contents: dict[str, bytes] = {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise TypeError(f"the content of a file must be bytes, not {type(content)}")
        contents[arguments.text("a path of files", path).removeprefix(_FILE_PREFIX)] = content
    context = host.current()
    try:
        with released_by(context.initialisation, known=host.is_known()):
            context.host.load_model(model_name, config, contents)
    except ShoalError as error:
        raise TritonModelException(f"Failed to load model: {error.message}") from None


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Unload a model; with `unload_dependents` also the models it needs."""
    model_name = arguments.text("model_name", model_name)
    context = host.current()
    try:
        with released_by(context.initialisation, known=host.is_known()):
            context.host.unload_model(model_name, bool(unload_dependents))
    except ShoalError as error:
        raise TritonModelException(f"Failed to unload model: {error.message}") from None


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a model, or one version of it, is ready."""
    model_name = arguments.text("model_name", model_name)
    model_version = arguments.text("model_version", model_version)
    if model_version and not model_version.isdecimal():
        raise TritonModelException(
            f"Failed to check model readiness: failed to get model version from specified version "
            f"string '{model_version}', version should be an integral value > 0"
        )
    version = int(model_version) if model_version else -1
    context = host.current()
    try:
        with released_by(context.initialisation, known=host.is_known()):
            return context.host.is_model_ready(model_name, version)
    except ShoalError as error:
        raise TritonModelException(f"Failed to check model readiness: {error.message}") from None

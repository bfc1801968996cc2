"""Which backend serves a model, by its config or else by its files."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Collection
from typing import NamedTuple

from shoal.config.backends import BACKEND_NAMES, BACKENDS
from shoal.config.model import ModelConfig
from shoal.config.suggest import near_match
from shoal.errors import ConfigError


class Platform(NamedTuple):
    """A backend, the name it has as a `platform`, and the file it reads."""

    name: str  # "" where the backend has no platform name
    backend: str
    filename: str


# In the order in which the files of a version folder are checked.
PLATFORMS = tuple(
    Platform(file.platform, backend.name, file.filename)
    for backend in BACKENDS.values()
    for file in backend.formats
)
_ENSEMBLE = "ensemble"


def infer_backend(config: ModelConfig, version_files: Collection[str], file: str) -> ModelConfig:
    """Set backend, platform and default_model_filename where the config leaves them out.

    `version_files` are the names in the model's first version folder; none if there is no such
    folder. ConfigError when the backend cannot be determined, or when `platform` and `backend`
    contradict each other. An ensemble has no backend and stays as it is.
    """
    if config.platform == _ENSEMBLE:
        if config.backend:
            raise ConfigError(
                f"Ensemble model '{config.name}' must have platform type 'ensemble' and empty "
                "backend type",
                file=file,
                field="backend",
                fix=f'Remove backend: "{config.backend}"',
            )
        return config
    if not config.backend:
        found = _from_config(config, file) or _from_files(config, version_files)
        if found is None:
            return _from_name(config, version_files, file)
        config = dataclasses.replace(config, backend=found.backend)
    own = [platform for platform in PLATFORMS if platform.backend == config.backend]
    if not own:
        return config  # a third-party backend, which knows its own files
    chosen = _choose(config, own, version_files, file)
    return dataclasses.replace(
        config,
        platform=config.platform or chosen.name,
        default_model_filename=config.default_model_filename or chosen.filename,
    )


def _from_config(config: ModelConfig, file: str) -> Platform | None:
    """The row that `platform` or `default_model_filename` names."""
    found = _by_name(config.platform) if config.platform else None
    suffix = posixpath.splitext(config.default_model_filename)[1]
    if found is None and suffix:
        found = next((known for known in PLATFORMS if known.filename == f"model{suffix}"), None)
    if found is None and config.platform:
        raise ConfigError(
            f"unexpected platform type '{config.platform}' for {config.name}",
            file=file,
            field="platform",
            fix=_platform_fix(config.platform),
        )
    return found


def _from_files(config: ModelConfig, version_files: Collection[str]) -> Platform | None:
    if config.default_model_filename:
        return None
    return next((known for known in PLATFORMS if known.filename in version_files), None)


def _from_name(config: ModelConfig, version_files: Collection[str], file: str) -> ModelConfig:
    """The last resort: a model called `something.identity` is served by `identity`."""
    backend = config.name.partition(".")[2]
    if backend and not config.default_model_filename:
        return dataclasses.replace(
            config, backend=backend, default_model_filename=f"model.{backend}"
        )
    if config.ensemble_scheduling is not None:
        fix = 'Write platform: "ensemble"'
    else:
        known = ", ".join(dict.fromkeys(platform.filename for platform in PLATFORMS))
        found = ", ".join(sorted(version_files)) or "nothing"
        fix = (
            'Write backend: "onnxruntime" (or another backend) in config.pbtxt, or put a file with '
            f"a known name ({known}) into the version folder, which holds {found}"
        )
    raise ConfigError(
        f"Invalid model name: Could not determine backend for model '{config.name}' with no "
        "backend in model configuration. Expected model name of the form 'model.<backend_name>'",
        file=file,
        field="backend",
        fix=fix,
    )


def _choose(
    config: ModelConfig, own: list[Platform], version_files: Collection[str], file: str
) -> Platform:
    """The row of the table that fits, for a backend that is in it."""
    if config.platform and own[0].name:
        named = _by_name(config.platform)
        if named not in own:
            raise ConfigError(
                "unexpected 'platform' and 'backend' pair, "
                f"got:{config.platform}, {config.backend}",
                file=file,
                field="platform",
                fix=f'Write platform: "{own[0].name}", or leave platform out',
            )
        assert named is not None
        return named
    written = config.default_model_filename
    for platform in own:  # one backend, several formats
        suffix = platform.filename.removeprefix("model")
        if written.endswith(suffix) if written else platform.filename in version_files:
            return platform
    return own[0]


def _by_name(platform: str) -> Platform | None:
    """The row that a `platform` names; a backend's own name is accepted too."""
    backend = BACKEND_NAMES.get(platform, "")
    own = [known for known in PLATFORMS if known.backend == backend]
    return next((known for known in own if known.name == platform), own[0] if own else None)


def _platform_fix(written: str) -> str:
    names = [platform.name for platform in PLATFORMS if platform.name] + [_ENSEMBLE]
    close = near_match(written, names)
    if close is not None:
        return f'Did you mean platform: "{close}"?'
    return f"Known platforms are: {', '.join(names)}; any other runtime is named with backend"

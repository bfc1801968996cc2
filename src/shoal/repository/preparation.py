"""From a model's folder to a `ModelSpec`: read, infer, complete, check, resolve.

    config.pbtxt --> agents --> backend --> complete from the model --> rules --> instance groups

A load request may have its own config, and files that replace those of the folder.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from shoal.backends.base import Backend
from shoal.backends.initialisation import initialising_with
from shoal.backends.isolation.backend import PROCESS, with_isolation
from shoal.backends.registry import BackendRegistry
from shoal.config import codec, normalise, pbtxt, rules
from shoal.config.backends import PYTHON, PYTHON_RUNTIME
from shoal.config.model import ModelConfig, ModelInstanceGroup, ModelVersionPolicy
from shoal.config.parameters import value_of
from shoal.errors import ConfigError, Internal, InvalidArgument, ShoalError
from shoal.instance import device
from shoal.models import replicas
from shoal.models.spec import ModelSpec, ServingContext
from shoal.repository import agents, ensembles, layout
from shoal.repository.declared import DeclaredModels, FolderlessModel
from shoal.repository.ensembles import RepositoryModels
from shoal.repository.lifecycle import UnreadableModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparationSettings(ServingContext):
    """How models are read, and what the server provides for them, from the command line."""

    models: RepositoryModels | None = None  # for ensembles, too
    config_name: str = ""
    auto_complete: bool = True
    gpu_fallback_cpu: bool = False
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    backends: BackendRegistry = field(default_factory=BackendRegistry)
    isolation: str = "none"  # none | process, for models without the parameter
    declared: DeclaredModels = field(default_factory=DeclaredModels)  # models without a folder


class Override:
    """The config and files of a load request. It stays in force until a load without one."""

    def __init__(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Check the override; files are written to a folder of their own.

        Raises InvalidArgument when a path leaves the model's folder, Internal when a file cannot
        be written; nothing stays on disk then.
        """
        self.config_json = config_json
        self._folder: TemporaryDirectory[str] | None = None
        if not files:
            return
        targets = {_inside(path): content for path, content in files.items()}
        self._folder = TemporaryDirectory(prefix="shoal-")
        root = Path(self._folder.name) / name
        for relative, content in targets.items():
            path = root / relative
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:
                self._folder.cleanup()
                raise Internal(
                    f"failed to load '{name}', failed to poll from model repository: cannot write "
                    f"the override file '{str(relative)[:80]}': {error.strerror}"
                ) from None

    @property
    def has_files(self) -> bool:
        """Whether the request had files."""
        return self._folder is not None

    def folder(self, name: str) -> Path | None:
        """The folder that replaces the repository's, if the request had files."""
        return None if self._folder is None else Path(self._folder.name) / name

    def discard(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()


def _inside(path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    if (
        not relative.parts
        or relative.is_absolute()
        or ".." in relative.parts
        or "\\" in path
        or "\0" in path
    ):
        raise InvalidArgument(
            f"override file '{path}' lies outside the model's folder; give a path like "
            f"'file:1/model.onnx'"
        )
    return relative


def prepare(
    name: str, folder: Path, settings: PreparationSettings, override: Override | None
) -> ModelSpec:
    """Read and check everything about a model, without loading it.

    Raises ConfigError (the operator must change the config), UnreadableModel (the model file) or
    another ShoalError.
    """
    replaced = override.folder(name) if override is not None else None
    code = settings.declared.find(folder, name) if replaced is None else None
    folder = code.folder if code is not None else replaced or folder
    if not folder.is_dir():
        raise Internal(f"the folder of model '{name}' has disappeared")
    config, file = _read_config(name, folder, settings, override, code)
    if code is None and folder.name != name:  # registered under a name of its own
        config = dataclasses.replace(config, name=name)
    config = normalise.normalise(config, directory_name=name, file=file)
    sent = override is not None and override.config_json is not None
    own = _own_config(name, folder, settings, code) if sent else None
    rules.check_files(config, file=file, own=own)
    agents.run(config, folder, file=file)
    versions = _select_versions(name, folder, config, code)
    first = next(iter(versions.values()))
    config = normalise.infer_backend(config, _names(first), file=file)
    backend = code.backend if code is not None else None
    if backend is None and config.platform != ensembles.PLATFORM:
        with _unreadable(versions, ShoalError):  # as in Triton, the versions fail, not the config
            backend = settings.backends.get(
                config.backend or config.platform, file=file, runtime=config.runtime, model=name
            )
    backend = with_isolation(backend, config, settings.isolation, file)
    backend_settings = _settings_of(settings, config.backend, backend)
    if backend is not None and backend.code_folder is not None:
        config = dataclasses.replace(config, runtime=PYTHON_RUNTIME)
    if settings.auto_complete and backend is not None:
        with _unreadable(versions, Exception), initialising_with(backend, name):
            config = backend.complete(config, folder, first, backend_settings)
        config = normalise.normalise(config, directory_name=name, file=file)
    rules.check(config, file=file)
    with _unreadable(versions, ConfigError):  # the config is right, this machine lacks a GPU
        config = _place(config, backend, settings, file)
    spec = ModelSpec(
        name=name,
        folder=folder,
        config=config,
        backend=backend,
        version_folders=versions,
        fingerprints=fingerprints(folder, versions, backend)
        if code is None
        else dict.fromkeys(versions, code.fingerprint),
        settings=backend_settings,
        cores=device.available_cores(),
        context=settings,
        bare_file=code.bare_file if code is not None else None,
    )
    _warn(spec, file)
    if backend is None:
        assert settings.models is not None
        return ensembles.prepared(spec, settings.models.seen_from(settings.namespace), file=file)
    return spec


@contextmanager
def _unreadable(versions: Iterable[int], error: type[Exception]) -> Iterator[None]:
    """Such an error means that these versions cannot be read."""
    try:
        yield
    except error as cause:
        raise UnreadableModel(list(versions)) from cause


def _select_versions(
    name: str, folder: Path, config: ModelConfig, code: FolderlessModel | None
) -> dict[int, Path]:
    """The folders of the versions to load, of which there is at least one."""
    available = layout.version_folders(folder) if code is None else code.versions
    if ensembles.is_ensemble(config):
        available = ensembles.version_folders(available, folder)
    wanted = layout.select_versions(config.version_policy, available, name)
    if not wanted:
        raise InvalidArgument(
            f"at least one version must be available under the version policy of model '{name}'"
            f"{_versions_hint(available)}"
        )
    for version in wanted:
        _check_readable(name, version, available[version])
    return {version: available[version] for version in wanted}


def _place(
    config: ModelConfig, backend: Backend | None, settings: PreparationSettings, file: str
) -> ModelConfig:
    """The config with its instances on devices of this machine."""
    gpus = device.gpus() if backend is None or backend.uses_gpus else ()
    if gpus and backend is not None:
        config = _on_cpus_if_it_must(config, backend, file)
    return normalise.resolve_instance_groups(
        config,
        default_cpu_count=1 if backend is None else backend.default_cpu_instances,
        gpus=gpus,
        gpu_fallback_cpu=settings.gpu_fallback_cpu,
        file=file,
    )


def _on_cpus_if_it_must(config: ModelConfig, backend: Backend, file: str) -> ModelConfig:
    """The config with KIND_CPU for KIND_AUTO if the backend cannot use GPUs, with a warning."""
    reason = backend.why_not_on_gpus()
    groups = config.instance_group or (ModelInstanceGroup(name=config.name),)
    if not reason or all(group.kind != "KIND_AUTO" for group in groups):
        return config
    logger.warning("%s: the model runs on the CPU although there is a GPU: %s", file, reason)
    return dataclasses.replace(
        config,
        instance_group=tuple(
            dataclasses.replace(group, kind="KIND_CPU", gpus=())
            if group.kind == "KIND_AUTO"
            else group
            for group in groups
        ),
    )


def _warn(spec: ModelSpec, file: str) -> None:
    """Log what the config sets without an effect."""
    config, context = spec.config, spec.context
    for field_name in rules.not_acted_on(config):
        logger.warning("%s: %s is not acted on yet and has no effect", file, field_name)
    cache, limiter = context.cache is not None, context.limiter is not None
    for sentence in rules.without_use(config, cache=cache, limiter=limiter):
        logger.warning("%s: %s", file, sentence)
    if value_of(config, replicas.PARAMETER) and (why := replicas.obstacle(spec)):
        logger.warning(
            "%s: parameters['%s'] has no effect, because %s", file, replicas.PARAMETER, why
        )


def composing_names(
    name: str, folder: Path, settings: PreparationSettings, override: Override | None
) -> list[str]:
    """The models that an ensemble runs; none for other models, or if it cannot be read."""
    try:
        config, _ = _read_config(name, folder, settings, override)
    except ShoalError:
        return []  # its load will report the error
    return ensembles.composing_names(config)


def version_policy(
    name: str, folder: Path, settings: PreparationSettings, override: Override | None
) -> ModelVersionPolicy | None:
    """The version policy of a model, of which only the configuration is needed.

    Raises ConfigError if that cannot be read.
    """
    return _read_config(name, folder, settings, override)[0].version_policy


def _own_config(
    name: str, folder: Path, settings: PreparationSettings, code: FolderlessModel | None
) -> ModelConfig:
    """The config without that of the load request; an empty one if it cannot be read."""
    try:
        return _read_config(name, folder, settings, None, code)[0]
    except ShoalError:
        return ModelConfig()


def _read_config(
    name: str,
    folder: Path,
    settings: PreparationSettings,
    override: Override | None,
    code: FolderlessModel | None = None,
) -> tuple[ModelConfig, str]:
    """The config as written or declared, and the file that errors should name."""
    if override is not None and override.config_json is not None:
        where = f"config given with the load of '{name}'"
        written = codec.parse_json(override.config_json, where)
        if code is not None:
            written = dataclasses.replace(written, backend=written.backend or code.config.backend)
        return written, where
    if code is not None:
        return code.config, code.file
    path = layout.config_file(folder, settings.config_name)
    file = str(path)
    if path.exists() and not path.is_file():  # reading a pipe or a device might never end
        raise ConfigError("this is not a file", file=file, fix="Write the config as a text file")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(
                "this is a link to a file that does not exist",
                file=file,
                fix="Copy the file that it should lead to, or remove the link",
            ) from None
        if not settings.auto_complete:
            raise ConfigError(
                "there is no such file, and completing configurations is disabled",
                file=file,
                fix="Write the file or start without --disable-auto-complete-config",
            ) from None
        return ModelConfig(), file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=file) from None
    return pbtxt.parse_pbtxt(text, file), file


def fingerprints(
    folder: Path, chosen: Mapping[int, Path], backend: Backend | None
) -> dict[int, object]:
    """The fingerprint of each version's files, with those that all versions share."""
    shared = layout.fingerprint(folder, skip_folders=True)
    shared = tuple(row for row in shared if not row[0].endswith(".pbtxt"))
    shared += layout.fingerprint(folder / "initial_state")  # where sequences start from
    if backend is not None and backend.code_folder is not None:
        shared += layout.fingerprint(backend.code_folder)
    return {version: (at, layout.fingerprint(at), shared) for version, at in chosen.items()}


def _names(version_folder: Path) -> set[str]:
    try:
        return {path.name for path in version_folder.iterdir()}
    except OSError:
        return set()


def _check_readable(name: str, version: int, folder: Path) -> None:
    """Refuse a version whose folder is a link that leads nowhere, or may not be read."""
    try:
        folder.stat()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.is_symlink():
            return  # an ensemble needs none, and backends name what they miss
        raise InvalidArgument(
            f"version {version} of model '{name}' cannot be read: {error.strerror}: '{folder}'"
        ) from None


def _versions_hint(available: Mapping[int, Path]) -> str:
    if available:
        return f" (there are: {', '.join(map(str, sorted(available)))})"
    return "; put the model file into a folder named 1"


def _settings_of(
    settings: PreparationSettings, name: str, backend: Backend | None
) -> dict[str, str]:
    """--backend-config for one backend; entries without a backend's name apply to all, and those
    of `python` to Python-based backends, too."""
    python = backend is not None and backend.runs_python_models
    names = dict.fromkeys(("", PYTHON, name) if python else ("", name))
    found = {
        key: text for one in names for key, text in settings.backend_settings.get(one, {}).items()
    }
    if python and settings.isolation == PROCESS:
        found.setdefault("execution", PROCESS)
    return found

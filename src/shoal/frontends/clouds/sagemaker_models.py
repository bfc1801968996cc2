"""The models of a SageMaker endpoint with many models: the platform loads and unloads them.

    load: /opt/ml/models/<hash>/model --> a repository of its own --> the model in it, renamed
    unload: the model and those only it needs --> their memory is free --> the repository is gone

The platform unpacks an archive before it asks for a load. The archive is a model's folder, or has
one folder, or those of an ensemble and its models.
"""

from __future__ import annotations

import logging
import os.path
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config import pbtxt
from shoal.config.model import ModelConfig
from shoal.engine import Engine
from shoal.errors import AlreadyExists, InvalidArgument, NotFound, ShoalError
from shoal.frontends.shared_names import NO_FILE, SharedNames
from shoal.repository import layout
from shoal.repository.ensembles import composing_names, is_ensemble

logger = logging.getLogger(__name__)

ROOT = Path("/opt/ml/models")  # where the platform unpacks archives
_KIND = "sagemaker"  # of names
_BELOW_ROOT = re.compile(r"[0-9A-Za-z._]+/model(/[0-9A-Za-z._]+)?")
_UNLOAD_SECS = 350  # the platform waits for 360


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that the platform has loaded."""

    repository: Path
    target: str  # its name in this server


class SageMakerModels:
    """Loaded models by the name that the platform uses in paths. Any thread may use them."""

    def __init__(self, engine: Engine, names: SharedNames | None = None) -> None:
        """`names` are those of all front ends, where there are several."""
        self._engine = engine
        self._root = ROOT
        self._changing = threading.Lock()  # guards changes of what follows
        self._loaded: Mapping[str, LoadedModel] = {}
        self._taken: set[str] = set()  # names and targets, also of those that are loading
        self._names = names
        if names is not None:
            names.attach(_KIND, self)

    def get(self, name: str) -> LoadedModel | None:
        """A loaded model; None if it is not loaded."""
        return self._loaded.get(name)

    def find(self, name: str) -> LoadedModel:
        """A loaded model. Raises NotFound."""
        loaded = self._loaded.get(name)
        if loaded is None:
            raise NotFound(f"the model '{name}' is not loaded: load it with POST /models")
        return loaded

    def ready(self) -> dict[str, LoadedModel]:
        """Those that can serve. Blocks."""
        return {
            name: loaded for name, loaded in self._loaded.items() if self._is_ready(loaded.target)
        }

    def _is_ready(self, target: str) -> bool:
        try:
            return self._engine.model_ready(target)
        except ShoalError:
            return False

    def load(self, name: str, url: str, target: str) -> None:
        """Load the model below `url` as `target`. Blocks.

        Raises AlreadyExists if it is loaded, InvalidArgument for a url without a model in it, and
        what the load raises; nothing has changed then.
        """
        logger.info("Loading SageMaker TargetModel: %s", target)
        layout.check_name(target)
        repository, folder = self._locate(url)
        with self._changing:
            if self._taken & {name, target}:
                raise AlreadyExists(f"the model '{name}' is loaded already")
            self._taken |= {name, target}
        try:
            self._load(repository, folder, target)
        except BaseException:
            with self._changing:
                self._taken -= {name, target}
            raise
        if self._names is not None:
            self._names.register(_KIND, name, (str(repository), target))
        else:
            self.add(name, (str(repository), target))

    def _load(self, repository: Path, folder: str, target: str) -> None:
        if self._is_ready(target):
            raise InvalidArgument(
                f"this server has a model '{target}' that the platform did not load; rename one"
            )
        self._engine.register_repository(repository, {folder: target})
        try:
            self._engine.load(target, None, {})
        except BaseException:
            self._engine.unload(target, unload_dependents=True)
            self._engine.unregister_repository(repository)
            raise

    def unload(self, name: str) -> None:
        """Unload a model. Blocks until its memory is free, at most for as long as the platform
        waits. Raises NotFound."""
        with self._changing:
            loaded = self.find(name)
            self._loaded = {key: kept for key, kept in self._loaded.items() if key != name}
        if self._names is not None:
            self._names.unregister(_KIND, [name])
        logger.info("Unloading SageMaker TargetModel: %s", loaded.target)
        self._engine.unload(loaded.target, unload_dependents=True)
        if not self._engine.unregister_repository(loaded.repository, wait_secs=_UNLOAD_SECS):
            logger.error(
                "the model '%s' still answers requests %d s after it was unloaded; its memory is "
                "not free yet",
                loaded.target,
                _UNLOAD_SECS,
            )
        with self._changing:
            self._taken -= {name, loaded.target}

    # ---- what this or another front end has loaded: see `NameTaker`

    def is_slow(self, value: Any) -> bool:
        """Nothing has to be opened."""
        del value
        return False

    def add(self, name: str, value: Any, file: int = NO_FILE) -> None:
        """A model has been loaded."""
        del file
        repository, target = value
        with self._changing:
            self._taken |= {name, target}
            self._loaded = {**self._loaded, name: LoadedModel(Path(repository), target)}

    def leave(self, name: str, unused: Callable[[], None]) -> bool:
        """See `NameTaker`: the engine finishes the requests of a model that is unloaded."""
        del name, unused
        return False

    def remove(self, name: str) -> None:
        """A model is being unloaded by another front end."""
        with self._changing:
            loaded = self._loaded.get(name)
            if loaded is not None:
                self._loaded = {key: kept for key, kept in self._loaded.items() if key != name}
                self._taken -= {name, loaded.target}

    def _locate(self, url: str) -> tuple[Path, str]:
        """The repository for an archive, and the folder of its model in it."""
        path = Path(os.path.abspath(url)) if url else Path()  # noqa: PTH100 - keeps links
        inside = path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else ""
        if _BELOW_ROOT.fullmatch(inside) is None:
            raise InvalidArgument(
                f"Invalid \"url\" '{url}': expected a path of the form "
                f"{self._root}/<hash>/model[/<subdir>]"
            )
        if not path.is_dir():
            raise InvalidArgument(f"failed to register '{path}', repository not found")
        if layout.config_file(path).is_file() or layout.is_single_model(path):
            return path.parent, path.name
        return path, _main_model(path)


def _main_model(archive: Path) -> str:
    """The folder of the model that an archive is about: the only one, or the ensemble."""
    names = sorted(layout.list_models(archive).models)
    if not names:
        raise InvalidArgument(f"'{archive}' has neither a config.pbtxt nor a folder with a model")
    if len(names) == 1:
        return names[0]
    configs = {name: _config(archive / name) for name in names}
    ensembles = {name: config for name, config in configs.items() if is_ensemble(config)}
    used = {inner for config in ensembles.values() for inner in composing_names(config)}
    main = [name for name in ensembles if name not in used]
    if len(main) != 1:
        raise InvalidArgument(
            f"'{archive}' has the models {', '.join(names)}, and which of them is to be loaded is "
            "not clear: an archive has one model, or one ensemble with its models"
        )
    return main[0]


def _config(folder: Path) -> ModelConfig:
    """The config of a model as written; an empty one if it cannot be read."""
    file = layout.config_file(folder)
    try:
        return pbtxt.parse_pbtxt(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError, ShoalError):
        return ModelConfig()

"""Models of equal name in different repositories (`--model-namespacing`).

    clients request "resnet"  -->  "/a/resnet", or ambiguous if there is a "/b/resnet", too
    an ensemble of /a         -->  "/a/resnet" if it exists, else the only other one

Inside the repository a model is identified by its key. Without namespaces that is its name; with
them it is the path of its folder, which is unique.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from shoal.core.request import Request
from shoal.models.served import ServedModel

if TYPE_CHECKING:  # the repository makes views of itself
    from shoal.repository.repository import ModelRepository


def plain_name(key: str) -> str:
    """The name by which clients know the model with this key."""
    return key.rpartition("/")[2]


def namespace_of(key: str) -> str:
    """The repository of a key; empty without namespaces."""
    return key.rpartition("/")[0]


def same_name(name: str, keys: Iterable[str]) -> list[str]:
    """Those of `keys` whose plain name is `name`."""
    return [key for key in keys if plain_name(key) == name]


def resolve(name: str, seen_from: str, keys: Collection[str]) -> str:
    """The key that `name` stands for in the namespace `seen_from`.

    Its own namespace comes first, then the only other one with that name. If there is none, or
    several, it is the key in its own namespace, which does not exist.
    """
    own = f"{seen_from}/{name}"
    if own not in keys:
        others = same_name(name, keys)
        if len(others) == 1:
            return others[0]
    return own


class NamespaceView:
    """The repository for ensembles of one namespace. Names are looked up at each call, because
    models may be loaded and unloaded meanwhile."""

    def __init__(self, repository: ModelRepository, namespace: str) -> None:
        self._repository = repository
        self._namespace = namespace

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """The model that serves requests for `name`, or None."""
        return self._repository.serving(self._key(name), version)

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve."""
        return self._repository.ready_versions(self._key(name))

    def why_not(self, name: str) -> str:
        """Why a model does not serve."""
        return self._repository.why_not(self._key(name))

    def seen_from(self, namespace: str) -> NamespaceView:
        """The repository for another namespace."""
        return NamespaceView(self._repository, namespace)

    def infer(self, request: Request) -> None:
        """Take over a request for any of them, or raise a ShoalError."""
        self._repository.infer(request, self._key(request.model_name))

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses."""
        return self._repository.is_decoupled(self._key(name), version)

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready."""
        return self._repository.model_ready(self._key(name), version)

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Blocks."""
        self._repository.load(name, config_json, files)

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model. Blocks."""
        self._repository.unload(name, unload_dependents=unload_dependents)

    def _key(self, name: str) -> str:
        own = f"{self._namespace}/{name}"
        if self._repository.serving(own) is not None:
            return own
        return resolve(name, self._namespace, self._repository.serving_keys(name))

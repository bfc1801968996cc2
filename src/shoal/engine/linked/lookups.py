"""What a front end has to ask the engine before it can go on: callers wait, and then try again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shoal.core.model_loading import ModelLoading
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.linked.known_models import KnownModels
    from shoal.engine.linked.model import LinkedModel

Settled = Callable[["ShoalError | None"], None]
Key = tuple[str, int]  # the name and version that a client asks for


class ModelLookup(ModelLoading):
    """Raised for a model that this process has to ask the engine for."""

    only_asks = True

    def __init__(self, models: KnownModels, key: Key) -> None:
        super().__init__(f"model '{key[0]}' has to be looked up first")
        self._models = models
        self._key = key

    def then(self, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """See `ModelLoading`."""
        del inside
        self._models.look_up(self._key, settled)
        return lambda: None


class RoomQuestion(ModelLoading):
    """Raised for a model that may have no room for a request."""

    only_asks = True

    def __init__(self, models: KnownModels, key: Key, model: LinkedModel) -> None:
        super().__init__(f"whether model '{key[0]}' has room has to be asked first")
        self._ask = partial(models.ask_for_room, key, model)

    def then(self, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """See `ModelLoading`."""
        del inside
        self._ask(settled)
        return lambda: None


class LoadedByRequest(ModelLoading):
    """Raised for a model that is loaded when a request waits for it."""

    def __init__(self, models: KnownModels, key: Key, text: str) -> None:
        super().__init__(text)
        self._models = models
        self._key = key

    def then(self, settled: Settled, *, inside: bool = False) -> Callable[[], None]:
        """See `ModelLoading`."""
        del inside
        return self._models.load_on_demand(self._key, settled)

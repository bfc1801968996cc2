"""A model that exists but is not loaded: callers that can wait are called back.

    find(model) --raises--> ModelLoading --then--> its load --> settled(None), or settled(error)

It is an error like any other to those who cannot wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from shoal.core.request import Request
from shoal.errors import ShoalError, Unavailable


class ModelLoading(Unavailable, ABC):
    """The requested model has to be loaded first, or looked up in the engine process."""

    only_asks = False  # whether to wait for it loads nothing

    @abstractmethod
    def then(
        self, settled: Callable[[ShoalError | None], None], *, inside: bool = False
    ) -> Callable[[], None]:
        """Load it and call `settled` once, from any thread, with the error or None: then the caller
        should retry. The returned function cancels the callback.

        `inside` for those who may be part of another load: theirs must not wait for that.
        """


class LoadOnDemand(ModelLoading):
    """The requested model is loaded by requests, which wait for it."""

    @abstractmethod
    def hold(self, request: Request, again: Callable[[], None], *, inside: bool = False) -> None:
        """Take `request` over until the load has settled, then call `again`, which takes it over.

        It is answered here when the load fails, when its own time runs out or when it is cancelled,
        and with what `again` raises.
        """


class FailedToLoad(Unavailable):
    """The load that a request waited for failed, or one that was tried a moment ago did."""

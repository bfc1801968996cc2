"""The server behind pb_utils, for models that run in its process or at the end of a pipe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from weakref import WeakKeyDictionary

from shoal.backends.base import OtherModels
from shoal.backends.python.api.host import NOT_FROM_FORKS, Context, FamilyHandle, write_log
from shoal.backends.python.wait_graph import WaitEndingReply, WaitGraph
from shoal.core.model_loading import FailedToLoad, LoadOnDemand
from shoal.core.request import Request
from shoal.errors import Internal, NotFound, Unavailable
from shoal.statistics.custom import CustomMetrics

_wait_graph: WeakKeyDictionary[OtherModels, WaitGraph] = WeakKeyDictionary()


class ServerHost:
    """The server's functions for models."""

    shares_memory = True

    def __init__(self, models: OtherModels | None, metrics: CustomMetrics | None) -> None:
        """Without `models` the model runs without a server and cannot call others."""
        self._models = models
        self._pid = os.getpid()
        self._metrics = metrics or CustomMetrics()
        self.waits = WaitGraph() if models is None else _wait_graph.setdefault(models, WaitGraph())

    @property
    def _others(self) -> OtherModels:
        if self._models is None:
            raise Unavailable(
                "this model is not served by a server, so it cannot call other models"
            )
        if os.getpid() != self._pid:
            raise Unavailable(NOT_FROM_FORKS)
        return self._models

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """Run `request` on another model; see `shoal.backends.python.api.host.Host`."""
        name, version = request.model_name, request.model_version
        others = self._others
        request.admitted = True  # a part of the request that the calling model executes
        try:
            is_decoupled = others.is_decoupled(name, version)
        except LoadOnDemand as pending:
            again = partial(self.infer, request, decoupled=decoupled, waiting=waiting)
            pending.hold(request, again, inside=True)
            return
        except FailedToLoad:
            raise
        except NotFound as error:
            raise _refused(name, error.message) from None
        except Unavailable:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise _refused(name, text) from None
        if is_decoupled and not decoupled:
            raise _refused(
                name,
                f"Model {name} is using the decoupled. The current BLS request call doesn't "
                f"support models using the decoupled transaction policy. Please use "
                f"'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                f"models.'",
            )
        if waiting is None:
            others.infer(request)
            return
        self.waits.begin(waiting, name)
        request.reply = WaitEndingReply(request.reply, self.waits, waiting)
        try:
            others.infer(request)
        except BaseException:
            self.waits.end(waiting)
            raise

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""
        self._others.load(name, config or None, files)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""
        self._others.unload(name, unload_dependents=unload_dependents)

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model can be asked."""
        try:
            return self._others.model_ready(name, version)
        except NotFound:
            return False

    def metric_family(self, name: str, description: str, kind: str) -> FamilyHandle:
        """A family of metrics beside the server's own."""
        return self._metrics.family(name, description, kind)

    def log(self, level: int, message: str, file: str, line: int) -> None:
        """Into the server's log."""
        write_log(level, message, file, line)


def _refused(name: str, text: str) -> Internal:
    return Internal(f"Model {name} - Error when running inference: {text}")

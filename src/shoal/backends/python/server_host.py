"""The server behind pb_utils, for models that run in its process or at the end of a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from shoal.backends.base import OtherModels
from shoal.backends.python.api.host import Context, FamilyHandle, write_log
from shoal.backends.python.waits import WaitedFor, Waits
from shoal.core.request import Request
from shoal.errors import Internal, NotFound, Unavailable
from shoal.statistics.custom import CustomMetrics

_waits: WeakKeyDictionary[OtherModels, Waits] = WeakKeyDictionary()


class ServerHost:
    """What models may ask of the server they are served by."""

    def __init__(self, models: OtherModels | None, metrics: CustomMetrics | None) -> None:
        """Without `models` there is no server around the model, so it can ask no other."""
        self._models = models
        self._metrics = metrics or CustomMetrics()
        self.waits = Waits() if models is None else _waits.setdefault(models, Waits())

    @property
    def _others(self) -> OtherModels:
        if self._models is None:
            raise Unavailable("this model is not served by a server, so it cannot ask other models")
        return self._models

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """Have another model answer `request`; see `shoal.backends.python.api.host.Host`."""
        name, version = request.model_name, request.model_version
        others = self._others
        try:
            is_decoupled = others.is_decoupled(name, version)
        except (NotFound, Unavailable):
            raise Internal(
                f"Failed for execute the inference request. Model '{name}' is not ready."
            ) from None
        if is_decoupled and not decoupled:
            raise Internal(
                f"Model {name} is using the decoupled. The current BLS request call doesn't "
                f"support models using the decoupled transaction policy. Please use "
                f"'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                f"models.'"
            )
        if waiting is None:
            others.infer(request)
            return
        self.waits.begin(waiting, name)
        request.reply = WaitedFor(request.reply, self.waits, waiting)
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

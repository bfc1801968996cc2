"""`tritonserver.Server`: one server of the process, by the names of Triton's bindings."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any

from shoal.errors import NotFound
from shoal.inprocess.server import Server as ShoalServer
from shoal.tritonserver import metrics
from shoal.tritonserver.enums import MetricFormat
from shoal.tritonserver.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    triton_errors,
)
from shoal.tritonserver.model import Model
from shoal.tritonserver.options import Options

_FILE = "file:"
_UNLOADED = (None, "UNAVAILABLE")


class RunningServer:
    """A server that models and responses refer to. It is stopped when nothing does any more."""

    def __init__(self, server: ShoalServer) -> None:
        self.server = server
        self._abandoned = weakref.finalize(self, _stop_on_thread, server)
        self._abandoned.atexit = False  # its threads end with the process

    def stop(self) -> None:
        """Stop it now."""
        self._abandoned.detach()
        self.server.stop()


def _stop_on_thread(server: ShoalServer) -> None:
    """Garbage is collected on any thread, also on one that the server has to end."""
    with contextlib.suppress(RuntimeError):  # the process ends
        threading.Thread(target=server.stop, name="shoal-stop", daemon=True).start()


class ModelDictionary(dict[Any, Model]):
    """Models by name and version; by name alone the newest version of one."""

    def __init__(self, server: RunningServer, models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: Any) -> Model:
        if isinstance(key, tuple):
            if key in self:
                return super().__getitem__(key)
        elif any(name == key for name, _ in self):
            return Model(self._server, key)
        raise KeyError(f"Unknown Model: {key}")


class Server:
    """A server inside the program. It opens no ports."""

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        """`options`, or their fields as keywords. They are checked by `start`."""
        self.options = Options(**kwargs) if options is None else options
        self._server: RunningServer | None = None

    @property
    def _running(self) -> RunningServer:
        if self._server is None:
            raise InvalidArgumentError("Server not started")
        return self._server

    # ---- start and stop

    def start(
        self,
        wait_until_ready: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> Server:
        """Load models and start; returns itself.

        Raises TypeError and InvalidArgumentError for options, InternalError for repositories and
        models that cannot be loaded, UnavailableError if it is not ready within `timeout` seconds.
        """
        self.options._check()
        with triton_errors():
            server = ShoalServer(*self.options._repositories(), **self.options._settings())
            try:
                server.start()
            except NotFound as error:  # a repository
                raise InternalError(error.message) from error
        self._server = RunningServer(server)
        if self.options.metrics:
            _ = server._running().metrics  # from here on the use of the CPU is measured
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if end is not None and time.monotonic() >= end:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)
        return self

    def stop(self) -> None:
        """Finish the requests in flight, unload the models and stop."""
        running, self._server = self._running, None
        running.stop()

    # ---- status

    def live(self) -> bool:
        """Whether it runs."""
        return self._running.server.live

    def ready(self) -> bool:
        """Whether all its models are ready."""
        return self._running.server.ready

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        with triton_errors():
            return self._running.server.server_metadata()

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """The metrics of the server, of its models and of the program."""
        if metric_format is not MetricFormat.PROMETHEUS:
            raise InvalidArgumentError(f"there is no metric format {metric_format!r}")
        with triton_errors():
            return self._running.server.metrics() + metrics.render()

    # ---- models

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """A model by name; whether it exists is found out when it is used."""
        return Model(self._running, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The models of the repositories."""
        running = self._running
        with triton_errors():
            rows = running.server.index(ready=exclude_not_ready)
        models = [
            Model(
                running,
                row["name"],
                int(row.get("version", -1)),
                row.get("state"),
                row.get("reason"),
            )
            for row in rows
        ]
        return ModelDictionary(running, models)

    def load(
        self, model_name: str, parameters: dict[str, str | int | bool | bytes] | None = None
    ) -> Model:
        """Load a model and wait for it, in explicit mode.

        `parameters`: "config" with JSON, and files as "file:1/model.py".
        """
        config: str | None = None
        files: dict[str, bytes] = {}
        for name, value in (parameters or {}).items():
            if name == "config" and isinstance(value, str):
                config = value
            elif name.startswith(_FILE) and isinstance(value, bytes):
                files[name[len(_FILE) :]] = value
            else:
                raise InvalidArgumentError(
                    f"Unrecognized load parameter '{name}' with type {type(value).__name__}; use "
                    f"'config' with a str, or '{_FILE}<path>' with bytes"
                )
        with triton_errors():
            self._running.server.load(model_name, config=config, files=files)
        return self.model(model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Unload a model, in explicit mode."""
        name = model if isinstance(model, str) else model.name
        with triton_errors():
            self._running.server.unload(name, unload_dependents=unload_dependents)
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and not self._is_unloaded(name):
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(polling_interval)

    def _is_unloaded(self, name: str) -> bool:
        found = self.models().values()
        return all(model.state in _UNLOADED for model in found if model.name == name)

    # ---- repositories

    def register_model_repository(
        self, repository_path: str, name_mapping: dict[str, str] | None = None
    ) -> None:
        """Add a repository, in explicit mode; `name_mapping` has the names of models by folder."""
        with triton_errors():
            self._running.server.register_repository(repository_path, name_mapping)

    def unregister_model_repository(self, repository_path: str) -> None:
        """Remove a repository, in explicit mode."""
        with triton_errors():
            self._running.server.unregister_repository(repository_path)

    def poll_model_repository(self) -> None:
        """Load what has changed, in poll mode."""
        with triton_errors():
            self._running.server.poll_repositories()

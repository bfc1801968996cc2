"""A server inside a program, a notebook or a test.

    with shoal.Server([double], http_port=8000) as server:
        server.infer("double", {"x": [[1, 2, 3]]})

    caller's thread --start, infer, stop--> Server --> a thread with its own event loop

It does not run on the caller's thread, so a notebook, which has its own event loop, can start one,
and several may run in one process. By default it listens on free ports of the loopback interface.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from shoal.config.options import TABLE, NamedSetting, Options
from shoal.config.suggest import did_you_mean
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.errors import InvalidArgument, Unavailable
from shoal.inprocess.inference import (
    Inputs,
    Outputs,
    ResponseQueue,
    outputs_of,
    tensors,
    when_loaded,
)
from shoal.inprocess.loop import LoopThread
from shoal.server import Server as AsyncServer

LOOPBACK = "127.0.0.1"
# Differences from `shoal serve`: reachable only from this machine, on free ports.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "http_address": LOOPBACK,
        "http_port": 0,
        "grpc_address": LOOPBACK,
        "grpc_port": 0,
        "metrics_port": 0,
    }
)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
}


class Server:
    """One server of this process. Any thread may call any method."""

    def __init__(self, *models: Any, options: Options | None = None, **settings: Any) -> None:
        """`models` are folders, Python files and functions with `@shoal.model`, or lists of these.

        `settings` are the options of `shoal serve` with underscores (`http_port=8000`); or give
        them as `options`. Nothing is opened or read yet. Raises InvalidArgument.
        """
        paths, self._functions = _sorted(models)
        if options is None:
            options = Options(**{**DEFAULTS, **_checked(settings)})
        elif settings:
            raise InvalidArgument(f"give either options= or {', '.join(settings)}, not both")
        repositories = (*options.model_repository, *paths)
        if not repositories and not self._functions:
            raise InvalidArgument(
                "there are no models to serve; pass a folder of models or functions, as in "
                'shoal.Server("models") or shoal.Server([double])'
            )
        self._options = dataclasses.replace(options, model_repository=repositories)
        self._changing = threading.RLock()  # serialises start and stop; guards the two below
        self._loop: LoopThread | None = None
        self._server: AsyncServer | None = None
        self._stopped = threading.Event()  # set while it does not run
        self._stopped.set()

    # ---- start and stop

    def start(self) -> Server:
        """Listen and load; returns itself when the models are ready.

        Raises a ShoalError for a port in use, a missing folder or a model that fails to load;
        nothing runs then.
        """
        with self._changing:
            if self._server is not None:
                raise InvalidArgument("this server is already running")
            server = AsyncServer(self._options, functions=self._functions)
            self._server, self._loop = server, LoopThread("shoal-server")
            self._stopped.clear()
            try:
                self._loop.run(server.start())
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> bool:
        """Finish the requests in flight, unload and close. Does nothing if it does not run.

        False if that took longer than the exit time-out and requests were aborted.
        """
        with self._changing:
            server, loop = self._server, self._loop
            if server is None or loop is None:
                return True
            clean = loop.run(server.stop()) and not server.left_behind
            if clean:  # otherwise threads still run; they end with the process
                loop.close()
            self._server = self._loop = None
            self._stopped.set()
            return clean

    def wait(self) -> None:
        """Serve until Ctrl-C, or until another thread stops it. It has stopped on return."""
        with contextlib.suppress(KeyboardInterrupt):
            self._stopped.wait()
        self.stop()

    def __enter__(self) -> Server:  # noqa: PYI034 - Python 3.10 has no Self
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- addresses

    @property
    def http_port(self) -> int:
        """The port for HTTP."""
        return self._running().http_port

    @property
    def grpc_port(self) -> int:
        """The port for gRPC."""
        return self._running().grpc_port

    @property
    def metrics_port(self) -> int:
        """The port for metrics."""
        return self._running().metrics_port

    @property
    def tcp_port(self) -> int:
        """The port for questions over plain TCP; 0 if there is none."""
        return self._running().tcp_port

    @property
    def url(self) -> str:
        """`http://host:port` (https:// with --https-cert), for requests, curl and browsers."""
        return f"{self._options.http_scheme}://{self.http_url}"

    @property
    def http_url(self) -> str:
        """`host:port`, for tritonclient.http."""
        return f"{_reachable(self._options.http_address)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port`, for tritonclient.grpc."""
        return f"{_reachable(self._options.grpc_address)}:{self.grpc_port}"

    @property
    def tcp_url(self) -> str:
        """`host:port` for `shoal ask`; empty if there is no such port."""
        port = self.tcp_port
        return f"{_reachable(self._options.tcp_address)}:{port}" if port else ""

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, for Prometheus."""
        address = _reachable(self._options.metrics_listen_address)
        return f"{self._options.http_scheme}://{address}:{self.metrics_port}/metrics"

    @property
    def ready(self) -> bool:
        """Whether it runs and all its models are ready."""
        server = self._server
        return server is not None and server.engine.ready()

    # ---- inference

    def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        version: int = -1,
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout_secs: float | None = None,
    ) -> Outputs:
        """Send a request to a model, without a socket; returns its outputs by name.

        Inputs are arrays, or lists and values that are converted to the model's datatype; text is
        returned as `bytes`. Requests of several threads share batches. Raises the ShoalError that a
        client would get, and Unavailable after the time-out.
        """
        engine = self._running().engine
        if when_loaded(lambda: engine.is_decoupled(model, version)):
            raise InvalidArgument(f"model '{model}' may send any number of responses; use stream()")
        responses = self.stream(
            model,
            inputs,
            outputs=outputs,
            version=version,
            parameters=parameters,
            timeout_secs=timeout_secs,
        )
        return next(responses)

    def stream(
        self,
        model: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        version: int = -1,
        parameters: Mapping[str, ParameterValue] | None = None,
        timeout_secs: float | None = None,
    ) -> Iterator[Outputs]:
        """As `infer`, for a model with any number of responses: the outputs of each as it arrives.

        Closing the iterator before its end cancels the request.
        """
        engine = self._running().engine
        signature = when_loaded(lambda: engine.signature(model, version))
        responses = ResponseQueue(timeout_secs)
        request = Request(
            model,
            tensors(inputs, signature),
            responses,
            model_version=version,
            requested_outputs=tuple(outputs),
            parameters=dict(parameters or {}),
        )
        return outputs_of(engine, request, responses)

    def _running(self) -> AsyncServer:
        server = self._server
        if server is None:
            raise Unavailable("this server is not running; call start() or use it in a with block")
        return server


# ---- settings


def _sorted(models: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """The paths and the functions among the models."""
    paths: list[str] = []
    functions: list[Any] = []
    for entry in models:
        if isinstance(entry, (list, tuple)):
            inner_paths, inner_functions = _sorted(entry)
            paths += inner_paths
            functions += inner_functions
        elif isinstance(entry, (str, Path)):
            paths.append(str(entry))
        else:
            functions.append(entry)
    return paths, functions


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `Options` expects them: lists as tuples, and values of the right type."""
    known = {option.attribute: option for option in TABLE}
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        option = known.get(name)
        if option is None:
            fix = did_you_mean(name, list(known), "options")
            raise InvalidArgument(f"unknown option {name}=. {fix}")
        if option.repeatable:
            values: list[Any] = [value] if isinstance(value, (str, Path)) else list(value)
            if "NamedSetting" in option.type:
                checked[name] = tuple(NamedSetting(*entry) for entry in values)
            else:
                checked[name] = tuple(str(entry) for entry in values)
        elif not isinstance(value, _TYPES[option.type]) or (
            isinstance(value, bool) and option.type != "bool"
        ):
            raise InvalidArgument(f"{name}= takes {option.type}, found {value!r}")
        else:
            checked[name] = value
    return checked


def _reachable(address: str) -> str:
    """The address of a listener for a client on this machine."""
    if address in {"", "0.0.0.0", "::"}:
        return LOOPBACK
    return f"[{address}]" if ":" in address else address

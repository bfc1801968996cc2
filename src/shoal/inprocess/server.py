"""A server inside a program, a notebook or a test.

    with shoal.Server([double], http_port=8000) as server:
        server.infer("double", {"x": [[1, 2, 3]]})

    caller's thread --start, infer, stop--> Server --> a thread with an event loop of its own

It does not run on the caller's thread, so a notebook, which has a loop of its own, can start one,
and several may run side by side. It listens on free ports of this machine only, unless told
otherwise.
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
from shoal.inprocess.inference import Inputs, Outputs, ResponseQueue, answers, tensors, when_loaded
from shoal.inprocess.loop import LoopThread
from shoal.server import Server as AsyncServer

LOOPBACK = "127.0.0.1"
# What differs from `shoal serve`: nobody else is to reach it, and it is in nobody's way.
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
        """`models` are folders, Python files and functions with `@shoal.model`, or lists of them.

        `settings` are the options of `shoal serve` with underscores (`http_port=8000`); or give
        them whole as `options`. Nothing is opened or read yet. Raises InvalidArgument.
        """
        paths, self._functions = _sorted(models)
        if options is None:
            options = Options(**{**DEFAULTS, **_checked(settings)})
        elif settings:
            raise InvalidArgument(f"give either options= or {', '.join(settings)}, not both")
        given = (*options.model_repository, *paths)
        if not given and not self._functions:
            raise InvalidArgument(
                "there is nothing to serve; name a folder of models or hand over functions, as in "
                'shoal.Server("models") or shoal.Server([double])'
            )
        self._options = dataclasses.replace(options, model_repository=given)
        self._changing = threading.RLock()  # serialises start and stop; guards the two below
        self._loop: LoopThread | None = None
        self._server: AsyncServer | None = None
        self._over = threading.Event()  # set while it does not run
        self._over.set()

    # ---- start and stop

    def start(self) -> Server:
        """Listen and load; returns itself when the models are ready.

        Raises a ShoalError for a port that is taken, a folder that is missing and models that
        fail; then nothing runs.
        """
        with self._changing:
            if self._server is not None:
                raise InvalidArgument("this server is running already")
            server = AsyncServer(self._options, functions=self._functions)
            self._server, self._loop = server, LoopThread("shoal-server")
            self._over.clear()
            try:
                self._loop.run(server.start())
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> bool:
        """Finish the requests in flight, unload and close; nothing to do where it does not run.

        False when that took longer than the exit timeout and something was cut off.
        """
        with self._changing:
            server, loop = self._server, self._loop
            if server is None or loop is None:
                return True
            clean = loop.run(server.stop()) and not server.left_behind
            if clean:  # otherwise something still runs: its threads end with the process
                loop.close()
            self._server = self._loop = None
            self._over.set()
            return clean

    def wait(self) -> None:
        """Serve until Ctrl-C, or until another thread stops it; it has stopped on return."""
        with contextlib.suppress(KeyboardInterrupt):
            self._over.wait()
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

    # ---- where it is

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
        """The port for questions over plain TCP; 0 where there is none."""
        return self._running().tcp_port

    @property
    def url(self) -> str:
        """`http://host:port`, for requests, curl and browsers."""
        return f"http://{self.http_url}"

    @property
    def http_url(self) -> str:
        """`host:port`, as tritonclient.http wants it."""
        return f"{_reachable(self._options.http_address)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port`, as tritonclient.grpc wants it."""
        return f"{_reachable(self._options.grpc_address)}:{self.grpc_port}"

    @property
    def tcp_url(self) -> str:
        """`host:port` for `shoal ask`; nothing where there is no such port."""
        port = self.tcp_port
        return f"{_reachable(self._options.tcp_address)}:{port}" if port else ""

    @property
    def metrics_url(self) -> str:
        """Where Prometheus finds the metrics."""
        address = _reachable(self._options.metrics_listen_address)
        return f"http://{address}:{self.metrics_port}/metrics"

    @property
    def ready(self) -> bool:
        """Whether it runs and all its models can be asked."""
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
        """Ask a model, without a socket between; returns its outputs by name.

        Inputs are arrays, or lists and values that become arrays of the type the model wants; text
        comes back as `bytes`. Requests of several threads share batches. Raises the ShoalError a
        client would get, and Unavailable when there is no answer in time.
        """
        engine = self._running().engine
        if when_loaded(lambda: engine.is_decoupled(model, version)):
            raise InvalidArgument(
                f"model '{model}' may answer any number of times; ask it with stream()"
            )
        given = self.stream(
            model,
            inputs,
            outputs=outputs,
            version=version,
            parameters=parameters,
            timeout_secs=timeout_secs,
        )
        return next(given)

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
        """Ask a model that may answer many times; each answer as it comes. As `infer` otherwise.

        The request is withdrawn when the iterator is closed before its end.
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
        return answers(engine, request, responses)

    def _running(self) -> AsyncServer:
        server = self._server
        if server is None:
            raise Unavailable("this server does not run; call start() or use it in a with block")
        return server


# ---- settings


def _sorted(models: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """The paths among what is to be served, and the functions."""
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
    """Settings as `Options` wants them: lists as tuples, and values of the right type."""
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
    """How a client on this machine reaches a listener."""
    if address in {"", "0.0.0.0", "::"}:
        return LOOPBACK
    return f"[{address}]" if ":" in address else address

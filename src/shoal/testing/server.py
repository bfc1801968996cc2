"""A real server inside a test: its own event loop in its own thread, on free ports.

    with running_server(folder, model_control_mode="explicit") as running:
        assert running.get("/v2/health/ready").status == 200

The test may block, because the server does not run on its thread. Leaving the block stops the
server, and fails when it did not stop cleanly or when its event loop reported an unhandled error.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shoal.backends.registry import BackendRegistry
from shoal.config.options import Options
from shoal.inprocess.keywords import DEFAULTS, LOOPBACK
from shoal.inprocess.loop import LoopThread
from shoal.logs import Log
from shoal.models.served import ServedModel
from shoal.server import ModelsFailed, Server
from shoal.testing import WAIT_SECS
from shoal.testing.linked import LinkedServer, ServerOfProcesses

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

ADDRESS = LOOPBACK
_KINDS = {"": Server, "linked": LinkedServer, "processes": ServerOfProcesses}  # of a test run
_LOOK_SECS = 0.002
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def wait_until(condition: Callable[[], Result], what: str = "") -> Result:
    """Call `condition` until its value is true, and return that value.

    Raises TimeoutError, which names `what`, after WAIT_SECS. Only for conditions without an event:
    where there is one, wait on that.
    """
    deadline = time.monotonic() + WAIT_SECS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not happen: {what or condition}")
        time.sleep(_LOOK_SECS)


class HttpResponse:
    """The response to one request. Header names are in lower case."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        """Read the response to its end."""
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        """The body as JSON, which also reads the bare tokens NaN and Infinity."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error, which must be all that the body holds."""
        document = self.json
        assert list(document) == ["error"], document
        return str(document["error"])

    def __repr__(self) -> str:
        return f"HttpResponse({self.status}, {self.body[:500]!r})"


class HttpCall:
    """A request that was sent on a connection of its own and has no response yet."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = http.client.HTTPConnection(ADDRESS, port, timeout=WAIT_SECS)
        self._connection.request(method, path, body, dict(headers or {}))

    @property
    def socket(self) -> Any:
        """The socket, for tests that look whether something has arrived."""
        return self._connection.sock

    def response(self) -> HttpResponse:
        """Wait for the response, then close the connection."""
        try:
            with self._connection.getresponse() as response:
                return HttpResponse(response)
        finally:
            self._connection.close()

    def disconnect(self) -> None:
        """Close the connection without waiting for the response."""
        self._connection.close()


class RunningServer:
    """A started server and its addresses. Any thread may use it."""

    def __init__(self, server: Server, loop: LoopThread) -> None:
        self.server = server
        self._loop = loop
        self.faults: list[dict[str, Any]] = []  # what the loop's exception handler got

    @property
    def http_address(self) -> str:
        """`host:port` of HTTP."""
        return f"{ADDRESS}:{self.server.http_port}"

    @property
    def grpc_address(self) -> str:
        """`host:port` of gRPC."""
        return f"{ADDRESS}:{self.server.grpc_port}"

    @property
    def metrics_address(self) -> str:
        """`host:port` of the metrics."""
        return f"{ADDRESS}:{self.server.metrics_port}"

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpCall:
        """Send a request without waiting for its response; a dict becomes JSON."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        return HttpCall(self.server.http_port, method, path, data, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """GET `path`."""
        return self.call("GET", path, headers=headers).response()

    def post(
        self,
        path: str,
        body: bytes | dict[str, Any] | None = b"",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """POST `body` to `path`."""
        return self.call("POST", path, body, headers).response()

    def load(self, name: str, **parameters: Any) -> HttpResponse:
        """Load a model; its config may be given as a dict."""
        if isinstance(parameters.get("config"), dict):
            parameters["config"] = json.dumps(parameters["config"])
        body = {"parameters": parameters} if parameters else b""
        return self.post(f"/v2/repository/models/{name}/load", body)

    def unload(self, name: str) -> HttpResponse:
        """Unload a model."""
        return self.post(f"/v2/repository/models/{name}/unload")

    def index(self) -> list[dict[str, str]]:
        """The repository's index."""
        response = self.post("/v2/repository/index")
        assert response.status == 200, response
        rows: list[dict[str, str]] = response.json
        return rows

    def states(self, name: str) -> dict[str, str]:
        """State by version of one model, from the index."""
        rows = [row for row in self.index() if row["name"] == name]
        return {row.get("version", ""): row.get("state", "") for row in rows}

    def config(self, name: str) -> dict[str, Any]:
        """The config of one model."""
        response = self.get(f"/v2/models/{name}/config")
        assert response.status == 200, response
        config: dict[str, Any] = response.json
        return config

    def statistics(self, name: str, version: int | None = None) -> dict[str, Any]:
        """The statistics of one model version."""
        place = f"/v2/models/{name}" + (f"/versions/{version}" if version is not None else "")
        response = self.get(f"{place}/stats")
        assert response.status == 200, response
        (entry,) = response.json["model_stats"]
        assert isinstance(entry, dict)
        return entry

    def metrics(self) -> str:
        """The text on the metrics port."""
        response = HttpCall(self.server.metrics_port, "GET", "/metrics").response()
        assert response.status == 200, response
        return response.body.decode()

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample of the metrics, in any order of its labels; None when it is missing."""
        for line in self.metrics().splitlines():
            sample, _, value = line.rpartition(" ")
            found, _, written = sample.partition("{")
            if found == name and dict(_LABEL.findall(written)) == labels:
                return float(value)
        return None

    @property
    def engine_pid(self) -> int:
        """The process that runs models, unless they have processes of their own."""
        server = self.server
        return server.engine_pid if isinstance(server, ServerOfProcesses) else os.getpid()

    def model(self, name: str, version: int = -1) -> ServedModel:
        """The model inside the server, for what clients cannot see."""
        return self.server.repository.find(name, version)

    def wait_for_pending(self, name: str, count: int) -> None:
        """Wait until exactly `count` requests are in the queue of a model."""
        if isinstance(self.server, ServerOfProcesses):
            version = self.get(f"/v2/models/{name}").json["versions"][-1]
            labels = {"model": name, "version": version}
            pending: Any = partial(self.metric, "nv_inference_pending_request_count", **labels)
        else:
            pending = self.model(name).statistics.pending
        wait_until(lambda: pending() == count, f"{count} requests wait for '{name}'")

    def wait_for_held(self, name: str, count: int) -> None:
        """Wait until exactly `count` requests wait for a model to be loaded (lazy mode)."""
        wait_until(
            lambda: (self.metric("shoal_on_demand_waiting", model=name) or 0) == count,
            f"{count} requests wait until '{name}' is loaded",
        )

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the server's loop."""
        return self._loop.run(coroutine, WAIT_SECS)


@contextmanager
def running_server(
    *repositories: Path | str,
    functions: Sequence[Any] = (),
    backends: BackendRegistry | None = None,
    log: Log | None = None,
    start: bool = True,
    **options: Any,
) -> Iterator[RunningServer]:
    """A server of `repositories` and `functions`, stopped when the block ends.

    `options` are the fields of `Options`; ports are free ones unless given. `log` is the one whose
    settings clients may change. Raises what `Server.start` raises. With `start` false nothing is
    opened yet: run `server.listen` and `server.load` yourself.
    """
    paths = tuple(str(path) for path in repositories)
    made = Options(model_repository=paths, **{**DEFAULTS, **options})
    kind: Any = _KINDS[os.environ.get("SHOAL_SERVERS", "")]
    server = kind(made, functions=functions, backends=backends, log=log)
    loop = LoopThread("shoal-testing-server")
    running = RunningServer(server, loop)
    loop.loop.set_exception_handler(lambda _, context: running.faults.append(context))
    try:
        if start:
            running.run(_started(server))
        yield running
    finally:
        clean = loop.run(server.stop(), WAIT_SECS + server.options.exit_timeout_secs)
        if clean:  # otherwise something still runs: the thread dies with the process
            loop.close(WAIT_SECS)
    if not clean:
        raise TimeoutError("the server did not stop within its exit timeout")
    if running.faults:
        raise AssertionError(f"unhandled on the server's loop: {running.faults}")


async def _started(server: Server) -> None:
    """Start, and log why a model failed, which the error itself does not name."""
    try:
        await server.start()
    except ModelsFailed as error:
        for reason in error.reasons:
            logger.error("%s", reason)  # noqa: TRY400 - a sentence, not a traceback
        raise

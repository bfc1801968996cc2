"""ASGI both ways: a server in somebody's application, and somebody's application in a server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

import shoal
from shoal.config.options import NamedSetting
from shoal.errors import ConfigError
from shoal.frontends.http.functions.application import _address
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS
from tests.support.keys import bearer, write_keys

fastapi = pytest.importorskip("fastapi")


@shoal.model(path="/greet")
def greet(name: str) -> str:
    if name == "nobody":
        raise ValueError("there is nobody")
    return f"Hello, {name}!"


@shoal.model(path="/count")
def count(start: int) -> Iterator[int]:
    yield from range(start)


left = threading.Event()
waiting = threading.Event()


@shoal.model(path="/wait")
def wait(x: int) -> Iterator[int]:
    try:
        yield x
        waiting.set()
        while True:
            yield x
    finally:
        left.set()


# ---- a small server of ASGI


class Driver:
    """Calls an application as a server of ASGI does, on a loop of its own."""

    def __init__(self, application):
        self.application = application
        self.loop = asyncio.new_event_loop()
        self.to_app = asyncio.Queue()
        self.from_app = asyncio.Queue()
        self.task = None

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, WAIT_SECS))

    def live(self, event):
        async def step():
            if self.task is None:
                scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
                run = self.application(scope, self.to_app.get, self.from_app.put)
                self.task = asyncio.ensure_future(run)
            await self.to_app.put({"type": f"lifespan.{event}"})
            return await self.from_app.get()

        return self.run(step())

    def call(self, method, path, body=b"", headers=(), leave_after=None):
        """Status, headers and chunks of a response; the client leaves after `leave_after`."""
        path, _, query = path.partition("?")
        fields = [(b"host", b"localhost"), *headers]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": fields,
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 80),
        }
        sent = []
        gone = asyncio.Event()

        async def receive():
            if body is not None and not getattr(receive, "done", False):
                receive.done = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if len(sent) == leave_after:
                gone.set()

        self.run(self.application(scope, receive, send))
        first, *chunks = sent
        fields = {name.decode(): value.decode() for name, value in first["headers"]}
        return first["status"], fields, [chunk.get("body", b"") for chunk in chunks]

    def close(self):
        if self.task is not None:
            assert self.live("shutdown")["type"] == "lifespan.shutdown.complete"
            self.run(self.task)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@pytest.fixture(scope="module")
def access_log(tmp_path_factory):
    return tmp_path_factory.mktemp("logs") / "access.log"


@pytest.fixture(scope="module")
def models(access_log):
    return shoal.asgi_app(greet, count, wait, access_log=str(access_log), http_max_body_size=5000)


@pytest.fixture(scope="module")
def mounted(models):
    app = fastapi.FastAPI(lifespan=models.lifespan)

    @app.get("/own")
    def own():
        return {"own": True}

    app.mount("/models", models)
    driver = Driver(app)
    assert driver.live("startup")["type"] == "lifespan.startup.complete"
    yield driver
    driver.close()
    assert not models.server.live


def test_a_server_in_an_application(mounted, models):
    assert models.server.live
    status, fields, chunks = mounted.call("POST", "/models/greet", b'{"name": "Ada"}')
    assert (status, b"".join(chunks)) == (200, b'"Hello, Ada!"')
    assert fields["content-type"] == "application/json"
    assert fields["content-length"] == "13"
    assert mounted.call("GET", "/own")[0] == 200
    assert mounted.call("GET", "/models/v2/health/ready")[0] == 200
    status, fields, chunks = mounted.call("HEAD", "/models/v2")
    assert (status, b"".join(chunks)) == (200, b"")
    assert int(fields["content-length"]) > 0
    page = mounted.call("GET", "/models/docs")
    assert (page[0], page[1]["content-type"]) == (200, "text/html; charset=utf-8")


def test_errors_in_an_application(mounted):
    def error(*call):
        status, _, chunks = mounted.call(*call)
        return status, json.loads(b"".join(chunks))["error"]

    assert error("POST", "/models/greet", b'{"nam": 1}')[1].startswith("unknown field `nam`")
    assert error("POST", "/models/greet", b'{"name": "nobody"}') == (
        500,
        "ValueError: there is nobody",
    )
    assert error("POST", "/models/nothing")[0] == 404
    assert error("POST", "/models/greet", bytes(6000)) == (
        413,
        "the body has more than 5000 bytes, the most allowed",
    )
    assert error("GET", "/models/" + "x" * 70_000)[0] in (414, 431)


def test_streams_in_an_application(mounted):
    status, fields, chunks = mounted.call("POST", "/models/count", b'{"start": 2}')
    assert status == 200
    assert fields["content-type"].startswith("text/event-stream")
    assert chunks == [b"data: 0\n\n", b"data: 1\n\n", b""]


def test_a_client_that_leaves_an_application(mounted):
    mounted.call("POST", "/models/wait", b'{"x": 1}', leave_after=3)
    assert waiting.wait(WAIT_SECS)
    assert left.wait(WAIT_SECS)


def test_the_access_log_of_an_application(mounted, access_log):
    mounted.call("POST", "/models/greet", b'{"name": "log"}')
    mounted.call("GET", "/models/v2")
    wait_until(lambda: '"POST /greet HTTP/1.1" 200' in access_log.read_text())
    assert '"greet"' in access_log.read_text()


def test_an_application_that_passes_no_lifespan_on():
    driver = Driver(shoal.asgi_app(greet))
    try:
        assert driver.call("POST", "/greet", b'{"name": "Ada"}')[0] == 200
        assert driver.application.server.live
    finally:
        driver.application.server.stop()
        driver.close()


def test_a_server_that_does_not_start_fails_the_lifespan(tmp_path):
    driver = Driver(shoal.asgi_app(str(tmp_path / "nowhere")))
    said = driver.live("startup")
    driver.task = None
    driver.close()
    assert said["type"] == "lifespan.startup.failed"
    assert "does not exist" in said["message"]


# ---- an application in a server

APP = """
from contextlib import asynccontextmanager
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
import shoal

events = []

@asynccontextmanager
async def lifespan(app):
    events.append("started")
    yield {"who": "Ada"}
    (Path(__file__).parent / "stopped").write_text("yes")

from pathlib import Path
app = FastAPI(lifespan=lifespan)

@app.get("/hello/{name}")
async def hello(name: str, request: Request, times: int = 1):
    return {"hello": [name] * times, "who": request.state.who, "events": events}

@app.post("/echo")
async def echo(request: Request):
    return {"body": (await request.body()).decode(), "key": request.headers.get("authorization")}

@app.get("/stream")
async def stream():
    async def pieces():
        for n in range(3):
            yield f"{n};"
    return StreamingResponse(pieces(), media_type="text/plain")

@app.get("/forever")
async def forever():
    async def pieces():
        try:
            while True:
                yield b"x" * 100_000
        finally:
            events.append("left")
    return StreamingResponse(pieces())

@app.get("/broken")
async def broken():
    raise ValueError("broken")

@app.get("/greet")
async def other_method():
    return "by GET"

@shoal.model(path="/greet")
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("app") / "app.py"
    file.write_text(APP)
    return file


@pytest.fixture(scope="module")
def running(file, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(keys, all={}, app={"models": ("app",)})
    with running_server(file, api_keys=str(keys)) as server:
        yield server
    assert (file.parent / "stopped").read_text() == "yes"


ALL, ONLY_APP = bearer("all"), bearer("app")


def test_an_application_in_a_server(running):
    answer = running.get("/hello/Ada%20L?times=2", ONLY_APP)
    assert answer.json == {"hello": ["Ada L", "Ada L"], "who": "Ada", "events": ["started"]}
    assert running.get("/hello/Ada?times=x", ALL).status == 422
    answer = running.post("/echo", b"text", ALL)
    assert answer.json == {"body": "text", "key": None}  # keys are not passed on
    assert running.get("/stream", ALL).body == b"0;1;2;"
    assert running.get("/nothing", ALL).json == {"detail": "Not Found"}
    assert running.get("/broken", ALL).status == 500


def test_a_client_that_leaves_an_application_in_a_server(running):
    call = running.call("GET", "/forever", headers=ALL)
    assert call.socket.recv(10)
    call.disconnect()
    wait_until(lambda: running.get("/hello/Ada", ALL).json["events"] == ["started", "left"])


def test_functions_come_before_the_application(running):
    assert running.post("/greet", b'{"name": "Ada"}', ALL).json == "Hello, Ada!"
    assert running.get("/greet", ALL).json == "by GET"
    assert running.get("/v2/health/live").status == 200


def test_keys_apply_to_functions_and_applications(running):
    for path in ("/hello/Ada", "/nothing"):
        assert running.get(path).status == 401
    assert running.post("/greet", b'{"name": "Ada"}').status == 401
    assert running.post("/greet", b'{"name": "Ada"}', ONLY_APP).status == 403
    paths = running.get("/openapi.json", ONLY_APP).json["paths"]
    assert "/greet" not in paths
    assert "/greet" in running.get("/openapi.json", ALL).json["paths"]


def test_restrictions_apply_to_functions():
    closed = (NamedSetting("inference", "secret", "s"),)
    with running_server(functions=[greet], http_restricted_api=closed) as server:
        assert server.post("/greet", b'{"name": "Ada"}').status == 403
        assert server.post("/greet", b'{"name": "Ada"}', {"secret": "s"}).status == 200


def test_two_applications_in_a_file(tmp_path):
    file = tmp_path / "two.py"
    two = "async def {}(scope, receive, send): ...\n"
    file.write_text(two.format("first") + two.format("second"))
    with pytest.raises(ConfigError, match="several ASGI applications"), running_server(file):
        pass
    file.write_text(two.format("first") + two.format("app"))
    with running_server(file) as server:
        assert [row["name"] for row in server.index()] == ["app"]


def test_routes_and_applications_of_several_files(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    function = "import shoal\n@shoal.model(path='/a')\ndef {}() -> int: return 1\n"
    one.write_text(function.format("f"))
    two.write_text(function.format("g"))
    with (
        pytest.raises(ConfigError, match="another function has the route POST /a"),
        running_server(one, two),
    ):
        pass
    for file in (one, two):
        file.write_text(f"async def {file.stem}(scope, receive, send): ...\n")
    with (
        pytest.raises(ConfigError, match="another file has an ASGI application, too"),
        running_server(one, two),
    ):
        pass


def test_an_application_that_does_not_start(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(
        "async def app(scope, receive, send):\n"
        "    await receive()\n"
        "    await send({'type': 'lifespan.startup.failed', 'message': 'no database'})\n"
    )
    with (
        pytest.raises(shoal.ShoalError, match="the application did not start: no database"),
        running_server(file),
    ):
        pass


def test_hosts_of_requests_for_applications():
    assert _address("host:80") == ("host", 80)
    assert _address("[::1]:80") == ("::1", 80)
    assert _address("host:" + "9" * 5000)[1] is None
    assert _address("unix:") is None

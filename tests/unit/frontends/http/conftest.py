"""An application with a made-up engine behind it and no transport below it."""

import asyncio
import gzip
import json
import threading
import zlib

import pytest

from shoal.core import dtypes
from shoal.core.inbox import LoopInbox
from shoal.core.readiness import Readiness
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import NotFound
from shoal.frontends.http.application import Application
from shoal.frontends.http.options import HttpOptions
from tests.support.http_sides import World
from tests.support.runtime_settings import RuntimeSettings

WAIT_SECS = 20


class FakeRequest:
    def __init__(self, method, path, headers, body):
        self.method = method
        self.path, _, self.query = path.partition("?")
        self.headers = tuple((k.lower().encode(), v.encode()) for k, v in headers.items())
        self.body = body
        self.plain = False
        self.plain_offset = 0  # the full path: the short one has tests of its own
        self.begun_ns = 0

    def header(self, name):
        return dict(self.headers).get(name)


class FakeExchange:
    """Keeps its answer; `answered` is set once it has come, on the loop."""

    def __init__(self, request):
        self.request = request
        self.peer = "127.0.0.1:5000"
        self.on_disconnect = None
        self.caller = None
        self.answered = asyncio.Event()
        self.status = None
        self.headers = {}
        self.parts = []

    def respond(self, status, headers, parts):
        assert self.status is None, "answered twice"
        self.status = status
        for name, value in headers:
            known = self.headers.get(name.lower())  # repeated headers are one list
            self.headers[name.lower()] = value if known is None else known + b", " + value
        self.parts = list(parts)
        self.answered.set()

    @property
    def body(self):
        """The body as the client gets to see it, unpacked."""
        body = b"".join(self.parts)
        coding = self.headers.get(b"content-encoding")
        if coding is None:
            return body
        return (gzip if coding == b"gzip" else zlib).decompress(body)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The text of an error, which must have the one form errors have."""
        assert self.headers[b"content-type"] == b"application/json"
        assert set(self.json) == {"error"}
        return self.json["error"]


class FakeEngine(RuntimeSettings):
    """Knows one model, `m`, that returns its inputs."""

    def __init__(self):
        super().__init__()
        self.requests = []
        self.calls = []
        self.threads = []
        self.is_ready = True
        self.problems = ()
        self.is_exiting = False
        self.decoupled = False
        self.model_is_ready = True
        self.held = False  # whether requests wait for the test to answer them
        self.failure = None
        self.outputs = None
        labels = ("cat", "dog")
        self.tensors = Signature(
            "m",
            8,
            {"a": TensorSpec("a", dtypes.INT32, (-1,))},
            {"a": TensorSpec("a", dtypes.INT32, (-1,), labels=labels)},
        )

    def check_room(self, name, version=-1):
        pass

    def infer(self, request):
        self._find(request.model_name)
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        if not self.held:
            self.answer(request)

    def answer(self, request, **fields):
        outputs = self.outputs
        if outputs is None:
            outputs = list(request.inputs.values())
        request.reply.send(Response("m", 3, request.id, outputs, **fields))

    def exiting(self):
        return self.is_exiting

    def ready(self):
        return self.is_ready

    def readiness(self):
        return Readiness(self.is_ready and not self.is_exiting, self.problems)

    def asks_readiness(self, name, version=-1):
        return False

    def model_ready(self, name, version=-1):
        self._find(name, version)
        return self.model_is_ready

    def server_metadata(self):
        return {"name": "triton", "version": "9.9", "extensions": ["statistics"]}

    def model_metadata(self, name, version=-1):
        self._find(name, version)
        return {"name": name, "versions": [str(version)]}

    def model_config(self, name, version=-1):
        self._find(name, version)
        return {"name": name, "max_batch_size": 8, "version": version}

    def statistics(self, name="", version=-1):
        if name:
            self._find(name, version)
        return [{"name": name, "version": version}]

    def signature(self, name, version=-1):
        self._find(name, version)
        return self.tensors

    def is_decoupled(self, name, version=-1):
        self._find(name, version)
        return self.decoupled

    def index(self, ready_only=False):
        self._call("index", ready_only)
        return [{"name": "m", "version": "1", "state": "READY"}]

    def load(self, name, config_json, files):
        self._call("load", name, config_json, files)

    def unload(self, name, unload_dependents=False):
        self._call("unload", name, unload_dependents)

    def _call(self, *call):
        self.threads.append(threading.current_thread())
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)

    def _find(self, name, version=-1):
        if name != "m":
            raise NotFound(f"Request for unknown model: '{name}' is not found")


class Front:
    """Asks the application, as a transport would, and waits for its answer."""

    def __init__(self, loop):
        self.loop = loop
        self.engine = FakeEngine()
        self.inbox = LoopInbox(loop)
        self.application = None
        self.set()

    def set(self, *, render_metrics=None, **options):
        """Start over with these options."""
        self.close()
        self.application = Application(
            self.engine, self.inbox, HttpOptions(**options), render_metrics
        )

    def close(self):
        if self.application is not None:
            self.application.close()

    def ask(self, method, path, body=b"", **headers):
        """Headers are named with underscores: content_encoding="gzip"."""
        return self.loop.run_until_complete(self.exchange(method, path, body, **headers))

    async def exchange(self, method, path, body=b"", **headers):
        exchange = self.begin(method, path, body, **headers)
        await asyncio.wait_for(exchange.answered.wait(), WAIT_SECS)
        return exchange

    def begin(self, method, path, body=b"", **headers):
        """Hand an exchange over without waiting."""
        if not isinstance(body, (bytes, memoryview)):
            body = json.dumps(body).encode()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        exchange = FakeExchange(FakeRequest(method, path, fields, body))
        self.application.handle(exchange)
        return exchange

    def infer(self, body, *, path="/v2/models/m/infer", **headers):
        return self.ask("POST", path, body, **headers)

    @staticmethod
    def input(data=(1, 2), **fields):
        entry = {"name": "a", "datatype": "INT32", "shape": [1, len(data)], "data": list(data)}
        return {"inputs": [entry], **fields}

    @staticmethod
    def tensor(name, array, datatype=None):
        return Tensor.from_array(name, array, datatype)


@pytest.fixture
def front():
    loop = asyncio.new_event_loop()
    front = Front(loop)
    yield front
    front.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("models"))
    yield world
    world.close()
    assert world.backend.open_executors == 0


@pytest.fixture
def sides(world):
    sides = world.sides()
    yield sides
    for side in sides:
        side.close()

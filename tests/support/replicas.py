"""An ingress that only lists replicas, and clients of both kinds that are called alike."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from shoal.client import AsyncClient, ClientError
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS

ONE = {"INPUT0": np.array([[1]], np.int32)}
CONTROL = {
    "/v2/repository/index": [{"name": "who"}],
    "/v2/models/stats": {"model_stats": [{"name": "who"}]},
    "/v2/trace/setting": {"trace_rate": "1"},
    "/v2/logging": {"log_info": True},
    "/v2": {"name": "ingress"},
}


class Ingress:
    """Answers /v2/replicas and control calls; `replicas` is its list, None that it is away."""

    def __init__(self):
        self.replicas = []
        self.status = 200
        self.paths = []
        self.keys = set()
        ingress = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def do_GET(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                ingress.paths.append(self.path)
                ingress.keys.add(self.headers["authorization"])
                if ingress.replicas is None:
                    self.close_connection = True
                    return
                document = CONTROL.get(self.path, {})
                status = 200
                if self.path == "/v2/replicas":
                    status, document = ingress.status, {"version": 1, "replicas": ingress.replicas}
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - its name in the library

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def lists(self):
        """How often the list was read."""
        return self.paths.count("/v2/replicas")

    def stop(self):
        """Refuse connections and hang up on those there are."""
        self.replicas = None
        self._server.shutdown()
        self._server.server_close()


class Caller:
    """A client of either kind: `do(call)` waits for the coroutines of an `AsyncClient`."""

    def __init__(self, kind, loop, *arguments, **keywords):
        self.client = kind(*arguments, **keywords)
        self._loop = loop if kind is AsyncClient else None

    def do(self, call):
        return call if self._loop is None else self._loop.run(call, WAIT_SECS)

    def who(self, model="who", **arguments):
        """Which replica answers."""
        return int(self.do(self.client.infer(model, ONE, **arguments))["OUTPUT0"][0, 0])

    def events(self, *arguments):
        if self._loop is None:
            return list(self.client.generate_stream(*arguments))

        async def collect():
            return [event async for event in self.client.generate_stream(*arguments)]

        return self.do(collect())

    def open_stream(self, *arguments):
        stream = self.client.stream(*arguments)
        return self.do(stream.__aenter__()) if self._loop else stream

    @property
    def balancer(self):
        return self.client._transport._balancer

    def read_list(self):
        """Have the list read beside a call, as after a second, and wait until it was."""
        before = self.balancer.lists
        self.balancer._soon, self.balancer._asked_secs = True, self.balancer._asked_secs - 1.0
        with contextlib.suppress(ClientError):
            self.do(self.client.config("who"))
        wait_until(lambda: self.balancer.lists > before)


def listed(id_, http, grpc=None, *, group="all", models=None, state="serving"):
    return {
        "id": id_,
        "group": group,
        "http": http,
        "grpc": grpc or http,
        "state": state,
        "models": models,
    }


def closed_address():
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return f"127.0.0.1:{held.getsockname()[1]}"


@contextlib.contextmanager
def hanging_up():
    """The address of a server that disconnects when it has a request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    data = b""
                    while not any(word in data for word in (b"Infer", b"/infer", b"/generate")):
                        received = connection.recv(65536)
                        if not received:
                            break
                        data += received
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)

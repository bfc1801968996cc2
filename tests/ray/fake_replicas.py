"""Servers that answer every request with their name, over HTTP and gRPC."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

from shoal.ray.directory import ReplicaAddress


class FakeReplica:
    """One server; `ready` is what its health route says, and `gate` holds its answers."""

    def __init__(self, name, group="default"):
        self.ready = True
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Semaphore(0)  # released for each request that waits at the gate
        self.health_asked = threading.Semaphore(0)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, name))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self._grpc = grpc.server(ThreadPoolExecutor(4))
        self._grpc.add_generic_rpc_handlers([_AnyMethod(name)])
        grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        http_port = self._http.server_address[1]
        self.address = ReplicaAddress(name, group, "127.0.0.1", http_port, grpc_port, 0)

    def stop(self):
        """Refuse connections."""
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(None).wait()


def _handler(replica, name):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_GET(self):
            self._answer(200 if replica.ready else 503)
            replica.health_asked.release()

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if not replica.gate.is_set():
                replica.held.release()
                replica.gate.wait()
            self._answer(200)

        def _answer(self, status):
            body = json.dumps({"name": name, "headers": dict(self.headers)}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


class _AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, name):
        self._name = name.encode()

    def service(self, details):
        if details.method.endswith("ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, _context: (self._name for _ in requests)
            )
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._name)

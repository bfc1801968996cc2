"""A real Ray cluster of several nodes on this machine, an application on it, and its clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from collections import Counter

import psutil

from shoal.errors import Unavailable
from shoal.ray.cluster import Cluster
from shoal.testing.server import wait_until

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

WAIT_SECS = 60.0  # for what takes Ray seconds, on a busy machine

MODEL = """
import os, time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep({secs})
            x = pb.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("Y", {factor} * x)]))
        return answers
"""
CONFIG = """
backend: "python" max_batch_size: 0
input [{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }]
output [{ name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
"""


def write_model(repository, name, *, factor=2, secs=0.02):
    """A model that multiplies its input; it takes one request at a time."""
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(MODEL.format(factor=factor, secs=secs))


def wait_for(condition, what):
    """As `wait_until`, but for what takes Ray seconds."""
    deadline = time.monotonic() + WAIT_SECS
    while True:
        with contextlib.suppress(TimeoutError, OSError, http.client.HTTPException):
            return wait_until(condition, what)
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not happen: {what}")


def start_ray():
    """A Ray of this machine's own.

    Ray gives its processes 30 seconds to start, which a busy machine may exceed: then once more.
    """
    for attempt in (1, 2, 3):
        before = psutil.Process().children(recursive=True)
        try:
            return Cluster("")
        except Unavailable as error:
            if attempt == 3 or "timed out during startup" not in str(error):
                raise
            for process in set(psutil.Process().children(recursive=True)) - set(before):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    raise AssertionError


class Application:
    """A running application, seen from its clients."""

    def __init__(self, name, http_port, grpc_port):
        self.name = name
        self.http_port = http_port
        self.grpc_port = grpc_port

    def call(self, method, path, document=None):
        """The status and the document of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None if document is None else json.dumps(document))
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def serving(self):
        """The replicas that serve, by id; none while there is no ingress."""
        status, document = self.call("GET", "/v2/replicas")
        if status == 503:
            return {}
        assert status == 200, document
        found = document["replicas"]
        return {one["id"]: one for one in found if one["state"] == "serving"}

    def wait_for_replicas(self, count, *, other_than=()):
        """Wait until that number serve, none of which is among the others named; returns them."""

        def are_there():
            found = self.serving()
            return len(found) == count and not set(other_than) & set(found) and found

        return wait_for(are_there, f"{count} replicas serve")

    def actor_pids(self, deployment):
        """The processes of a deployment's replicas."""
        title = f"ray::ServeReplica:{self.name}:{deployment}"
        return sorted(
            process.pid for process in psutil.process_iter() if _title(process).startswith(title)
        )


def _title(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()[:1])
    return ""


class Clients:
    """Clients that send a request after the other and check every answer."""

    def __init__(self, application, model, count, factors=(2,), pause_secs=0.0):
        self._application = application
        self._model = model
        self.factors = set(factors)  # that the answers to the next requests may have
        self._pause_secs = pause_secs  # after each answer
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards counts and errors
        self.counts = Counter()
        self.errors = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(count)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, count):
        """Wait for that number of further right answers."""
        wanted = self.counts["right"] + count
        wait_for(lambda: self.counts["right"] >= wanted, f"{count} answers")

    def _run(self, number):
        path = f"/v2/models/{self._model}/infer"
        connection = None
        sent = 0
        while not self._stop.wait(self._pause_secs):
            sent += 1
            value = 100_000 * number + sent
            allowed = {factor * value for factor in self.factors}
            body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [value]}]}
            if connection is None:
                port = self._application.http_port
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request("POST", path, json.dumps(body))
                answer = connection.getresponse()
                status, content = answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection, status, content = None, 0, repr(error).encode()
            with self._lock:
                self._note(status, content, allowed)
        if connection is not None:
            connection.close()

    def _note(self, status, content, allowed):
        if status != 200:
            self.counts["lost"] += 1
            self.errors.append((status, content.decode()))
            return
        (result,) = json.loads(content)["outputs"][0]["data"]
        self.counts["right" if result in allowed else "wrong"] += 1

"""With many models, a request takes the same steps as with few: counted, not timed."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import orjson
import pytest

from shoal.frontends import coalescer
from shoal.wire.template import TemplateCache
from tests.support.http_sides import CONFIGS, Side, World

FEW, MANY = 20, 160
NAMES = [f"model_{number}" for number in range(MANY)]
CLIENTS = 16  # which is not a multiple of FEW: no connection stays with a model
SETTLED = 4  # requests to each model, after which all of them take the same path
ROUNDS = 10
THOUSANDS = 4000
LONG_HEADER_BYTES = 1024
LONG_NS = 10**12


def request_to(name):
    names = ("INPUT0", "INPUT1")
    content = np.arange(3, dtype=np.int32).tobytes()
    tensors = [
        {
            "name": one,
            "shape": [1, 3],
            "datatype": "INT32",
            "parameters": {"binary_data_size": len(content)},
        }
        for one in names
    ]
    header = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(names) * len(content)}\r\n\r\n"
    )
    return head.encode() + header + len(names) * content


class Requests:
    """Requests to models in turn, those of one loop iteration to different ones."""

    def __init__(self, world):
        self._world = world
        self._side = Side(world, plans=True)
        self._datas = [request_to(name) for name in NAMES]
        self._next = 0

    def send(self, rounds, models):
        """Send a request over each connection, so many times, to the first `models` in turn."""
        for _ in range(rounds):
            datas = []
            for _ in range(CLIENTS):
                datas.append(self._datas[self._next % models])
                self._next += 1
            for answer, _ in self._world.run(self._side.ask(datas)):
                assert answer.startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("many"), dict.fromkeys(NAMES, CONFIGS["sum"]))
    yield made
    made.close()


def calls_during(work):
    """How often each function of the server is called."""
    counts = Counter()

    def count(frame, event, _argument):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and "/shoal/" in file:
            counts[file, "run" if name.endswith(" was running") else name] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def test_a_request_takes_the_same_steps_however_many_models_there_are(world, monkeypatch):
    monkeypatch.setattr(coalescer, "_MOST_HELD_NS", LONG_NS)  # counting calls takes time
    requests = Requests(world)
    requests.send(SETTLED * MANY // CLIENTS, MANY)
    for model in world.repository.models():
        model.statistics.read()  # executions are counted several at a time: begin anew
    before = world.planned
    few = calls_during(lambda: requests.send(ROUNDS, FEW))
    many = calls_during(lambda: requests.send(ROUNDS, MANY))
    assert world.planned - before == 2 * (ROUNDS) * CLIENTS  # all matched a template
    assert few == many


class Order:
    """Notes executions and writes of a loop iteration in their order."""

    def __init__(self, world, side, monkeypatch):
        self.found = []
        computed = world.backend.compute

        def compute(inputs, outputs):
            self.found.append("execution")
            return computed(inputs, outputs)

        monkeypatch.setattr(world.backend, "compute", compute)
        for client in side.clients:
            transport = client.transport

            def write(data, written=transport.write):
                self.found.append("write")
                written(data)

            monkeypatch.setattr(transport, "write", write)


@pytest.mark.parametrize(("held_ns", "most_together"), [(LONG_NS, CLIENTS), (-1, 1)])
def test_responses_of_an_iteration_are_written_together(world, monkeypatch, held_ns, most_together):
    """So that a client that sleeps is woken once. But no response waits for long executions."""
    requests = Requests(world)
    requests.send(SETTLED * MANY // CLIENTS, MANY)
    monkeypatch.setattr(coalescer, "_MOST_HELD_NS", held_ns)
    order = Order(world, requests._side, monkeypatch)
    requests.send(1, MANY)
    pieces = "".join([kind[0] for kind in order.found]).split("we")
    assert order.found.count("write") == CLIENTS
    assert max(piece.count("e") for piece in pieces) <= most_together
    assert len(pieces) == CLIENTS // most_together


def test_the_templates_of_thousands_of_models_are_kept():
    cache = TemplateCache()
    entries = 2 * THOUSANDS  # a binary and a JSON one for each
    for number in range(entries):
        cache.put(number, "template", LONG_HEADER_BYTES)
    assert all(cache.get(number) for number in range(entries))

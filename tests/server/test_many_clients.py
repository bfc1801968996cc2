"""Many clients at once: no request is lost, and each client gets the responses to its own."""

import asyncio
import json
import random
import struct

import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER
from tests.support.repositories import add_onnx, execution

CONNECTIONS = 64
REQUESTS = 25  # on each of them
ROW = struct.Struct("<16i")
BATCHED = "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 200 }"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for mode in ("loop", "threads", "auto"):
        add_onnx(folder, mode, onnx_models.add_sub("INT32"), BATCHED + execution(mode))
    with running_server(folder) as server:
        yield server


def rows(number):
    """Two rows that no other number has."""
    return [number * 31 + place for place in range(16)], [place - number for place in range(16)]


def request(model, number, form):
    """`form` is how the tensors travel; "binary" without an id looks the same every time."""
    first, second = rows(number)
    document = {"id": str(number)} if form != "binary" else {}
    tensor = {"datatype": "INT32", "shape": [1, 16]}
    tail, extra = b"", ""
    if form == "json":
        document["inputs"] = [
            {"name": "INPUT0", **tensor, "data": first},
            {"name": "INPUT1", **tensor, "data": second},
        ]
    else:
        tensor["parameters"] = {"binary_data_size": 64}
        document["inputs"] = [{"name": "INPUT0", **tensor}, {"name": "INPUT1", **tensor}]
        document["parameters"] = {"binary_data_output": True}
        tail = ROW.pack(*first) + ROW.pack(*second)
    header = json.dumps(document).encode()
    if tail:
        extra = f"{LENGTH_HEADER}: {len(header)}\r\n"
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{extra}"
        f"Content-Length: {len(header) + len(tail)}\r\n\r\n"
    )
    return head.encode() + header + tail


async def read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.split(": ", 1) for line in head.lower().split("\r\n")[1:-2])
    return head.split()[1], fields, await reader.readexactly(int(fields["content-length"]))


def fault(number, form, status, fields, body):
    """What is wrong with the answer to `number`; nothing when nothing is."""
    if status != "200":
        return f"{number}: {status} {body!r}"
    first, second = rows(number)
    wanted = [a + b for a, b in zip(first, second, strict=True)]
    length = int(fields.get(LENGTH_HEADER.lower(), len(body)))
    document = json.loads(body[:length])
    if document.get("id") != (str(number) if form != "binary" else None):
        return f"{number}: got the answer to {document.get('id')}"
    if form == "json":
        got = document["outputs"][0]["data"]
    else:
        got = list(ROW.unpack(body[length : length + 64]))
    return "" if got == wanted else f"{number}: {got} instead of {wanted}"


async def client(port, model, place, forms, faults, *, pipelined=1, leaves=False):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    chooser = random.Random(place)
    numbers = [place * REQUESTS + count for count in range(REQUESTS)]
    for begin in range(0, REQUESTS, pipelined):
        sent = [(number, chooser.choice(forms)) for number in numbers[begin : begin + pipelined]]
        for number, form in sent:
            writer.write(request(model, number, form))
        if leaves and begin > REQUESTS // 2:
            break
        for number, form in sent:
            problem = fault(number, form, *await read_answer(reader))
            if problem:
                faults.append(problem)
    writer.close()
    await writer.wait_closed()


def load(running, model, forms, **more):
    faults = []

    async def everybody():
        port = running.server.http_port
        await asyncio.gather(
            *(client(port, model, place, forms, faults, **more) for place in range(CONNECTIONS))
        )

    asyncio.run(everybody())
    return faults


@pytest.mark.parametrize("model", ["loop", "threads", "auto"])
def test_every_client_gets_its_own_answers(running, model):
    before = running.statistics(model)["inference_count"]
    assert load(running, model, ["binary", "binary with id", "json"]) == []
    after = running.statistics(model)
    assert after["inference_count"] - before == CONNECTIONS * REQUESTS
    assert after["inference_stats"]["fail"]["count"] == 0
    assert after["execution_count"] < after["inference_count"], "nothing was ever batched"


def test_requests_that_all_look_alike(running):
    assert load(running, "auto", ["binary"]) == []


def test_pipelined_requests(running):
    assert load(running, "loop", ["binary", "json"], pipelined=5) == []


@pytest.mark.parametrize("model", ["loop", "threads"])
def test_clients_that_disconnect_in_the_middle(running, model):
    assert load(running, model, ["binary", "json"], leaves=True) == []
    pending = running.model(model).statistics.pending
    wait_until(lambda: not pending() and not running.server.ports.http.open_connections)
    assert load(running, model, ["binary"]) == []

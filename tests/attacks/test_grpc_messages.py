"""Messages that cost more to read than to send: compressed ones that explode, and bytes that are no
request, or one of a million fields."""

from __future__ import annotations

from functools import partial
from operator import mul

import grpc
import numpy as np
import pytest

from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import delimited
from tests.attacks.conftest import INFER, Neighbour, request, server_cpu_secs
from tests.support.compressed import gzip_repeated
from tests.support.fakes import WAIT_SECS
from tests.support.raw_grpc import RawGrpc

MIB = 1 << 20
# Empty ones, of two bytes each.
FIELDS = {"inputs": b"\x2a\x00", "raw-contents": b"\x3a\x00", "unknown": b"\x08\x00"}
# What a test may measure beyond the attack itself: the neighbour's requests meanwhile.
MOST_CPU_SECS = 0.25


def zeros(mebibytes):
    """Compressed with the best ratio."""
    return gzip_repeated(b"", b"\0", mebibytes * MIB)


def gibibyte_of_model_name():
    """A valid request of 1 MB that is 1 GiB when decompressed."""
    head = delimited(1, b"double") + b"\x22" + b"\x80\x80\x80\x80\x04"
    return gzip_repeated(head, b"\0", 1 << 30)


def typed(count):
    """A request with so many empty strings as typed contents, compressed."""
    strings = b"\x42\x00" * count
    made = messages.ModelInferRequest(model_name="double")
    made.inputs.add(name="numbers", datatype="BYTES", shape=[count])
    text = made.inputs[0].SerializeToString() + delimited(5, strings)
    whole = delimited(1, b"double") + delimited(5, text)
    return gzip_repeated(whole[: -len(strings)], b"\x42\x00", count)


def costs(server, raw, message, *, compressed):
    """The response to `message`, and the CPU seconds of the server."""
    before = server_cpu_secs(server)
    answer = raw.call(INFER, message, encoding="gzip" if compressed else None)
    return answer, server_cpu_secs(server) - before


@pytest.mark.parametrize(
    ("make_message", "compressed"),
    [
        pytest.param(lambda: zeros(8), True, id="gzip-zeros-8MiB"),
        pytest.param(lambda: zeros(64), True, id="gzip-zeros-64MiB"),
        *(
            pytest.param(
                partial(gzip_repeated, b"", unit, 32 * MIB - 8), True, id=f"gzip-{name}-64MiB"
            )
            for name, unit in FIELDS.items()
        ),
        pytest.param(lambda: typed(31 * MIB), True, id="gzip-typed-64MiB"),
        pytest.param(gibibyte_of_model_name, True, id="gzip-1GiB"),
        pytest.param(lambda: bytes(MIB - 100), False, id="zeros-1MiB"),
        *(
            pytest.param(partial(mul, unit, MIB // 2 - 50), False, id=f"{name}-1MiB")
            for name, unit in {**FIELDS, "names": b"\x0a\x00"}.items()
        ),
        pytest.param(lambda: bytes(8 * MIB), False, id="zeros-8MiB"),
    ],
)
def test_what_is_no_request_costs_little(server, neighbour, make_message, compressed):
    message = make_message()
    neighbour.check()
    with RawGrpc(server.grpc_port) as raw:
        raw.call(INFER, request(1))
        answer, cpu_secs = costs(server, raw, message, compressed=compressed)
    neighbour.check()
    print(f"{cpu_secs:.2f} s CPU, longest stall {neighbour.longest_secs * 1e3:.0f} ms")
    assert answer.status in (3, 8)  # INVALID_ARGUMENT, RESOURCE_EXHAUSTED
    assert len(answer.text) < 1_000
    # Decompressing 64 MiB takes a quarter of a second itself, where a legitimate request does so.
    inflating_secs = 0.4 if compressed else 0.0
    assert cpu_secs < MOST_CPU_SECS + inflating_secs


def test_a_message_beyond_the_limit_names_the_option(server):
    with RawGrpc(server.grpc_port) as raw:
        answer = raw.call(INFER, zeros(65), encoding="gzip")
    assert answer.status == 8
    assert "--grpc-max-request-bytes" in answer.text
    assert str(64 * MIB) in answer.text


def test_the_limit_is_raised_by_its_option(serve):
    server = serve(f"--grpc-max-request-bytes={66 * MIB}")
    content = bytes(65 * MIB)
    made = messages.ModelInferRequest(model_name="double")
    made.inputs.add(name="numbers", datatype="FP32", shape=[65 * MIB // 4])
    head = made.SerializeToString() + delimited(7, content)[: -len(content)]
    with RawGrpc(server.grpc_port) as raw:
        answer = raw.call(INFER, gzip_repeated(head, b"\0", len(content)), encoding="gzip")
    assert answer.status == 3  # it was read, and has the wrong shape
    assert "unexpected shape" in answer.text


def test_memory_after_many_explosions_is_what_is_permitted(serve):
    server = serve("--max-buffered-bytes=268435456")
    with RawGrpc(server.grpc_port) as raw:
        raw.call(INFER, request(1))
        before = server.peak_bytes
        content = bytes(60 * MIB)
        head = delimited(1, b"double") + delimited(7, content)[: -len(content)]
        message = gzip_repeated(head, b"\0", len(content))
        calls = [raw.start(INFER, message, encoding="gzip") for _ in range(12)]
        statuses = {raw.finish(call).status for call in calls}
    assert statuses <= {3, 8}
    assert server.peak_bytes - before < 2 * 256 * MIB


def test_compressed_requests_are_still_answered(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as line:
        call = line.unary_unary(INFER)
        for number in range(20):
            answer = call(request(number), timeout=WAIT_SECS, compression=grpc.Compression.Gzip)
            output = messages.ModelInferResponse.FromString(answer).raw_output_contents[0]
            assert np.frombuffer(output, np.float32).tolist() == [2.0 * number] * 4


def test_large_compressed_messages_of_a_stream_stay_in_order(server):
    """The large ones are decompressed on a thread; the small ones behind them wait."""
    wrong = messages.ModelInferRequest(model_name="double", id="large")
    wrong.inputs.add(name="numbers", datatype="FP32", shape=[2 * MIB])
    wrong.raw_input_contents.append(bytes(8 * MIB))
    sent = []
    for number in range(6):
        made = messages.ModelInferRequest.FromString(request(number))
        made.id = str(number)
        sent += [made.SerializeToString(), wrong.SerializeToString()]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as line:
        call = line.stream_stream(INFER.replace("ModelInfer", "ModelStreamInfer"))
        answers = list(call(iter(sent), timeout=WAIT_SECS, compression=grpc.Compression.Gzip))
    seen = [messages.ModelStreamInferResponse.FromString(answer) for answer in answers]
    assert [each.infer_response.id for each in seen] == [
        name for number in range(6) for name in (str(number), "large")
    ]
    assert [bool(each.error_message) for each in seen] == [False, True] * 6


def test_a_stream_of_empty_messages_stalls_nobody(server):
    """A read full of messages of 5 bytes each is worked through in several turns."""
    neighbour = Neighbour(server)
    count = 20_000
    with RawGrpc(server.grpc_port) as raw:
        stream = raw.open(INFER.replace("ModelInfer", "ModelStreamInfer"))
        raw.data(stream, bytes(5) * count, end=True)
        answer = raw.finish(stream)
    neighbour.check()
    neighbour.stop()
    assert len(answer.messages) == count
    print(f"longest stall {neighbour.longest_secs * 1e3:.0f} ms")

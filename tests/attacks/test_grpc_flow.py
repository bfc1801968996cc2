"""Connections that ask for more than they take, or for so much at once that nobody else gets a turn."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest

from shoal.wire.proto import messages
from tests.attacks.conftest import INFER, AttackedServer, Neighbour, request, server_cpu_secs
from tests.support.raw_grpc import DATA, END_STREAM, INITIAL_WINDOW, RawGrpc, frame

MIB = 1 << 20
LIVE = "/inference.GRPCInferenceService/ServerLive"
CANCEL = 8  # of HTTP/2
RESOURCE_EXHAUSTED = 8  # of gRPC
NO_WINDOW = {INITIAL_WINDOW: 0}


def calls(raw, path, message, count):
    """The bytes of `count` calls, and their ids."""
    content = struct.pack(">BI", 0, len(message)) + message
    ids, parts = [], []
    for _ in range(count):
        stream_id, opening = raw.headers(path)
        ids.append(stream_id)
        parts += (opening, frame(DATA, END_STREAM, stream_id, content))
    return ids, b"".join(parts)


def large(count):
    """A request for a response of `count` bytes."""
    made = messages.ModelInferRequest(model_name="large")
    made.inputs.add(name="count", datatype="INT64", shape=[1])
    made.raw_input_contents.append(np.int64(count).tobytes())
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("path", "message"),
    [(LIVE, b""), (INFER, b"\x0a\x04none"), (INFER, b"\x00")],
    ids=["answered-at-once", "unknown-model", "malformed"],
)
def test_ten_thousand_calls_in_one_read_stall_nobody(server, neighbour, path, message):
    """They are answered in many turns; in between, others are served."""
    neighbour.check()
    with RawGrpc(server.grpc_port) as raw:
        raw.call(path, message)
        ids, content = calls(raw, path, message, 10_000)
        asked = neighbour.asked
        before = server_cpu_secs(server)
        sending = threading.Thread(target=raw.socket.sendall, args=(content,))
        sending.start()
        for stream_id in ids:
            raw.finish(stream_id)
        sending.join()
        cpu_secs = server_cpu_secs(server) - before
        answered = neighbour.asked - asked
    neighbour.check()
    print(
        f"{cpu_secs:.2f} s CPU, the neighbour got {answered} answers meanwhile, the longest after "
        f"{neighbour.longest_secs * 1e3:.0f} ms"
    )
    assert not raw.goaway
    assert all(raw.answers[stream_id].ended for stream_id in ids)
    # About one per turn of 5 ms and protocol; a server without turns lets none in between.
    assert answered >= cpu_secs / 0.05


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server that waits one second for a client that does not read."""
    attacked = AttackedServer(tmp_path_factory.mktemp("attacked"), "--grpc-write-timeout-secs=1")
    yield attacked
    attacked.stop()


def test_a_window_that_never_opens_has_a_deadline(impatient):
    with RawGrpc(impatient.grpc_port, NO_WINDOW) as raw:
        answer = raw.finish(raw.start(INFER, request(1)))
        assert (answer.content, answer.reset) == (b"", CANCEL)
        assert raw.ping()


def test_a_window_that_opens_byte_by_byte_has_it_too(impatient):
    with RawGrpc(impatient.grpc_port, {INITIAL_WINDOW: 1}) as raw:
        stream_id = raw.start(INFER, large(MIB))
        answer = raw.answers[stream_id]
        while not answer.ended:
            raw.open_window(stream_id, 1)
            assert raw.ping(0.05)
        assert answer.reset == CANCEL
        assert len(answer.content) < 1_000


def test_what_waits_for_closed_windows_is_bounded(serve):
    """Beyond the limit, calls get an error, which needs no window; others go on."""
    limit = 64 * MIB
    server = serve(f"--max-buffered-bytes={limit}")
    neighbour = Neighbour(server)
    neighbour.check()
    before = server.resident_bytes
    connections = [RawGrpc(server.grpc_port, NO_WINDOW) for _ in range(4)]
    exhausted = 0
    try:
        for raw in connections:
            ids = [raw.start(INFER, large(4 * MIB)) for _ in range(30)]
            # Responses come in any order, and those that wait never do: all have been made when
            # the server has handled one more request of each kind.
            raw.call("/none/None", b"")
            last = raw.start(INFER, large(4 * MIB))
            raw.finish(last)
            exhausted += sum(
                raw.answers[each].ended and raw.answers[each].status == RESOURCE_EXHAUSTED
                for each in (*ids, last)
            )
            assert "--max-buffered-bytes" in raw.answers[last].text
        assert exhausted >= 4 * 31 - limit // (4 * MIB) - 4
        assert server.resident_bytes - before < 2 * limit + 64 * MIB
        neighbour.check()
    finally:
        neighbour.stop()
        for raw in connections:
            raw.__exit__()


def test_large_requests_that_are_never_finished_are_bounded(serve):
    limit = 32 * MIB
    server = serve(f"--max-buffered-bytes={limit}")
    neighbour = Neighbour(server)
    neighbour.check()
    before = server.resident_bytes
    with RawGrpc(server.grpc_port) as raw:
        refused = 0
        for _ in range(24):
            stream_id = raw.open(INFER)
            raw.data(stream_id, struct.pack(">BI", 0, 4 * MIB) + bytes(3 * MIB))
            assert raw.call(LIVE, b"").status == 0  # so all of that has arrived
            answer = raw.answers[stream_id]
            refused += answer.ended and answer.status == RESOURCE_EXHAUSTED
            if answer.ended:
                assert "--max-buffered-bytes" in answer.text
        assert refused >= 24 - limit // (3 * MIB) - 1
        assert server.resident_bytes - before < 2 * limit + 64 * MIB
        neighbour.check()
    neighbour.stop()

"""The open-loop load generator against servers of a few lines."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from benchmarks.environments import Unavailable
from benchmarks.forms import Exchange
from benchmarks.loads import open_loop
from benchmarks.loads.program import LoadFailed
from benchmarks.peers.base import Target

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
RIGHT = (HEAD + b"fives",)
# Of 0.02 s at 5,000 a second: as many as the seed says.
REQUESTS, RATE, SECONDS = 123, 5_000, 0.02


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open_loop")
    try:
        open_loop.build(folder)
    except Unavailable as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture
def measure(program, monkeypatch, tmp_path):
    """Run it against a server that gives each request the pieces of `answer(number)`; with None it
    closes the connection."""
    build = open_loop.build
    monkeypatch.setattr(open_loop, "build", lambda: build(program))
    monkeypatch.setattr("benchmarks.loads.program.WORK", tmp_path)

    def run(answer, connections=4, body=b"a body", rate=RATE):
        numbers = iter(range(1_000_000))
        threads = []

        def serve(client):
            size = len(open_loop.message(target))
            with client, contextlib.suppress(OSError):
                while True:
                    received = 0
                    while received < size:
                        count = len(client.recv(size - received))
                        if not count:
                            return
                        received += count
                    pieces = answer(next(numbers))
                    if pieces is None:
                        return
                    for piece in pieces:
                        client.sendall(piece)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threads.append(threading.Thread(target=serve, args=(client,)))
                    threads[-1].start()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            target = Target("http", listener.getsockname()[1], "/infer", Exchange(body, dict))
            accepting = threading.Thread(target=accept)
            accepting.start()
            try:
                return open_loop.run(target, connections, rate, SECONDS, answer=5)
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                accepting.join()
                for thread in threads:
                    thread.join()

    return run


@pytest.mark.parametrize(
    "pieces",
    [
        RIGHT,
        (HEAD[:20], HEAD[20:] + b"fi", b"ves"),
        (HEAD, b"fives"),
    ],
)
def test_responses_in_any_pieces(measure, pieces):
    load = measure(lambda _: pieces)
    assert load.requests == REQUESTS
    assert not load.errors
    assert 0 < load.p50_us <= load.p99_us <= load.p999_us <= load.max_us


def test_the_whole_request_is_sent(measure):
    load = measure(lambda _: RIGHT, body=b"x" * 8_000_000, rate=500)
    assert load.requests
    assert not load.errors


def test_latency_counts_from_when_a_request_was_due(measure):
    def slowly(_number):
        time.sleep(SECONDS / 10)  # a slow server
        return RIGHT

    load = measure(slowly, connections=1)
    # All were due within SECONDS, but the one connection took far longer, so that most of the time
    # of most requests was spent waiting for it.
    assert load.seconds > SECONDS
    assert load.p50_us > 5 * 1e6 * load.seconds / load.requests
    assert load.max_us > 1e6 * (load.seconds - SECONDS)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "status"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour", "size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfives\r\n0\r\n\r\n", "size"),
        (HEAD + b"fives and more", "size"),
        (b"x" * 20_000, "size"),
        (None, "reset"),
    ],
)
def test_other_responses_are_counted_as_errors(measure, wrong, kind):
    load = measure(lambda number: RIGHT if number % 3 else wrong and (wrong,))
    assert load.errors == {kind: REQUESTS // 3}
    assert load.requests == REQUESTS - REQUESTS // 3


def test_no_server(measure):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    target = Target("http", port, "/infer", Exchange(b"", dict))
    with pytest.raises(LoadFailed, match="cannot connect"):
        open_loop.run(target, 1, RATE, SECONDS, answer=5)


def test_its_figures():
    load = open_loop.parse(
        "RESULT requests=900 offered=1000 status=1 size=2 reset=3 unanswered=4 reconnected=5 "
        "waited=60 late=20 nanos=2000000000 p50=1500 p99=20000 p999=300000 max=4000000\n"
    )
    assert (load.requests, load.seconds, load.per_second) == (900, 2.0, 450.0)
    assert (load.p50_us, load.p99_us, load.p999_us, load.max_us) == (1.5, 20.0, 300.0, 4000.0)
    assert load.late_share == pytest.approx(0.02)
    assert load.errors == {"status": 1, "size": 2, "reset": 3, "unanswered": 4}


def test_output_without_a_result_is_a_failure():
    with pytest.raises(LoadFailed, match="no result"):
        open_loop.parse("")

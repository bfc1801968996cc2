"""The load generator that checks every answer, against a server of a few lines."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from benchmarks.environments import Unavailable
from benchmarks.loads import checked
from benchmarks.loads.program import LoadFailed

REQUEST = b"POST /%d HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Send 40 requests to a server that gives each one `answer(path)`; with None it ends the
    connection."""
    build = checked.build
    monkeypatch.setattr(checked, "build", lambda: build(tmp_path))

    def run(answer):
        def serve(client):
            with client, contextlib.suppress(OSError):
                while request := client.recv(1000):
                    text = answer(request.split(b" ", 2)[1].decode())
                    if text is None:
                        return
                    status, body = text
                    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
                    client.sendall((head + body).encode())

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        asked = []
        for number in range(2):
            file = tmp_path / str(number)
            file.write_bytes(REQUEST % number)
            asked.append((file, f"label {number}"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=accept, daemon=True).start()
            try:
                return checked.run(listener.getsockname()[1], 4, 10, asked, requests=40)
            except Unavailable as error:
                pytest.skip(str(error))

    return run


def test_all_as_expected(measure):
    load, said = measure(lambda path: (200, f"it is label {path[1:]}"))
    assert load.requests == 40
    assert load.errors == {}
    assert said == ""
    assert 0 < load.p50_us <= load.p99_us


def test_wrong_answers(measure):
    load, said = measure(lambda path: (200, "it is label 0"))
    assert load.errors == {"wrong": 40 - load.requests}
    assert 0 < load.requests < 40
    assert "expected label 1" in said
    load, _ = measure(lambda path: (503, "no room") if path == "/1" else (200, "label 0"))
    assert set(load.errors) == {"status"}


def test_connections_that_end(measure):
    load, _ = measure(lambda path: None)
    assert load.errors == {"reset": 4}
    assert load.requests == 0


def test_no_result():
    with pytest.raises(LoadFailed, match="printed no result"):
        checked.parse("nothing")

"""The HTTP transport on real sockets, under plain asyncio and under uvloop."""

import asyncio
import errno
import http.client
import json
import shutil
import socket
import subprocess

import numpy as np
import pytest

from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.listener import HttpListener
from shoal.testing import WAIT_SECS
from tests.support.http_listener import HOST, HeldApplication, connect, read_all


def read_answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer with a Content-Length, and not a byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    line, *lines = head.decode().rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = b""
    while len(body) < int(headers["content-length"]):
        body += client.recv(int(headers["content-length"]) - len(body))
    return int(line.split()[1]), headers, body


def echo(exchange: ConnectionExchange) -> None:
    request = exchange.request
    exchange.respond(200, (), [f"{request.method} {request.target} ".encode(), request.body])


# --- requests and answers ----------------------------------------------------------------------


def test_keep_alive_carries_many_requests(http_listener):
    port = http_listener.start(echo)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
    for number in range(20):
        client.request("POST", f"/{number}", body=b"x" * number)
        response = client.getresponse()
        assert response.status == 200
        assert response.getheader("date").endswith("GMT")
        assert response.read() == f"POST /{number} ".encode() + b"x" * number
    assert http_listener.call(lambda: http_listener.listener.open_connections) == 1
    client.close()
    http_listener.wait_until_empty()


def test_pipelined_requests_are_answered_in_order(http_listener):
    held = HeldApplication()
    port = http_listener.start(held)
    with connect(port) as client:
        client.sendall(b"".join(b"GET /%d%b\r\n" % (number, HOST) for number in range(50)))
        for number in range(50):
            exchange = held.wait()
            assert exchange.request.path == f"/{number}"
            http_listener.call(exchange.respond, 200, (), [exchange.request.path.encode()])
        for number in range(50):
            status, _, body = read_answer(client)
            assert (status, body) == (200, f"/{number}".encode())


def test_http_1_0_closes_unless_keep_alive_is_requested(http_listener):
    port = http_listener.start(echo)
    with connect(port) as client:
        client.sendall(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        _, headers, body = read_answer(client)
        assert (headers["connection"], body) == ("keep-alive", b"GET /a ")
        client.sendall(b"GET /b HTTP/1.0\r\n\r\n")
        head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert body == b"GET /b "
    http_listener.wait_until_empty()


def test_head_has_the_length_of_get_and_no_body(http_listener):
    port = http_listener.start(echo)
    with connect(port) as client:
        client.sendall(b"HEAD /abc" + HOST + b"\r\nGET /abc" + HOST + b"Connection: close\r\n\r\n")
        head, _, rest = read_all(client).partition(b"\r\n\r\n")
        assert b"Content-Length: 10" in head
        assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_chunked_body_arrives_whole(http_listener):
    port = http_listener.start(echo)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
    pieces = [bytes([number]) * 3000 for number in range(50)]
    client.request("POST", "/", body=iter(pieces), encode_chunked=True)
    assert client.getresponse().read() == b"POST / " + b"".join(pieces)
    client.close()


@pytest.mark.parametrize("chunks", [False, True])
def test_a_body_of_20_megabytes_arrives_intact_and_aligned(http_listener, chunks):
    sent = np.random.default_rng(1).integers(0, 256, 20_000_000, np.uint8).tobytes()
    seen = []

    def handle(exchange: ConnectionExchange) -> None:
        body = exchange.request.body
        seen.append((bytes(body) == sent, np.frombuffer(body, np.uint8).ctypes.data))
        exchange.respond(200, (), [body])

    port = http_listener.start(handle)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
    headers = {"Inference-Header-Content-Length": "187"}
    body = iter(sent[i : i + 1_000_000] for i in range(0, len(sent), 1_000_000))
    for _ in range(2):
        if chunks:
            client.request("POST", "/", body=body, headers=headers, encode_chunked=True)
        else:
            client.request("POST", "/", body=sent, headers=headers)
        assert client.getresponse().read() == sent
        if chunks:
            break
    client.close()
    for intact, address in seen:
        assert intact
        assert (address + 187) % 64 == 0


def test_an_application_that_raises_responds_500_and_continues(http_listener, caplog):
    port = http_listener.start(lambda exchange: 1 / 0)
    with connect(port) as client:
        for _ in range(2):
            client.sendall(b"GET /" + HOST + b"\r\n")
            status, headers, body = read_answer(client)
            assert (status, headers["content-type"]) == (500, "application/json")
            assert json.loads(body)["error"].startswith("internal error")
    assert "ZeroDivisionError" in caplog.text


def test_a_stream_of_chunks_with_backpressure(http_listener):
    """The application writes only while the client keeps up, so little waits in memory."""
    chunk = bytes(range(256)) * 256
    most_waiting = []

    def handle(exchange: ConnectionExchange) -> None:
        left = [400]
        transport = exchange._sink._transport

        def pump() -> None:
            while left[0] and exchange.writable:
                exchange.send_chunk(chunk)
                left[0] -= 1
                most_waiting.append(transport.get_write_buffer_size())
            if not left[0]:
                exchange.end_stream()

        exchange.on_writable = pump
        exchange.start_stream(200)
        pump()

    port = http_listener.start(handle)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
    for _ in range(2):
        client.request("GET", "/")
        response = client.getresponse()
        assert response.getheader("transfer-encoding") == "chunked"
        assert response.read() == chunk * 400
    client.close()
    assert max(most_waiting) < 1 << 20


# --- 100-continue ------------------------------------------------------------------------------


def test_continue_is_sent_to_a_client_that_waits_for_it(http_listener):
    port = http_listener.start(echo)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert read_answer(client)[2] == b"POST / hello"


def test_no_continue_for_what_will_be_refused(http_listener):
    port = http_listener.start(echo, max_body_bytes=4)
    with connect(port) as client:
        client.sendall(b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 413 ")


@pytest.mark.curl
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("framing", [[], ["-H", "Transfer-Encoding: chunked"]])
def test_curl_uploads_with_expect(http_listener, tmp_path, framing):
    sent = np.random.default_rng(2).integers(0, 256, 3_000_000, np.uint8).tobytes()
    (tmp_path / "body").write_bytes(sent)
    port = http_listener.start(lambda exchange: exchange.respond(200, (), [exchange.request.body]))
    command = ["curl", "-sS", "-v", "--max-time", "60", "--expect100-timeout", "50", *framing]
    command += ["-H", "Expect: 100-continue", "--data-binary", "@body", f"http://127.0.0.1:{port}/"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent
    assert b"100 Continue" in done.stderr


@pytest.mark.curl
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_reads_a_refusal(http_listener, tmp_path):
    (tmp_path / "body").write_bytes(bytes(3_000_000))
    port = http_listener.start(echo, max_body_bytes=1000)
    command = ["curl", "-sS", "-H", "Expect:", "--data-binary", "@body", "--max-time", "60"]
    command += ["-w", "%{http_code}", f"http://127.0.0.1:{port}/"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout == b'{"error":"the request body is larger than the limit of 1000 bytes"}413'
    command += ["-H", "Content-Type: application/json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout == (
        b'{"error":"request JSON size of 3000000 bytes exceeds the maximum allowed input size of '
        b'1000 bytes"}413'
    )


@pytest.mark.curl
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_offering_http_2_is_served_in_1_1(http_listener):
    port = http_listener.start(echo)
    command = ["curl", "-sS", "--http2", "--max-time", "60", f"http://127.0.0.1:{port}/a"]
    assert subprocess.run(command, capture_output=True, check=False).stdout == b"GET /a "
    command[2] = "--http2-prior-knowledge"
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


# --- listening, draining, stopping -------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", None, "0.0.0.0"])
def test_port_0_gives_one_port_for_every_address(http_listener, host):
    port = http_listener.start(echo, host)
    assert port > 0
    assert {bound for _, bound in http_listener.listener.addresses} == {port}
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        assert read_answer(client)[0] == 200


def test_a_taken_port_is_reported(http_listener):
    port = http_listener.start(echo)
    with pytest.raises(OSError, match=f"127.0.0.1:{port}") as refused:
        http_listener.await_(HttpListener(echo).start("127.0.0.1", port))
    assert refused.value.errno == errno.EADDRINUSE


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system shares no ports")
def test_listeners_may_share_a_port(http_listener):
    first, second = HttpListener(echo), HttpListener(echo)
    http_listener.listeners += [first, second]
    port = http_listener.await_(first.start("127.0.0.1", 0, reuse_port=True))
    assert http_listener.await_(second.start("127.0.0.1", port, reuse_port=True)) == port


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_reported(http_listener, host):
    with pytest.raises(OSError, match=f"cannot listen on '?{host}"):
        http_listener.await_(HttpListener(echo).start(host, 0))


def test_draining_lets_requests_finish_and_closes_the_rest(http_listener):
    held = HeldApplication()
    port = http_listener.start(held)
    idle, busy, arriving = connect(port), connect(port), connect(port)
    busy.sendall(b"GET /busy" + HOST + b"\r\n")
    exchange = held.wait()
    arriving.sendall(
        b"POST /arriving" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    )
    assert b"100 Continue" in arriving.recv(1000)

    listener = http_listener.listener
    assert http_listener.call(lambda: (listener.open_connections, listener.in_flight)) == (3, 1)
    http_listener.await_(listener.stop_accepting(linger_secs=0))
    draining = asyncio.run_coroutine_threadsafe(listener.drain(WAIT_SECS), http_listener.loop)
    assert idle.recv(1) == b""
    with pytest.raises(ConnectionError):
        connect(port)
    assert not draining.done()

    http_listener.call(exchange.respond, 200, (), [b"done"])
    assert read_all(busy).endswith(b"Connection: close\r\n\r\ndone")
    arriving.sendall(b"ok")
    http_listener.call(held.wait().respond, 200, (), [b"done"])
    assert b"Connection: close\r\n" in read_all(arriving)
    assert draining.result(WAIT_SECS) is True
    assert http_listener.call(lambda: listener.open_connections) == 0
    for client in (idle, busy, arriving):
        client.close()


def test_draining_gives_up_in_time_and_abort_ends_it(http_listener):
    held = HeldApplication()
    port = http_listener.start(held)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        held.wait()
        assert http_listener.await_(http_listener.listener.drain(0.01)) is False
        http_listener.call(http_listener.listener.abort_all)
        held.wait_for_disconnect()
        http_listener.wait_until_empty()


def test_close_idle_leaves_later_requests_alone(http_listener):
    port = http_listener.start(echo)
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        assert read_answer(client)[0] == 200
        http_listener.call(http_listener.listener.close_idle)
        assert client.recv(1) == b""
    with connect(port) as client:
        client.sendall(b"GET /" + HOST + b"\r\n")
        _, headers, _ = read_answer(client)
        assert "connection" not in headers

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.http import protocol
from shoal.frontends.http.clocks import ConnectionPhase
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.listener_state import ListenerState
from shoal.frontends.http.protocol import HttpConnection

HOST = b" HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True, scope="module")
def long_turns():
    """On a busy machine, a turn could end after any request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "_TURN_NS", 10**15)
        yield


class FakeTransport:
    """Keeps what is written; `unsent` and the pauses are the test's to set."""

    def __init__(self) -> None:
        self.written = b""
        self.unsent = 0
        self.reading = True
        self.closed = False
        self.aborted = False
        self.eof_written = False

    @property
    def ended(self) -> bool:
        return self.closed or self.aborted or self.eof_written

    def get_extra_info(self, name: str):
        return ("127.0.0.1", 9) if name == "peername" else None

    def write(self, data) -> None:
        assert not self.eof_written
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_written = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Client:
    """A connection, its transport and its application, driven by hand."""

    def __init__(self, handle=None, **limits) -> None:
        self.exchanges: list[ConnectionExchange] = []
        self.state = ListenerState(handle or self.exchanges.append, HttpLimits(**limits))
        self.state.date_line = b""
        self.deferred = []
        self.state.defer = self.deferred.append
        self.transport = FakeTransport()
        self.connection = HttpConnection(self.state)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        while data and not (self.transport.closed or self.transport.aborted):  # as a socket would
            assert self.transport.reading
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def run_deferred(self) -> None:
        calls, self.deferred[:] = list(self.deferred), []
        for call in calls:
            call()

    def sweep_until(self, secs: float) -> None:
        """Let `secs` pass in silence: one look at the start, one just before, one at the end."""
        for now in (1000.0, 1000.0 + secs - 0.001):
            self.connection.sweep(now)
            assert not self.transport.ended
        self.connection.sweep(1000.0 + secs)

    @property
    def status(self) -> int:
        return int(self.transport.written.split(b" ")[1])

    @property
    def error(self) -> str:
        return json.loads(self.transport.written.partition(b"\r\n\r\n")[2])["error"]


def echo(exchange: ConnectionExchange) -> None:
    request = exchange.request
    exchange.respond(200, (), [f"{request.method} {request.target} ".encode(), request.body])


def sized(body: bytes, path: bytes = b"/") -> bytes:
    return b"POST %b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, len(body), body)


def answer_to(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


STREAM = (
    sized(b"one", b"/1")
    + b"PUT /2"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n"
    + b"GET /3"
    + HOST
    + b"\r\n"
)
ANSWERS = answer_to(b"POST /1 one") + answer_to(b"PUT /2 two") + answer_to(b"GET /3 ")


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_the_stream_cut_at_every_place_is_answered_alike(cut):
    client = Client(echo)
    client.send(STREAM[:cut])
    client.send(STREAM[cut:])
    assert client.transport.written == ANSWERS
    assert client.connection.phase is ConnectionPhase.OPEN


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12), late=st.booleans())
def test_the_stream_cut_anywhere_and_answered_late_is_answered_alike(cuts, late):
    client = Client(None if late else echo)
    for start, end in pairwise(sorted({0, len(STREAM), *cuts})):
        client.send(STREAM[start:end])
    while late and client.exchanges:
        echo(client.exchanges.pop())
        assert not client.exchanges  # the next one comes after this answer, not within it
        client.run_deferred()
    assert client.transport.written == ANSWERS


def outcome(data: bytes, cuts: list[int]) -> tuple[list[tuple[str, str, bytes]], bool]:
    """The requests that got through, and whether the rest was refused."""
    served = []

    def handle(exchange: ConnectionExchange) -> None:
        request = exchange.request
        served.append((request.method, request.target, bytes(request.body)))
        exchange.respond(200)

    client = Client(handle)
    for start, end in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
        client.send(data[start:end])
    return served, client.connection.phase is not ConnectionPhase.OPEN


@settings(max_examples=2 * settings.default.max_examples)
@given(data=st.data())
def test_a_damaged_stream_means_the_same_however_it_is_cut(data):
    """Two readings of one stream would be a hole: what a proxy let pass, we might see as two."""
    damaged = bytearray(STREAM)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        piece = data.draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"0", b":", b";", b"\0", b"\xff"])
        )
        damaged[place : place + data.draw(st.integers(0, 2))] = piece
    cuts = data.draw(st.lists(st.integers(1, len(damaged)), max_size=8))
    whole = bytes(damaged)
    assert outcome(whole, cuts) == outcome(whole, [])
    assert outcome(whole, list(range(len(whole)))) == outcome(whole, [])


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_connection(data):
    outcome(data, [])
    outcome(b"PUT /" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + data, [])


def test_one_request_at_a_time_is_with_the_application():
    client = Client()
    client.send(STREAM)
    assert [exchange.request.path for exchange in client.exchanges] == ["/1"]
    assert client.connection.busy


def test_what_is_sent_ahead_is_bounded():
    client = Client()
    client.send(sized(b"first"))
    while client.transport.reading:
        client.send(sized(bytes(1000)))
    assert client.connection._reader.waiting_bytes < 70_000
    while client.exchanges:
        client.exchanges.pop().respond(200)
        client.run_deferred()
    assert client.transport.reading
    assert client.connection._reader.waiting_bytes == 0


def test_no_request_is_begun_while_the_client_does_not_read():
    client = Client()
    client.send(STREAM)
    client.connection.pause_writing()
    echo(client.exchanges.pop())
    client.run_deferred()
    assert client.exchanges == []
    client.connection.resume_writing()
    assert [exchange.request.path for exchange in client.exchanges] == ["/2"]


def test_input_is_bounded_while_the_client_does_not_read():
    client = Client(max_head_bytes=1 << 20)
    client.send(b"GET /" + HOST)
    client.connection.pause_writing()
    while client.transport.reading:
        client.send(b"A: " + b"a" * 1000 + b"\r\n")
    assert client.connection._reader.waiting_bytes < 70_000
    client.connection.resume_writing()
    assert client.transport.reading


def test_a_stream_hears_of_pauses():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    (exchange,) = client.exchanges
    exchange.start_stream(200)
    told = []
    exchange.on_writable = lambda: told.append(exchange.writable)
    client.connection.pause_writing()
    assert not exchange.writable
    client.connection.resume_writing()
    assert told == [True]


def test_an_application_that_raises_is_answered_for(caplog):
    client = Client(lambda exchange: 1 / 0)
    client.send(b"GET /a" + HOST + b"\r\n")
    assert client.status == 500
    assert client.error.startswith("internal error")
    assert "GET /a" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert client.connection.phase is ConnectionPhase.OPEN


def test_an_application_that_raises_after_answering_changes_nothing(caplog):
    def handle(exchange: ConnectionExchange) -> None:
        exchange.respond(200)
        raise ValueError("late")

    client = Client(handle)
    client.send(b"GET /" + HOST + b"\r\n")
    assert client.transport.written == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_an_application_that_raises_in_a_stream_cuts_it(caplog):
    def handle(exchange: ConnectionExchange) -> None:
        exchange.start_stream(200)
        raise ValueError("half-way")

    client = Client(handle)
    client.send(b"GET /" + HOST + b"\r\n")
    assert client.transport.aborted


def test_connection_close_is_honoured():
    client = Client(echo)
    client.send(b"GET /" + HOST + b"Connection: close\r\n\r\n")
    assert b"Connection: close\r\n" in client.transport.written
    assert client.transport.closed


def test_what_follows_a_last_request_is_thrown_away():
    client = Client(echo)
    client.send(b"GET /1" + HOST + b"Connection: close\r\n\r\nGET /2" + HOST + b"\r\n")
    assert client.transport.written.count(b"HTTP/1.1 200") == 1
    assert client.transport.eof_written  # not closed at once: that could cost the client the answer
    assert not client.transport.closed


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, b"nonsense\r\n\r\n"),
        (400, b"PUT /" + HOST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n"),
        (413, b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n"),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ],
)
def test_a_broken_request_is_refused_and_the_rest_is_thrown_away(status, data):
    client = Client(echo)
    client.send(data)
    assert client.status == status
    assert client.error
    assert b"Content-Type: application/json\r\n" in client.transport.written
    assert b"Connection: close\r\n" in client.transport.written
    assert client.transport.eof_written
    refusal = client.transport.written
    client.send(b"GET /" + HOST + b"\r\n" + bytes(200_000))
    assert client.transport.written == refusal
    assert client.exchanges == []


def test_a_refusal_waits_for_the_answer_before_it():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\nnonsense\r\n\r\n")
    assert client.transport.written == b""
    client.exchanges.pop().respond(200)
    client.run_deferred()
    assert client.transport.written.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400" in client.transport.written


def test_a_refused_client_that_goes_on_sending_is_cut():
    client = Client(linger_bytes=100_000)
    client.send(b"nonsense\r\n\r\n")
    client.send(bytes(90_000))
    assert not client.transport.aborted
    client.send(bytes(20_000))
    assert client.transport.aborted


def test_continue_is_sent_once_and_before_the_body():
    client = Client(echo)
    client.send(b"POST /" + HOST + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert client.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"ab")
    client.send(b"cd")
    assert client.transport.written.endswith(answer_to(b"POST / abcd"))
    assert client.transport.written.count(b"100 Continue") == 1


# --- clocks ------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_without_a_word():
    client = Client(echo, keepalive_idle_secs=600)
    client.send(b"GET /" + HOST + b"\r\n\r\n")
    before = client.transport.written
    client.sweep_until(600)
    assert client.transport.closed
    assert client.transport.written == before


def test_requests_keep_a_connection_from_idling():
    client = Client(echo, keepalive_idle_secs=10)
    for now in range(0, 100, 9):
        client.send(b"GET /" + HOST + b"\r\n")
        client.connection.sweep(now)
    assert not client.transport.closed


def test_a_slow_head_is_refused_however_steadily_it_drips():
    client = Client(head_timeout_secs=30)
    client.send(b"G")
    client.connection.sweep(0)
    for now in range(1, 30):
        client.send(b"ET /" + HOST if now == 1 else b"A: b\r\n")
        client.connection.sweep(now)
    assert client.transport.written == b""
    client.connection.sweep(30)
    assert client.status == 408
    assert "30 seconds" in client.error


@pytest.mark.parametrize("framing", [b"Content-Length: 999", b"Transfer-Encoding: chunked"])
def test_a_stalled_body_is_refused(framing):
    client = Client(body_idle_timeout_secs=60, min_rate=0)
    client.send(b"POST /" + HOST + framing + b"\r\n\r\n")
    client.connection.sweep(0)
    client.send(b"5")
    client.connection.sweep(59)
    client.connection.sweep(118)
    assert client.transport.written == b""
    client.connection.sweep(119)
    assert client.status == 408
    assert "60 seconds" in client.error
    assert client.connection.get_buffer(-1) is client.state.scratch  # the body's memory is gone


def test_an_application_may_take_all_the_time_it_wants():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    for now in range(0, 10**6, 10**4):
        client.connection.sweep(now)
    client.exchanges.pop().respond(200)
    client.connection.sweep(10**6)
    assert not client.transport.closed


def test_a_client_that_stops_reading_is_cut():
    client = Client(write_stall_secs=60)
    client.send(b"GET /" + HOST + b"\r\n")
    (exchange,) = client.exchanges
    left = []
    exchange.on_disconnect = lambda: left.append(1)
    exchange.start_stream(200)
    client.transport.unsent = len(client.transport.written)
    client.connection.sweep(0)
    exchange.send_chunk(bytes(1000))  # our own writing is no progress of the client's
    client.transport.unsent = len(client.transport.written)
    client.connection.sweep(59)
    assert not client.transport.aborted
    client.connection.sweep(60)
    assert client.transport.aborted
    assert left == [1]


def test_a_client_that_reads_slowly_is_not_cut():
    client = Client(echo, write_stall_secs=60, min_rate=0, keepalive_idle_secs=1)
    client.send(b"GET /" + HOST + b"\r\n")
    for now in range(50):
        client.transport.unsent = 50 - now
        client.connection.sweep(now * 59)
    assert not client.transport.aborted
    assert not client.transport.closed


def test_lingering_ends():
    client = Client(linger_secs=5)
    client.send(b"nonsense\r\n\r\n")
    client.transport.unsent = 10  # whether or not it reads the refusal
    client.connection.sweep(0)
    client.connection.sweep(4.9)
    assert not client.transport.aborted
    client.connection.sweep(5)
    assert client.transport.aborted


def test_clocks_set_to_zero_never_run_out():
    forever = {
        "head_timeout_secs": 0,
        "body_idle_timeout_secs": 0,
        "body_total_secs": 0,
        "min_rate": 0,
        "keepalive_idle_secs": 0,
        "write_stall_secs": 0,
    }
    for sent in (b"", b"GET ", b"POST /" + HOST + b"Content-Length: 9\r\n\r\n"):
        client = Client(**forever)
        client.send(sent)
        for unsent in (0, 10):
            client.transport.unsent = unsent
            client.connection.sweep(0)
            client.connection.sweep(10**9)
        assert not client.transport.ended
        assert client.transport.written == b""


# --- ends --------------------------------------------------------------------------------------


def test_end_of_input_while_a_request_is_in_flight_is_going_away():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    (exchange,) = client.exchanges
    left = []
    exchange.on_disconnect = lambda: left.append(1)
    client.connection.eof_received()
    client.connection.connection_lost(None)
    assert left == [1]
    exchange.respond(200)
    assert client.transport.written == b""


def test_a_lost_connection_is_going_away_too():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    left = []
    client.exchanges[0].on_disconnect = lambda: left.append(1)
    client.connection.connection_lost(ConnectionResetError())
    assert left == [1]
    assert not client.state.connections


def test_nobody_is_told_about_a_client_that_leaves_after_its_answer():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    left = []
    client.exchanges[0].on_disconnect = lambda: left.append(1)
    client.exchanges[0].respond(200)
    client.connection.connection_lost(None)
    assert left == []


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HT",
        b"POST /" + HOST + b"Content-Length: 5\r\n\r\nab",
        b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_end_of_input_within_a_request_is_answered(sent):
    client = Client()
    client.send(sent)
    client.connection.eof_received()
    assert client.status == 400
    assert "ended before" in client.error


def test_end_of_input_on_an_idle_connection_is_not_answered():
    client = Client(echo)
    client.send(b"GET /" + HOST + b"\r\n")
    before = client.transport.written
    client.connection.eof_received()
    assert client.transport.written == before


def test_only_idle_connections_are_closed_when_asked():
    for sent, closed in (
        (b"", True),
        (b"GET ", False),
        (b"POST /" + HOST + b"Content-Length: 5\r\n\r\n", False),
        (b"GET /" + HOST + b"\r\n", False),
    ):
        client = Client()
        client.send(sent)
        client.connection.close_if_idle()
        assert client.transport.closed is closed


def test_while_draining_every_answer_is_the_last():
    client = Client(echo)
    client.send(b"GET /" + HOST + b"\r\n")
    assert not client.transport.closed
    client.state.draining = True
    client.send(b"GET /" + HOST + b"\r\n")
    assert client.transport.written.count(b"Connection: close") == 1
    assert client.transport.closed


def test_while_draining_requests_that_were_sent_ahead_are_answered():
    client = Client(echo)
    client.state.draining = True
    client.state.linger_until = math.inf
    client.send((b"GET /" + HOST + b"\r\n") * 3)
    heads = client.transport.written.split(b"HTTP/1.1 200 OK")[1:]
    assert [b"Connection: close" in head for head in heads] == [False, False, True]
    assert client.transport.closed


def test_giving_up_answers_the_request_in_flight():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    left = []
    client.exchanges[0].on_disconnect = lambda: left.append(True)
    client.state.draining = True
    client.connection.give_up("it takes too long")
    assert (client.status, client.error) == (503, "it takes too long")
    assert b"Connection: close\r\n" in client.transport.written
    assert client.transport.closed
    assert left == [True]
    client.exchanges[0].respond(200)  # too late, and no error


def test_giving_up_ends_a_stream_with_an_event():
    client = Client()
    client.send(b"GET /" + HOST + b"\r\n")
    exchange = client.exchanges[0]
    exchange.start_stream(200)
    exchange.send_chunk(b"data: 1\n\n")
    client.state.draining = True
    client.connection.give_up("it takes too long")
    assert client.transport.written.endswith(
        b'data: {"error":"it takes too long"}\n\n\r\n0\r\n\r\n'
    )
    assert client.transport.closed
    exchange.send_chunk(b"data: 2\n\n")
    exchange.end_stream()


def test_giving_up_refuses_a_request_that_still_arrives():
    client = Client()
    client.send(b"POST /" + HOST + b"Content-Length: 5\r\n\r\n12")
    client.connection.give_up("it takes too long")
    assert (client.status, client.error) == (503, "it takes too long")


def test_abort_is_safe_at_any_time():
    client = Client()
    client.send(STREAM)
    exchange = client.exchanges[0]
    client.connection.abort()
    client.connection.abort()
    exchange.respond(200)
    client.run_deferred()
    client.connection.sweep(1)
    client.connection.connection_lost(None)
    assert client.transport.written == b""
    assert len(client.exchanges) == 1


def test_the_listener_hears_of_the_last_connection():
    client = Client()
    empty = []
    client.state.on_empty = lambda: empty.append(1)
    other = HttpConnection(client.state)
    other.connection_made(FakeTransport())
    client.connection.connection_lost(None)
    assert empty == []
    other.connection_lost(None)
    assert empty == [1]


# --- rates, budgets, turns -------------------------------------------------------------------


def test_a_body_that_trickles_in_is_refused():
    client = Client(body_idle_timeout_secs=60, min_rate=500)
    client.send(b"POST /" + HOST + b"Content-Length: 100000\r\n\r\n")
    client.connection.sweep(0)
    now = 0
    while client.transport.written == b"":
        now += 30
        client.send(b"x")
        client.connection.sweep(now)
        assert now <= 90
    assert client.status == 408
    assert b"3 bytes in 90 seconds" in client.transport.written


def test_a_slow_body_is_fine_if_it_keeps_the_rate():
    client = Client(body_idle_timeout_secs=60, min_rate=500)
    client.send(b"POST /" + HOST + b"Content-Length: 60000\r\n\r\n")
    for now in range(0, 120, 2):
        client.connection.sweep(now)
        client.send(b"x" * 1000)
    assert len(client.exchanges) == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
def test_a_body_has_a_time_in_all(framing):
    client = Client(body_total_secs=100, min_rate=0)
    client.send(b"POST /" + HOST + framing + b"\r\n\r\n")
    for now in range(0, 100, 10):
        client.connection.sweep(now)
        client.send(b"a\r\n0123456789\r\n")
    assert client.transport.written == b""
    client.connection.sweep(100)
    assert client.status == 408
    assert b"within 100 seconds" in client.transport.written


def test_a_response_that_trickles_out_is_cut_off():
    client = Client(write_stall_secs=60, min_rate=500)
    client.send(b"GET /" + HOST + b"\r\n")
    client.exchanges[0].respond(200, (), (b"x" * 100_000,))
    for now in range(0, 120, 30):
        client.transport.unsent = 100_000 - now
        client.connection.sweep(now)
    assert client.transport.aborted


def test_bodies_beyond_the_budget_are_refused_before_they_arrive():
    client = Client(max_buffered_bytes=1_000_000)
    client.send(b"POST /" + HOST + b"Content-Length: 1000001\r\n\r\n")
    assert client.status == 503
    assert b"Retry-After: 1\r\n" in client.transport.written
    assert b"--max-buffered-bytes" in client.transport.written


def another(state):
    """A second connection of the same listener."""
    client = Client()
    client.connection.connection_lost(None)
    client.state = state
    client.connection = HttpConnection(state)
    client.connection.connection_made(client.transport)
    return client


def test_what_all_clients_have_sent_counts_until_it_is_freed():
    first = Client(max_buffered_bytes=1_000_000)
    memory = first.state.memory
    post = b"POST /" + HOST + b"Content-Length: 600000\r\n\r\n"
    first.send(post + b"x" * 600_000)
    assert memory.held_bytes == 600_000
    second = another(first.state)
    second.send(post)
    assert second.status == 503
    small = another(first.state)
    small.send(b"POST /" + HOST + b"Content-Length: 9\r\n\r\n")
    small.send(b"123456789")
    assert small.transport.written == b"", "small bodies do not count"
    first.exchanges.clear()
    first.connection.connection_lost(None)
    del first, small
    third = another(second.state)
    third.send(post + b"x" * 300_000)
    assert (memory.held_bytes, memory.unfinished_bytes) == (0, 300_000)
    third.connection.connection_lost(None)
    assert memory.unfinished_bytes == 0


def test_chunked_bodies_count_as_they_arrive():
    client = Client(max_buffered_bytes=100_000)
    client.send(b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    client.send(b"c350\r\n" + b"x" * 50_000 + b"\r\n")
    assert client.state.memory.unfinished_bytes == 50_000
    client.send(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
    assert client.status == 503
    assert client.state.memory.unfinished_bytes == 0


def test_unread_responses_count_until_they_are_read():
    client = Client(max_buffered_bytes=1_000_000)
    memory = client.state.memory
    client.transport.unsent = 400_000
    client.connection.pause_writing()
    assert memory.queued_bytes == 400_000
    client.transport.unsent = 0
    client.connection.resume_writing()
    assert memory.queued_bytes == 0
    client.transport.unsent = 1_000_001
    client.connection.pause_writing()
    assert client.transport.aborted
    assert memory.queued_bytes == 0


def test_requests_sent_ahead_leave_others_a_turn(monkeypatch):
    monkeypatch.setattr(protocol, "_TURN_NS", 5_000_000)
    clock = iter(range(0, 10**12, 2_000_000))
    monkeypatch.setattr("shoal.frontends.http.protocol.time.monotonic_ns", lambda: next(clock))
    served = []

    def respond(exchange):
        served.append(exchange.request.target)
        exchange.respond(200)

    client = Client(respond)
    client.send((b"GET /" + HOST + b"\r\n") * 10)
    assert len(served) == 4
    while client.deferred:
        client.deferred.pop()()
    assert len(served) == 10


def test_one_connection_too_many_is_told_so():
    first = Client()
    state = ListenerState(
        first.exchanges.append, HttpLimits(), clients=ClientLimits.of(1 << 20, max_connections=1)
    )
    state.date_line = b""
    clients = [another(state) for _ in range(2)]
    assert clients[0].transport.written == b""
    assert clients[1].status == 503
    assert b"Retry-After" in clients[1].transport.written
    clients[1].connection.connection_lost(None)
    clients[0].connection.connection_lost(None)
    assert state.clients.count == 0


def test_large_bodies_are_received_straight_into_their_memory():
    """After one large body little is read with a head; after a small one all of it is again."""
    client = Client(echo)
    large = sized(bytes(200_000))
    client.send(large)
    assert len(client.connection.get_buffer(-1)) == 4096
    client.send(large[:4096])
    rest = client.connection.get_buffer(-1)
    assert len(rest) == len(large) - 4096  # where the body stays
    client.send(large[4096:])
    assert client.transport.written.count(b"HTTP/1.1 200") == 2
    client.send(sized(bytes(9_000)))  # in several pieces
    assert client.connection.get_buffer(-1) is client.state.scratch
    assert client.transport.written.count(b"HTTP/1.1 200") == 3

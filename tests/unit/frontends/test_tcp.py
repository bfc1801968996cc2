"""Questions over TCP, without a socket: framing, order, limits, leaving."""

import asyncio
import json

from shoal.errors import InvalidArgument, Unavailable
from shoal.frontends.tcp import QuestionConnection, TcpLimits, TcpListener
from shoal.statistics.tracer import Tracer


class FakeTransport(asyncio.Transport):
    """Keeps what was written and done."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = self.aborted = self.ended = False

    def write(self, data):
        assert not self.closed
        assert not self.ended
        self.written += data

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.ended = True

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True


class FakeTask:
    operation = "answer"


class FakeEngine:
    """Answers questions when it is told to; `asked` are the calls that have begun, by question."""

    def __init__(self, models=("reader",)):
        self.models = models
        self.tracer = Tracer()
        self.asked = {}
        self.named = []
        self.left = 0
        self.cancelled = 0

    def tasks(self):
        return [(name, 1, FakeTask()) for name in self.models]

    def task(self, operation, name="", version=-1):
        assert operation == "answer"
        self.named.append(name)
        if name == "classifier":
            raise InvalidArgument("model 'classifier' does not offer 'answer'")
        return FakeCall(self)


class FakeCall:
    def __init__(self, engine):
        self._engine = engine

    async def perform(self, asked):
        question = asked.text("question", longest=100)
        future = asyncio.get_running_loop().create_future()
        self._engine.asked[question] = future
        try:
            return {"answer": await future}
        except asyncio.CancelledError:
            self._engine.cancelled += 1
            raise

    def leave(self):
        self._engine.left += 1


class Client:
    """One connection, and the other side of it."""

    def __init__(self, limits=None, models=("reader",)):
        self.engine = FakeEngine(models)
        self.listener = TcpListener(self.engine, limits or TcpLimits())
        self.connection = QuestionConnection(self.listener)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    async def send(self, *pieces):
        for piece in pieces:
            self.connection.data_received(piece.encode() if isinstance(piece, str) else piece)
            await settled()

    async def answer(self, question, answer):
        future = self.engine.asked.pop(question)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        await settled()

    @property
    def received(self):
        return self.transport.written.decode()


async def settled():
    """Let the loop do all that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


def ask(question, **more):
    return json.dumps({"text": "some text", "question": question, **more})


def on_loop(test):
    """Run a coroutine test."""

    def run(*arguments, **named):
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_loop
async def test_an_answer_without_a_newline_for_a_question_without_one():
    client = Client()
    await client.send(ask("who?"))
    await client.answer("who?", "Näh")
    assert client.received == "Näh"
    await client.send(ask("when?"))
    await client.answer("when?", "1871")
    assert client.received == "Näh1871"
    assert client.engine.left == 2
    assert not client.transport.closed


@on_loop
async def test_a_newline_for_a_newline_even_if_it_comes_later():
    client = Client()
    await client.send(ask("a") + "\n")
    await client.answer("a", "A")
    await client.send(ask("b"))
    await client.send("\r\n")
    await client.answer("b", "B")
    assert client.received == "A\nB\n"


@on_loop
async def test_questions_in_pieces_and_several_in_one():
    client = Client()
    first, second = ask('a}"{'), ask("b")
    await client.send(first[:5], first[5:20], first[20:] + "\n  " + second + "\n" + ask("c")[:3])
    await client.answer("b", "B")
    assert client.received == ""  # in order
    await client.answer('a}"{', "A")
    assert client.received == "A\nB\n"
    await client.send(ask("c")[3:])
    await client.answer("c", "C")
    assert client.received == "A\nB\nC"


@on_loop
async def test_answers_are_one_line():
    client = Client()
    await client.send(ask("a") + "\n")
    await client.answer("a", "two\r\nlines\u2028three")
    assert client.received == "two lines three\n"


@on_loop
async def test_errors_are_lines_and_the_connection_stays_usable():
    client = Client()
    await client.send('{"text": }\n')
    await client.send('{"text": "x"}')
    await client.send("hello\n" + ask("a"))
    await client.answer("a", Unavailable("queue\nis full"))
    await client.send(ask("b", model=5), ask("c", questions=["x"]), ask("d", model="classifier"))
    await client.send(ask("e"))
    await client.answer("e", RuntimeError("oh"))
    lines = client.received.splitlines(keepends=True)
    assert all(line.startswith("error: ") and line.endswith("\n") for line in lines)
    assert [line[7:-1] for line in lines[1:]] == [
        "'question' is missing: send it as a text",
        "expected a JSON object, found 'hello'",
        "queue is full",
        "'model' must be the name of a model",
        "over TCP, send one question at a time, as 'question'",
        "model 'classifier' does not offer 'answer'",
        "internal error: RuntimeError: oh",
    ]
    assert "failed to parse" in lines[0]
    await client.send(ask("f"))
    await client.answer("f", "F")
    assert client.received.endswith("F")
    assert not client.transport.closed


@on_loop
async def test_a_model_may_be_named():
    client = Client()
    await client.send(ask("a", model="other"), ask("b"))
    assert client.engine.named == ["other", ""]


@on_loop
async def test_one_of_several_models_must_be_named():
    client = Client(models=("second", "first"))
    await client.send(ask("a"))
    assert client.received == (
        'error: several models answer questions (first, second): choose one with "model"\n'
    )
    await client.send(ask("a", model="first"))
    await client.answer("a", "A")
    assert client.received.endswith("A")


# ---- the end of a connection


@on_loop
async def test_what_makes_no_sense_ends_the_connection_after_the_answers():
    client = Client()
    await client.send(ask("a") + " nonsense")
    assert client.received == ""
    assert not client.transport.ended
    await client.answer("a", "A")
    assert client.received == "Aerror: expected a JSON object, found 'nonsense'\n"
    assert client.transport.ended
    await client.send(ask("b"), "x" * 1000)  # swallowed, so that the client can read the error
    assert not client.engine.asked
    assert not client.transport.closed
    assert client.connection.eof_received() is False


@on_loop
async def test_a_client_that_does_not_go_after_the_end_is_cut_off():
    client = Client(TcpLimits(linger_secs=3))
    await client.send("nonsense")
    heard = client.connection._active
    client.connection.sweep(heard + 1)
    assert not client.transport.closed
    client.connection.sweep(heard + 4)
    assert client.transport.aborted


@on_loop
async def test_an_object_may_have_only_so_many_bytes():
    client = Client(TcpLimits(max_object_bytes=50))
    await client.send('{"text": "', "x" * 60)
    assert client.received == "error: an object has more than 50 bytes; send less\n"
    assert client.transport.ended


@on_loop
async def test_a_client_that_has_said_all_still_gets_its_answers():
    client = Client()
    await client.send(ask("a") + "\n" + ask("b") + "\n")
    assert client.connection.eof_received() is True
    await client.answer("a", "A")
    assert not client.transport.closed
    await client.answer("b", "B")
    assert client.received == "A\nB\n"
    assert client.transport.closed


@on_loop
async def test_the_end_within_an_object():
    client = Client()
    await client.send('{"text": ')
    assert client.connection.eof_received() is False
    assert client.received == "error: the connection ended within an object\n"
    assert client.transport.closed


@on_loop
async def test_an_idle_client_that_goes():
    client = Client()
    assert client.connection.eof_received() is False
    assert client.received == ""
    assert client.transport.closed


@on_loop
async def test_leaving_withdraws_the_questions():
    client = Client()
    await client.send(ask("a"), ask("b"))
    client.transport.close()
    client.connection.connection_lost(None)
    await settled()
    assert client.engine.cancelled == 2
    assert client.engine.left == 2
    assert client.listener.open_connections == 0


# ---- limits


@on_loop
async def test_only_so_many_questions_are_begun_at_once():
    client = Client()
    await client.send("".join(ask(f"q{n}") for n in range(12)))
    assert sorted(client.engine.asked) == [f"q{n}" for n in range(8)]
    assert not client.transport.reading
    await client.answer("q1", "1")
    assert len(client.engine.asked) == 7  # its place is taken until the first one is answered
    await client.answer("q0", "0")
    assert client.received == "01"
    assert len(client.engine.asked) == 8
    for n in range(2, 12):
        await client.answer(f"q{n}", str(n))
    assert client.received == "".join(map(str, range(12)))
    assert client.transport.reading


@on_loop
async def test_a_client_that_does_not_read_is_not_written_to():
    client = Client(TcpLimits(write_stall_secs=60))
    await client.send(ask("a"))
    client.connection.pause_writing()
    assert not client.transport.reading
    await client.answer("a", "A")
    assert client.received == ""
    client.connection.resume_writing()
    assert client.received == "A"
    assert client.transport.reading
    client.connection.pause_writing()
    client.connection.sweep(asyncio.get_running_loop().time() + 61)
    assert client.transport.aborted


@on_loop
async def test_clocks():
    client = Client(TcpLimits(idle_secs=100, object_idle_secs=10))
    now = asyncio.get_running_loop().time()
    client.connection.sweep(now + 50)
    await client.send(ask("slow"))
    client.connection.sweep(now + 1000)
    assert not client.transport.closed, "nobody is cut off while the model thinks"
    await client.answer("slow", "A")
    client.connection.sweep(now + 50)
    assert not client.transport.closed
    client.connection.sweep(now + 1000)
    assert client.transport.closed
    assert client.received == "A"


@on_loop
async def test_an_object_that_stands_still():
    client = Client(TcpLimits(idle_secs=100, object_idle_secs=10))
    await client.send('{"text')
    client.connection.sweep(client.connection._active + 11)
    assert client.received.startswith("error: no byte of the object arrived for 11 s")
    assert client.transport.ended


@on_loop
async def test_clocks_that_never_run_out():
    client = Client(TcpLimits(idle_secs=0, object_idle_secs=0, write_stall_secs=0))
    later = asyncio.get_running_loop().time() + 1e9
    client.connection.sweep(later)
    await client.send("{")
    client.connection.sweep(later)
    client.connection.pause_writing()
    client.connection.sweep(later)
    assert not client.transport.closed


# ---- stopping


async def stop(client):
    """Stop, and let no time pass for idle connections."""
    await client.listener.stop_accepting(linger_secs=0)
    await settled()


@on_loop
async def test_stopping_leaves_idle_connections_a_moment():
    client = Client()
    await client.listener.stop_accepting(linger_secs=1000)
    client.connection.advance()
    await client.send(ask("a"))
    await client.answer("a", "A")
    assert client.received == "A"
    assert not client.transport.closed
    client.listener.linger_until = 0
    client.connection.advance()
    assert client.transport.closed
    client.listener.abort_all()


@on_loop
async def test_stopping_lets_questions_be_answered():
    client = Client()
    second = ask("b")
    await client.send(ask("a") + second[:9])
    await stop(client)
    assert client.transport.reading
    await client.answer("a", "A")
    assert not client.transport.closed
    await client.send(second[9:])
    await client.answer("b", "B")
    assert client.received == "AB"
    assert client.transport.closed
    client.listener.abort_all()


@on_loop
async def test_giving_up_answers_with_an_error():
    client = Client()
    await client.send(ask("a"))
    client.listener.give_up()
    assert client.received == (
        "error: the server exits and could not finish this request within --exit-timeout-secs\n"
    )
    assert client.transport.ended
    await settled()
    assert client.engine.cancelled == 1


@on_loop
async def test_cutting_off():
    client = Client()
    await client.send(ask("a"))
    client.listener.abort_all()
    assert client.transport.aborted

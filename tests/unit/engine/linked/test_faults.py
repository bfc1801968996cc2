"""Front ends and an engine that are damaged, silent, or without memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from unittest.mock import Mock

import numpy as np
import pytest

from shoal.core.dtypes import INT32
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.engine.linked import connection, messages
from shoal.engine.linked import frontend as engine_frontend
from shoal.engine.linked import service as engine_service
from shoal.engine.linked.client import LinkedEngine
from shoal.engine.linked.service import EngineService
from shoal.errors import InvalidArgument, QueueRejected, Unavailable
from shoal.frontends.waiting import once_loaded
from shoal.link.link import Link
from shoal.link.segments import SegmentViews
from shoal.testing import WAIT_SECS
from tests.support.fakes import make_request
from tests.support.repositories import add_fake

JUNK = b"\x04\x00\x00\x00junk"


def find(world, frontend, name="held"):
    return world.run(once_loaded(lambda: frontend.find(name)))


@contextlib.contextmanager
def silent_front_end(world):
    """A front end that reads nothing and answers nothing, as one that is stopped."""
    ours, theirs = socket.socketpair()

    async def connect():
        return world.service.connect(Link(ours))

    connected = world.run(connect())
    with theirs:
        yield
    world.run(world.until(lambda: connected.closed))


def test_a_damaged_message_to_the_engine_ends_that_link_only(world):
    damaged, sound = world.frontends
    lost = []
    damaged.on_lost = lambda: lost.append(damaged)
    find(world, damaged)
    damaged.link.connection.sendall(JUNK)
    world.run(world.until(lambda: lost))
    with pytest.raises(Unavailable, match="is being restarted"):
        find(world, damaged)
    assert find(world, sound).version == 1
    assert len(world.service.frontends()) == 1


def test_a_damaged_message_to_a_front_end_ends_that_link_only(world):
    lost = []
    for frontend in world.frontends:
        frontend.on_lost = lambda frontend=frontend: lost.append(frontend)
    next(iter(world.service.frontends()))._link.connection.sendall(JUNK)
    world.run(world.until(lambda: lost))
    (damaged,) = lost
    (sound,) = set(world.frontends) - {damaged}
    assert find(world, sound).version == 1
    world.run(world.until(lambda: len(world.service.frontends()) == 1))


def test_a_new_link_replaces_the_old_one(world):
    frontend, _ = world.frontends
    frontend.on_lost = lambda: pytest.fail("the old link is not missed")

    async def connect():
        ours, theirs = socket.socketpair()
        world.service.connect(Link(ours))
        frontend.connect(Link(theirs), world.inbox)

    world.run(connect())
    assert find(world, frontend).version == 1
    world.run(world.until(lambda: len(world.service.frontends()) == 2))
    frontend.on_lost = lambda: None


def test_a_message_that_cannot_be_handled_costs_no_other(world):
    frontend, _ = world.frontends
    (connected, _) = world.service.frontends()
    connected._send("no such kind")
    connected._send("returned", 12345, None)
    assert find(world, frontend).version == 1


@pytest.mark.parametrize("method", ["load", "unload"])
def test_a_silent_front_end_does_not_keep_a_model(world, monkeypatch, method):
    monkeypatch.setattr(engine_service, "_SEEN_SECS", 0.01)
    frontend, _ = world.frontends
    add_fake(world.models, "other")
    world.blocking(frontend.load, "other", None, {})
    with silent_front_end(world):
        model = find(world, frontend, "other")
        served = world.service.served(model.key)
        world.blocking(world.service._finish_calls, model.key)
        arguments = ("other", None, {}) if method == "load" else ("other",)
        world.blocking(getattr(frontend, method), *arguments)
        assert served is not None


def test_loads_that_take_long_do_not_delay_readiness(world, monkeypatch):
    """As many as there are threads for them, and more."""
    frontend, _ = world.frontends
    go, begun = threading.Event(), threading.Semaphore(0)

    def wait(*_):
        begun.release()
        assert go.wait(WAIT_SECS)

    monkeypatch.setitem(world.service.methods, "load", wait)

    ended = []

    async def ask():
        for number in range(engine_service._THREADS + 2):
            frontend._linked().call(
                "load", f"m{number}", None, {}, settled=lambda *outcome: ended.append(outcome)
            )
        for _ in range(engine_service._THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=WAIT_SECS)
        return await asyncio.to_thread(frontend.readiness)

    try:
        world.engine.begin_exit()
        texts = [problem.text for problem in world.run(ask()).problems]
        assert texts == ["the server is shutting down: it will close its ports"]  # by the engine
    finally:
        go.set()
    world.run(world.until(lambda: len(ended) == engine_service._THREADS + 2))


def test_an_engine_that_does_not_answer_is_not_ready(world, monkeypatch):
    frontend, _ = world.frontends
    monkeypatch.setattr("shoal.engine.linked.client._READINESS_SECS", 0.0)
    monkeypatch.setitem(world.service.methods, "readiness", lambda: None)
    readiness = frontend.readiness()  # the loop does not run meanwhile
    assert not readiness.ready
    assert [problem.text for problem in readiness.problems] == [
        "the engine process does not answer; try again later"
    ]


def test_requests_to_an_engine_that_does_not_read_are_limited(world, monkeypatch):
    monkeypatch.setattr("shoal.engine.linked.connection._MOST_BACKLOG_BYTES", 100_000)
    frontend, _ = world.frontends
    array = np.ones((1, 4000), np.int32)
    replies = []

    async def send_many():
        """In one iteration of the loop, which serves the engine, too."""
        for _ in range(200):
            request, reply = make_request(
                Tensor("INPUT0", INT32, array.shape, array=array), model="held"
            )
            frontend.infer(request)
            replies.append(reply)
            frontend.link.flush()

    with pytest.raises(Unavailable, match="does not take requests") as refused:
        world.run(send_many())
    assert refused.value.retry_secs == 1
    assert 1 < len(replies) < 100
    world.run(world.until(lambda: all(reply.answered for reply in replies)))  # for their shape


def test_keys_of_models_are_never_given_again(world):
    """A call of a task that began before its engine ended names the key of its model."""
    key = find(world, world.frontends[0]).key

    async def another():
        return EngineService(world.engine, world.handle)

    service = world.run(another())
    (described, *_), *_ = service._models()
    assert described > key
    service.close()


def test_files_of_a_model_that_do_not_fit_into_a_message_are_refused(world, monkeypatch):
    monkeypatch.setattr("shoal.engine.linked.client._MOST_FILE_BYTES", 9)
    with pytest.raises(InvalidArgument, match=r"may bring 9\. Copy them into the model repository"):
        world.frontends[0].load("big", None, {"file:1/model.onnx": b"0123456789"})


def test_views_without_memory_refuse_every_request_of_a_group(world, monkeypatch):
    """The tensors of a group are mapped together."""
    connected, _ = world.service.frontends()
    sent = []
    monkeypatch.setattr(connected, "respond", lambda *answer: sent.append(answer))

    def no_memory(*_):
        raise Unavailable("no memory")

    monkeypatch.setattr(SegmentViews, "lease", no_memory)
    inputs = (("INPUT0", 8, (1, 5000)),)
    packed = ("held", -1, inputs, (20_000,), (), {}, 0, 0)
    connected._take_template(1, packed)
    connected._take_group(1, 100, 2, None, 0, [(1, 0, 20_000), (1, 20_000, 40_000)])
    world.service.groups.run()
    assert [(number, answer.error.message) for number, answer in sent] == [
        (100, "no memory"),
        (101, "no memory"),
    ]


def test_calls_of_an_engine_that_is_stopped_end(world, monkeypatch):
    """Also those that may take any time, and those that came before it stopped."""
    monkeypatch.setattr(connection, "_BEAT_SECS", 0.001)
    ours, theirs = socket.socketpair()
    frontend = LinkedEngine(server_id="triton", has_gpus=False, workers=lambda: world.workers)

    async def connect():
        frontend.connect(Link(theirs), world.inbox)

    async def ask():
        calls = [
            asyncio.to_thread(frontend.load, "held", None, {}),
            asyncio.to_thread(frontend.index),
            asyncio.to_thread(frontend.model_ready, "held"),
            once_loaded(lambda: frontend.find("held")),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    world.run(connect())
    with ours:
        for _ in range(2):
            assert [str(error) for error in world.run(ask())] == [
                "the engine process does not answer; try again later"
            ] * 4

    async def close():
        frontend.close()

    world.run(close())


def test_calls_that_take_long_in_an_engine_that_runs_do_not_end(world, monkeypatch):
    monkeypatch.setattr(connection, "_BEAT_SECS", 0.001)
    frontend, _ = world.frontends
    go = threading.Event()
    monkeypatch.setitem(world.service.methods, "index", lambda _: go.wait(WAIT_SECS) and ["row"])
    linked = frontend._linked()
    beats = []
    beat = linked._beat
    monkeypatch.setattr(linked, "_beat", lambda: beats.append(beat()))

    async def ask():
        answer = asyncio.ensure_future(asyncio.to_thread(frontend.index))
        await world.until(lambda: len(beats) > 3 * connection._MOST_SILENT_BEATS)
        go.set()
        return await answer

    assert world.run(ask()) == ["row"]


class Unread:
    """Responses of a decoupled model to a front end, `front`, that reads nothing."""

    def __init__(self, world):
        self.world = world
        ours, self.theirs = socket.socketpair()

        async def connect():
            return world.service.connect(Link(ours))

        self.front = world.run(connect())
        self.request, self.reply = make_request(model="held")
        self.front._requests[1] = self.request
        self.sent = 0

    def send(self, size):
        """One more response, from a thread of the model."""
        output = Tensor("OUTPUT0", INT32, (size,), array=np.zeros(size, np.int32))
        self.front.respond(1, Response("held", 1, "", [output], final=False))
        self.sent += 1


def test_responses_that_a_stopped_front_end_does_not_read_are_limited(world, monkeypatch):
    monkeypatch.setattr(engine_frontend, "_MOST_BACKLOG_BYTES", 1 << 20)
    monkeypatch.setattr(engine_frontend, "_SILENT_SECS", 0.01)
    unread = Unread(world)

    def send_until_cancelled():
        while not unread.request.cancelled:
            unread.send(4000)

    async def send():
        await asyncio.to_thread(send_until_cancelled)
        await world.until(lambda: unread.front.closed)

    with unread.theirs:
        world.run(send())
    assert unread.front._link.backlog_bytes < 8 << 20


def test_large_responses_that_nobody_reads_are_limited(world):
    world.service.max_unread_bytes = 10 << 20
    unread = Unread(world)

    async def close():
        unread.front.close()

    with unread.theirs, contextlib.closing(Link(unread.theirs)) as link:
        while not unread.request.cancelled:
            unread.send(1 << 18)
        unread.send(1 << 18)  # is dropped
        assert unread.front._link.lent_bytes <= 11 << 20
        unread.front._link.flush()
        received = []
        while len(received) < unread.sent:
            received += [body[1] for kind, body in link.receive() if kind == "response"]
        *kept, refused, late = received
        assert [messages.unpack_response(link, one).error for one in kept] == [None] * 11
        error = messages.unpack_response(link, refused)
        assert error.final
        assert "raise the limit with --max-buffered-bytes" in error.error.message
        assert messages.unpack_response(link, late).error is not None
    world.run(close())


def test_a_model_that_has_refused_a_request_is_asked_for_room(world, monkeypatch):
    """Before another one is decoded that takes long."""
    frontend, _ = world.frontends
    model = find(world, frontend)
    frontend.check_room("held")
    full = QueueRejected("no room")
    asked = []

    def check_room(*model):
        asked.append(model)
        if len(asked) == 1:
            raise full

    monkeypatch.setattr(world.engine, "check_room", check_room)
    monkeypatch.setattr(world.repository, "infer", Mock(side_effect=full))
    request, reply = make_request(model="held")
    request.served_by = model

    async def refused():
        frontend._linked().infer(request, {})
        await world.until(lambda: reply.answered)
        with pytest.raises(QueueRejected, match="no room"):
            await once_loaded(lambda: frontend.check_room("held"))
        await once_loaded(lambda: frontend.check_room("held"))
        frontend.check_room("held")

    world.run(refused())
    assert asked == [("held", -1)] * 2

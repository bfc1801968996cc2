"""Inferences that match a template are submitted as a group, with the outcome of the slow path."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hyperframe.frame import PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.backends.base import Executor
from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.validate import validate
from shoal.engine.local import LocalEngine
from shoal.errors import NotFound
from shoal.frontends.grpc.fast_path import GrpcFastPath, GrpcFastPathCall
from shoal.frontends.grpc.service import INFERENCE, GrpcOptions, GrpcService
from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.frontends.grpc.status import StatusCode
from shoal.instance.execution import Execution
from shoal.models.served import ServedModel
from shoal.scheduler.batcher import Batcher
from shoal.scheduler.policy import BatchPolicy
from shoal.scheduler.queue import QueuePolicy, RequestQueue
from shoal.statistics.model import FailureReason, ModelStatistics
from shoal.statistics.tracer import Tracer
from shoal.wire.http2_frames import PREFACE
from shoal.wire.proto import messages
from tests.support.grpc_calls import DirectInbox

PATH = INFERENCE + "ModelInfer"
POISON = 99
WIDTH = 4
LARGE = 6_000  # numbers in each of two inputs: more than a message may have to be passed as bytes


def tensor(name):
    return TensorSpec(name, dtypes.INT32, (-1,))


SIGNATURE = Signature(
    "m",
    8,
    {name: tensor(name) for name in ("A", "B")},
    {name: tensor(name) for name in ("SUM", "DIFFERENCE")},
)


class AddSub(Executor):
    """Adds and subtracts; raises when it is given poison."""

    def __init__(self):
        self.batches = []

    def run(self, inputs, outputs):
        a, b = inputs["A"], inputs["B"]
        self.batches.append((a.tolist(), b.tolist(), list(outputs)))
        if (a == POISON).any():
            raise ValueError("poison")
        results = {"SUM": a + b, "DIFFERENCE": a - b}
        return [results[name] for name in outputs]


class Model:
    """A loaded version that runs when a test says so."""

    decoupled = False

    def __init__(self, policy=None):
        self.statistics = ModelStatistics("m", 1)
        self.executor = AddSub()
        self.together = 0
        self._execution = Execution(SIGNATURE, 1, self.statistics)
        self.batcher = Batcher(
            BatchPolicy(8), RequestQueue(policy or QueuePolicy()), on_dropped=self._dropped
        )
        self.batcher.hand_to_loop(lambda: None)

    def _dropped(self, request, error):
        self.statistics.failed(request, FailureReason.of(error), 0)
        request.fail(error, 1)

    def accept_checked(self, request):
        request.served_by = self
        self.batcher.enqueue(request)

    def accept_group(self, requests):
        taken = self.batcher.enqueue_group(requests)
        self.together += len(requests) if taken else 0
        return taken

    def accept_rest(self, requests):
        return ServedModel.accept_rest(self, requests)

    def refusal(self, requests=()):
        return self.batcher.refusal(requests[0].rows, len(requests))

    def run(self):
        while batch := self.batcher.take_now()[0]:
            self._execution.run(self.executor, batch)

    def counted(self):
        reading = self.statistics.read()
        sizes = {rows: batch.count for rows, batch in reading.batches.items()}
        return reading.success_count, reading.inference_count, reading.failures, sizes


class Engine:
    """As much of an engine as inference needs."""

    def __init__(self, model=None):
        self.model = model or Model()
        self.tracer = Tracer()

    def infer(self, request):
        if request.model_name != "m":
            raise NotFound(f"unknown model '{request.model_name}'")
        validate(request, SIGNATURE)
        self.model.accept_checked(request)

    def serving(self, name, version=-1):
        return self.model

    def infer_group(self, requests, model):
        return LocalEngine.infer_group(SimpleNamespace(_repository=self), requests, model)

    def is_decoupled(self, name, version=-1):
        if name != "m":
            raise NotFound(f"unknown model '{name}'")
        return False

    def signature(self, name, version=-1):
        return SIGNATURE

    def ready(self):
        return True


def make_message(
    number=1, *, id="", rows=1, outputs=(), parameter=None, name="m", cut=0, width=WIDTH
):
    request = messages.ModelInferRequest(model_name=name, id=id)
    a = np.full((rows, width), number, np.int32)
    b = np.arange(rows * width, dtype=np.int32)
    for key, raw in (("A", a.tobytes()), ("B", b.tobytes()[: rows * width * 4 - cut])):
        request.inputs.add(name=key, datatype="INT32", shape=[rows, width])
        request.raw_input_contents.append(raw)
    for output in outputs:
        request.outputs.add(name=output)
    if parameter is not None:
        request.parameters["p"].int64_param = parameter
    return request.SerializeToString()


class Client:
    """A peer of the service in front of one engine."""

    def __init__(self, tools, *, fast=True, plans=True, limits=None, engine=None):
        self.engine = engine or Engine()
        self.inbox = DirectInbox()
        service = GrpcService(self.engine, self.inbox, GrpcOptions(plans=plans))
        self.peer = tools.Peer(GrpcSettings(limits or GrpcLimits()), service, fast=fast)
        self.peer.greet()
        self._tools = tools
        self.next_id = 1

    def ask(self, message, *more, window=False, **headers):
        """One whole call; returns its stream's id."""
        stream_id = self.next_id
        self.next_id += 2
        frames = [self.peer.headers(stream_id, path=PATH, **headers)]
        if window:
            frames.append(WindowUpdateFrame(stream_id, window_increment=5))
        frames.append(self._tools.data(stream_id, self._tools.prefixed(message), end=True))
        self.peer.send(*frames, *more)
        return stream_id

    def run(self):
        self.engine.model.run()
        self.peer.collect()

    def answer(self, stream_id):
        answer = self.peer.answers.get(stream_id)
        return answer and (answer.blocks, answer.data, answer.ended, answer.reset)

    def sums(self, stream_id):
        ((_, data),) = self.peer.answers[stream_id].messages
        response = messages.ModelInferResponse.FromString(data)
        assert [output.name for output in response.outputs] == ["SUM", "DIFFERENCE"]
        return response.id, np.frombuffer(response.raw_output_contents[0], np.int32).tolist()


@pytest.fixture
def client(tools):
    return Client(tools)


@pytest.fixture
def on_fast_path(monkeypatch):
    """The ids of the streams whose calls took the fast path."""
    taken = []
    take = GrpcFastPath.take

    def watched(self, connection, pattern, stream_id, window, message):
        accepted = take(self, connection, pattern, stream_id, window, message)
        if accepted:
            taken.append(stream_id)
        return accepted

    monkeypatch.setattr(GrpcFastPath, "take", watched)
    return taken


def warm(client, **message):
    """So many calls that the next one like them matches; none of them is left open."""
    for _ in range(3):
        client.ask(make_message(0, **message))
    client.run()
    client.engine.model.together = 0
    return client


# ---- the way in


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("id", ["", "7"])
def test_repeated_inferences_take_it(client, on_fast_path, id, window):
    numbers = range(1, 9)
    streams = [client.ask(make_message(n, id=id), window=window) for n in numbers]
    client.run()
    assert on_fast_path == streams[3:]
    expected = [np.add(np.arange(WIDTH), n).tolist() for n in numbers]
    assert [client.sums(stream) for stream in streams] == [(id, sums) for sums in expected]
    assert client.engine.model.counted()[:2] == (8, 8)
    assert not client.peer.connection.streams


def test_what_one_read_brings_is_queued_as_a_group(tools, client):
    warm(client)
    model = client.engine.model
    parts = []
    for number in range(6):
        stream_id = client.next_id + 2 * number
        message = tools.prefixed(make_message(number))
        parts += [
            client.peer.headers(stream_id, path=PATH),
            tools.data(stream_id, message, end=True),
            WindowUpdateFrame(0, window_increment=30),  # as the C++ library does
        ]
    client.peer.send(*parts)
    assert (model.together, model.batcher.pending()) == (6, 6)
    client.run()
    assert model.executor.batches[-1][0] == [[n] * WIDTH for n in range(6)]


def test_what_one_loop_iteration_brings_is_queued_as_a_group(client):
    warm(client)
    model, later = client.engine.model, []
    client.inbox.after_reading = later.append
    first = client.ask(make_message(1))
    second = client.ask(make_message(2))
    third = client.ask(make_message(3))
    assert (model.together, len(later)) == (0, 1)
    client.peer.send(RstStreamFrame(second))  # it is not wanted any more
    later.pop()()
    assert (model.together, model.batcher.pending()) == (3, 2)
    assert model.counted()[2][FailureReason.CANCELED] == 1
    client.run()
    assert client.sums(first)[1] == np.add(np.arange(WIDTH), 1).tolist()
    assert client.sums(third)[1] == np.add(np.arange(WIDTH), 3).tolist()
    client.ask(make_message(4))
    assert len(later) == 1
    client.ask(make_message(5, rows=2))  # takes the slow path, behind it
    assert (model.together, model.batcher.pending()) == (4, 2)
    later.pop()()
    assert model.batcher.pending() == 2


def test_a_true_content_length_changes_nothing(tools, client, on_fast_path):
    message = make_message(1)
    length = str(len(tools.prefixed(message)))
    streams = [client.ask(message, content_length=length) for _ in range(6)]
    client.run()
    assert on_fast_path == streams[3:]
    assert {client.answer(stream)[1] for stream in streams} == {client.answer(streams[0])[1]}


def test_a_false_content_length_is_refused_as_always(tools, client, on_fast_path):
    message = make_message(1)
    wrong = str(len(tools.prefixed(message)) + 1)
    for _ in range(4):
        stream = client.ask(message, content_length=wrong)
        assert client.peer.answers[stream].reset
    assert not on_fast_path


def test_ids_of_other_lengths_change_the_pattern_only(client, on_fast_path):
    warm(client, id="1")
    warm(client, id="10")
    on_fast_path.clear()
    ids = ["2", "3", "4", "11", "12", "13", "5"]
    streams = [client.ask(make_message(1, id=request_id)) for request_id in ids]
    client.run()
    assert [client.sums(stream)[0] for stream in streams] == ids
    assert set(on_fast_path) >= {streams[1], streams[2], streams[4], streams[5]}
    assert client.engine.model.executor.batches[-1][0] == [[1] * WIDTH] * 7


def test_ids_of_a_few_lengths_take_turns(client, on_fast_path):
    lengths = ("1", "10", "100")
    for request_id in lengths:
        warm(client, id=request_id)
    on_fast_path.clear()
    streams = [client.ask(make_message(1, id=request_id)) for request_id in lengths * 3]
    client.run()
    assert on_fast_path == streams
    assert [client.sums(stream)[0] for stream in streams] == [*lengths * 3]
    warm(client, id="1000")
    warm(client, id="10000")  # only so many are remembered
    assert len(client.peer.connection._patterns) == 4


def test_a_call_behind_another_frame_matches(tools, client, on_fast_path):
    warm(client)
    on_fast_path.clear()
    first = client.ask(make_message(1), PingFrame(0, opaque_data=b"12345678"))
    second = client.next_id
    client.next_id += 2
    message = tools.prefixed(make_message(2))
    client.peer.send(
        PingFrame(0, opaque_data=b"12345678"),
        client.peer.headers(second, path=PATH),
        tools.data(second, message, end=True),
    )
    assert on_fast_path == [first, second]


def test_anything_that_differs_takes_the_slow_path(client, on_fast_path):
    warm(client)
    client.ask(make_message(1, parameter=5))
    client.ask(make_message(1, outputs=("SUM",)))
    client.ask(make_message(1, rows=2))
    client.ask(make_message(1, cut=4))
    client.ask(make_message(1, name="n"))
    assert not on_fast_path
    assert client.ask(make_message(1)) in on_fast_path


def test_an_id_that_is_no_text_is_refused_as_always(client, on_fast_path):
    warm(client, id="ab")
    client.ask(make_message(1, id="cd"))
    on_fast_path.clear()
    stream = client.ask(make_message(1, id="cd").replace(b"cd", b"\xff\xfe"))
    assert not on_fast_path
    assert client.peer.answers[stream].status == StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in client.peer.answers[stream].text


@pytest.mark.parametrize("change", ["plans", "timeout", "tracing"])
def test_when_it_is_closed(tools, on_fast_path, change):
    client = Client(tools, plans=change != "plans")
    warm(client)
    if change == "tracing":
        client.engine.tracer.active = True
    on_fast_path.clear()
    if change == "timeout":
        for _ in range(4):
            stream = client.next_id
            client.next_id += 2
            client.peer.call(stream, make_message(1), path=PATH, grpc_timeout="5S")
    else:
        for _ in range(2):
            stream = client.ask(make_message(1))
    client.run()
    assert not on_fast_path
    assert client.peer.answers[stream].status == StatusCode.OK


@pytest.mark.parametrize("deadline", [False, True])
def test_calls_in_pieces_and_with_a_deadline_match_too(tools, client, on_fast_path, deadline):
    warm(client)
    model = client.engine.model
    on_fast_path.clear()
    streams = []
    for number in (1, 2):
        stream_id = client.next_id
        client.next_id += 2
        timeout = {"grpc_timeout": "5S"} if deadline else {}
        client.peer.send(client.peer.headers(stream_id, path=PATH, **timeout))
        message = tools.prefixed(make_message(number))
        client.peer.send(tools.data(stream_id, message, end=True))
        streams.append(stream_id)
    assert model.together == 2
    assert not on_fast_path
    client.run()
    assert [client.sums(stream)[1][0] for stream in streams] == [1, 2]
    assert model.executor.batches[-1][0] == [[1] * WIDTH, [2] * WIDTH]


def test_a_call_in_pieces_can_be_cancelled(tools, client):
    warm(client)
    stream_id = client.next_id
    client.peer.send(client.peer.headers(stream_id, path=PATH))
    client.peer.send(tools.data(stream_id, tools.prefixed(make_message(1)), end=True))
    client.peer.send(RstStreamFrame(stream_id, error_code=8))
    client.run()
    assert client.answer(stream_id) is None
    assert client.engine.model.counted()[2][FailureReason.CANCELED] == 1


def test_a_model_that_was_replaced_is_asked_anew(client, on_fast_path):
    warm(client)
    old, client.engine.model = client.engine.model, Model()
    streams = [client.ask(make_message(n)) for n in range(4)]
    client.run()
    assert old.counted()[0] == 3
    assert client.engine.model.counted()[0] == 4
    assert [client.peer.answers[stream].status for stream in streams] == [0] * 4


def test_templates_keep_no_model(client):
    warm(client)
    client.ask(make_message(1))
    client.run()
    gone = weakref.ref(client.engine.model)
    client.engine.model = Model()
    gc.collect()
    assert gone() is None


def test_a_closed_batcher_refuses_as_on_the_slow_path(client, on_fast_path):
    warm(client)
    client.engine.model.batcher.close()
    stream = client.ask(make_message(1))
    assert stream in on_fast_path
    assert client.peer.answers[stream].status == StatusCode.UNAVAILABLE
    client.ask(make_message(1))
    assert on_fast_path[-1] == stream  # that template has expired


def test_typed_contents_take_the_slow_path(client, on_fast_path):
    request = messages.ModelInferRequest(model_name="m")
    for name in ("A", "B"):
        entry = request.inputs.add(name=name, datatype="INT32", shape=[1, WIDTH])
        entry.contents.int_contents.extend(range(WIDTH))
    streams = [client.ask(request.SerializeToString()) for _ in range(4)]
    client.run()
    assert not on_fast_path
    assert client.sums(streams[3]) == ("", [0, 2, 4, 6])


@pytest.mark.parametrize(
    "policy", [QueuePolicy(max_size=2), QueuePolicy(default_timeout_ns=10**15)]
)
def test_queues_that_may_refuse(tools, policy):
    client = Client(tools, engine=Engine(Model(policy)))
    for _ in range(2):
        warm_ids = [client.ask(make_message(0)) for _ in range(2)]
        client.run()
    streams = [client.ask(make_message(n)) for n in range(3)]
    client.run()
    statuses = [client.peer.answers[stream].status for stream in streams]
    refused = StatusCode.UNAVAILABLE if policy.max_size else StatusCode.OK
    assert statuses == [0, 0, refused]
    assert [client.peer.answers[stream].status for stream in warm_ids] == [0, 0]


def test_a_refusal_is_the_same_on_both_paths(tools):
    def refused(**options):
        client = Client(tools, engine=Engine(Model(QueuePolicy(max_size=1))), **options)
        for _ in range(3):
            client.ask(make_message(0, id="a"))
            client.run()
        streams = [client.ask(make_message(n, id=f"{n} %")) for n in range(4)]
        client.run()
        answers = [client.peer.answers[stream] for stream in streams]
        assert [answer.status for answer in answers] == [0] + [StatusCode.UNAVAILABLE] * 3
        return [answer.blocks for answer in answers[1:]]

    found = refused()
    assert found == refused(fast=False, plans=False)
    ((block,), *_) = found
    assert block["grpc-message"] == "[request id: 1 %25] Exceeds maximum queue size"
    assert (block["retry-after"], block["grpc-retry-pushback-ms"]) == ("1", "1000")


# ---- the way out


def test_one_bad_request_fails_alone(client, on_fast_path):
    warm(client)
    streams = [client.ask(make_message(n)) for n in (1, POISON, 2)]
    client.run()
    assert on_fast_path == streams
    answers = [client.peer.answers[stream] for stream in streams]
    assert [answer.status for answer in answers] == [0, StatusCode.INTERNAL, 0]
    assert "poison" in answers[1].text
    assert client.sums(streams[2]) == ("", [2, 3, 4, 5])


def test_a_call_that_was_taken_back_is_not_run(client):
    warm(client)
    kept, left = client.ask(make_message(1)), client.ask(make_message(2))
    client.peer.send(RstStreamFrame(left, error_code=8))
    client.run()
    assert client.engine.model.executor.batches[-1][0] == [[1] * WIDTH]
    assert client.answer(left) is None
    assert client.peer.answers[kept].status == 0
    assert client.engine.model.counted()[2][FailureReason.CANCELED] == 1


def test_a_client_that_left_while_its_request_ran(client):
    warm(client)
    client.ask(make_message(1))
    (batch, _) = client.engine.model.batcher.take_now()
    client.peer.connection.close()
    assert batch[0].cancelled
    client.engine.model._execution.run(client.engine.model.executor, batch)
    assert client.engine.model.counted()[0] == 4


def test_an_answer_waits_for_its_window(client):
    warm(client)
    client.peer.connection.sender.window = 3
    stream = client.ask(make_message(1))
    client.run()
    assert client.peer.answers[stream].status is None
    client.peer.send(WindowUpdateFrame(0, window_increment=1000))
    assert client.sums(stream) == ("", [1, 2, 3, 4])
    assert not client.peer.connection.streams


def test_an_answer_that_is_too_large(tools):
    client = Client(tools, limits=GrpcLimits(max_send_message_bytes=50))
    client = warm(client)
    stream = client.ask(make_message(1))
    client.run()
    assert client.peer.answers[stream].status == StatusCode.RESOURCE_EXHAUSTED
    assert client.answer(stream) == client.answer(1)


def test_a_mistake_of_ours_is_an_answer_too(client, monkeypatch):
    warm(client)
    streams = [client.ask(make_message(n)) for n in (1, 2)]
    ends = GrpcFastPathCall.finish_with

    def fails_once(call, answer, total):
        if call.id == streams[1]:
            raise RuntimeError("nobody foresaw this")
        return ends(call, answer, total)

    monkeypatch.setattr(GrpcFastPathCall, "finish_with", fails_once)
    client.run()
    assert client.sums(streams[0]) == ("", [1, 2, 3, 4])
    assert client.peer.answers[streams[1]].status == StatusCode.INTERNAL
    assert "nobody foresaw this" in client.peer.answers[streams[1]].text
    assert not client.peer.connection.streams


def test_calls_on_it_leave_nothing_behind(client):
    warm(client)
    client.ask(make_message(1))
    call = client.peer.connection.streams[client.next_id - 2]
    assert isinstance(call, GrpcFastPathCall)
    client.run()
    assert (call.request, call.receiver) == (None, None)  # no cycles
    assert not client.peer.connection.streams


# ---- large messages


def lent_to(client):
    """Where in memory the messages are that are in use."""
    loans = client.peer.dispatcher.memory.pool._lent.values()
    return [
        range(loan.memory.ctypes.data, loan.memory.ctypes.data + len(loan.memory)) for loan in loans
    ]


def test_large_messages_match_and_are_answered_as_a_group(client):
    client.peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
    client.ask(make_message(0, id="0", width=LARGE))
    client.run()
    model = client.engine.model
    streams = [client.ask(make_message(number, id=str(number), width=LARGE)) for number in (1, 2)]
    assert model.together == 2
    client.run()
    assert len(model.executor.batches) == 2
    for number, stream in enumerate(streams, 1):
        request_id, sums = client.sums(stream)
        assert (request_id, sums[:2], len(sums)) == (str(number), [number, number + 1], LARGE)


def test_a_message_that_would_not_be_joined_is_submitted_at_once(client):
    client.peer.send(WindowUpdateFrame(0, window_increment=1 << 20))
    for width in (LARGE, 4 * LARGE):
        client.ask(make_message(0, width=width))
    client.run()
    model, later = client.engine.model, []
    client.inbox.after_reading = later.append
    client.ask(make_message(1, width=LARGE))
    assert model.batcher.pending() == 0  # with others of this iteration
    later.pop()()
    client.run()
    client.ask(make_message(2, width=4 * LARGE))
    assert model.batcher.pending() == 1


def test_the_input_of_a_large_message_is_where_it_was_received(client, monkeypatch):
    client.ask(make_message(0, width=LARGE))
    client.run()
    seen = []

    def run(inputs, outputs):
        seen.append((lent_to(client), inputs["A"].ctypes.data, inputs["B"].ctypes.data))
        return [inputs["A"] for _ in outputs]

    monkeypatch.setattr(client.engine.model.executor, "run", run)
    client.ask(make_message(1, width=LARGE))
    client.run()
    (((message,), a, b),) = seen
    assert a in message
    assert b in message


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("ends_with", ["response", "reset", "reset while it runs"])
def test_a_large_message_is_freed_at_once_and_once(tools, ends_with, fast):
    client = Client(tools, plans=fast)
    client.ask(make_message(0, width=LARGE))
    client.run()
    pool = client.peer.dispatcher.memory.pool
    kept_bytes = pool.kept_bytes
    gc.disable()
    try:
        for number in range(3):
            stream = client.ask(make_message(number, width=LARGE))
            assert pool.lent == 1
            if ends_with == "reset":
                client.peer.send(RstStreamFrame(stream, error_code=8))
            elif ends_with == "reset while it runs":
                batch, _ = client.engine.model.batcher.take_now()
                client.peer.send(RstStreamFrame(stream, error_code=8))
                client.engine.model._execution.run(client.engine.model.executor, batch)
                del batch
            client.run()
            assert (pool.lent, pool.kept_bytes) == (0, kept_bytes)
    finally:
        gc.enable()


# ---- all of it

asked = st.fixed_dictionaries(
    {
        "number": st.sampled_from([1, 2, 3, POISON]),
        "id": st.sampled_from(["", "", "1", "2", "33", "é"]),
        "rows": st.sampled_from([1, 1, 1, 2]),
        "outputs": st.sampled_from([(), (), ("DIFFERENCE",), ("NONE",)]),
        "parameter": st.sampled_from([None, None, None, 4]),
        "name": st.sampled_from(["m", "m", "m", "m", "other"]),
        "cut": st.sampled_from([0, 0, 0, 0, 4]),
        "width": st.sampled_from([WIDTH, WIDTH, LARGE]),
    }
)
steps = st.lists(
    st.tuples(
        st.one_of(st.just({}), st.just({}), st.just({"id": "5"}), st.just({"width": LARGE}), asked),
        st.booleans(),  # WINDOW_UPDATE in the call
        st.sampled_from(["", "", "", "window", "ping", "reset", "reset before", "run"]),
        st.sampled_from([1 << 20, 1 << 20, 16_384, 900]),  # bytes of data in a frame
        st.sampled_from([0, 0, 0, 9]),  # of padding
    ),
    max_size=24,
)


def conversation(tools, made):
    """Bytes for a connection, and after which of them the model runs."""
    peer = tools.Peer()  # for its encoder
    wide = [SettingsFrame(0, settings={4: 1 << 20}), WindowUpdateFrame(0, window_increment=1 << 28)]
    pieces, data = [], [PREFACE, *[frame.serialize() for frame in wide]]
    for index, (message, window, after, frame_bytes, padding) in enumerate(made):
        stream_id = 2 * index + 1
        data.append(peer.headers(stream_id, path=PATH).serialize())
        if window:
            data.append(WindowUpdateFrame(stream_id, window_increment=7).serialize())
        body = tools.prefixed(make_message(**message))
        for start in range(0, len(body), frame_bytes):
            frame = tools.data(stream_id, body[start : start + frame_bytes])
            if start + frame_bytes >= len(body):
                frame.flags.add("END_STREAM")
            if padding:
                frame.flags.add("PADDED")
                frame.pad_length = padding
            data.append(frame.serialize())
        if after == "window":
            data.append(WindowUpdateFrame(0, window_increment=100).serialize())
        elif after == "ping":
            data.append(PingFrame(0, opaque_data=b"12345678").serialize())
        elif after == "reset":
            data.append(RstStreamFrame(stream_id, error_code=8).serialize())
        elif after == "reset before" and index:
            data.append(RstStreamFrame(stream_id - 2, error_code=8).serialize())
        elif after == "run":
            pieces.append(b"".join(data))
            data = []
    return [*pieces, b"".join(data)]


def outcome(tools, pieces, size, **how):
    engine = Engine()
    options = GrpcOptions(plans=how.pop("plans"))
    peer = tools.Peer(GrpcSettings(), GrpcService(engine, DirectInbox(), options), **how)
    for piece in pieces:
        for start in range(0, len(piece), size):
            peer.feed(piece[start : start + size])
            peer.collect()
        engine.model.run()
        peer.collect()
    answers = {
        stream_id: (answer.blocks, answer.data, answer.ended, answer.reset)
        for stream_id, answer in sorted(peer.answers.items())
    }
    connection = peer.connection
    state = (connection.closed, connection.last_id, sorted(connection.streams))
    sender = connection.sender
    assert peer.dispatcher.memory.unfinished_bytes == 0
    return answers, state, sender.window, engine.model.executor.batches, engine.model.counted()


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=steps, size=st.sampled_from([7, 100, 1000, 20_000, 1 << 20]))
def test_the_fast_path_leads_where_the_slow_path_does(tools, made, size):
    if any("width" in message for message, *_ in made):
        size = max(size, 1000)
    pieces = conversation(tools, made)
    slow = outcome(tools, pieces, 1 << 20, plans=False, fast=False)
    assert outcome(tools, pieces, size, plans=True) == slow

"""A recording: which requests it takes, what it keeps, and that it ends."""

import pytest

from shoal.errors import InvalidArgument
from shoal.statistics.trace import FinishedTrace, RequestRecord
from shoal.statistics.trace_recording import MOST_RECORDED, TraceRecording
from shoal.statistics.tracer import Tracer


def finished(model="m", number=1):
    steps = (("COMPUTE_START", 5_000), ("COMPUTE_END", 9_000))
    record = RequestRecord(
        number, 0, model, 2, "", (("REQUEST_START", 2_000),), steps, (), "", "it failed"
    )
    events = (("HTTP_RECV_START", 1_000), ("HTTP_SEND_END", 11_000))
    return FinishedTrace(number, events, (record,), 1_000_000_000, None, "", "")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_as_many_requests_of_one_model_as_asked():
    recording = TraceRecording()
    assert not recording.active()
    recording.start("m", 2)
    assert recording.active()
    assert not recording.sample("other")
    assert [recording.sample("m") for _ in range(3)] == [True, True, False]
    assert not recording.active()


def test_it_ends_after_a_minute_without_requests():
    clock = Clock()
    recording = TraceRecording(clock)
    recording.start("m", 5)
    clock.now = 59.9
    assert recording.document("m")["remaining"] == 5
    clock.now = 60.0
    assert not recording.sample("m")
    assert not recording.active()
    assert recording.document("m")["remaining"] == 0


def test_times_since_the_first_moment():
    recording = TraceRecording()
    recording.start("m", 1)
    recording.take(finished())
    (trace,) = recording.document("m")["traces"]
    assert trace["duration_us"] == 10
    assert trace["times_us"] == {"HTTP_RECV_START": 0, "HTTP_SEND_END": 10}
    assert trace["start_ms"] == 1000
    (request,) = trace["requests"]
    assert request["times_us"] == {"REQUEST_START": 1, "COMPUTE_START": 4, "COMPUTE_END": 8}
    assert (request["model_version"], request["error"]) == ("2", "it failed")


def test_the_newest_first_and_not_without_end():
    recording = TraceRecording()
    for number in range(MOST_RECORDED + 5):
        recording.take(finished(number=number))
    kept = [trace["id"] for trace in recording.document("m")["traces"]]
    assert kept == list(range(MOST_RECORDED + 4, 4, -1))
    recording.take(finished("other"))
    recording.start("m", 1)
    assert recording.document("m")["traces"] == []
    assert len(recording.document("other")["traces"]) == 1


@pytest.mark.parametrize("count", [-1, MOST_RECORDED + 1])
def test_a_number_out_of_range_changes_nothing(count):
    recording = TraceRecording()
    recording.start("m", 3)
    with pytest.raises(InvalidArgument, match="0 to 100"):
        recording.start("n", count)
    assert recording.document("m")["remaining"] == 3


def test_a_tracer_is_active_only_while_it_records():
    changes = []
    tracer = Tracer()
    tracer.on_change(lambda: changes.append(tracer.active))
    tracer.record("m", 1)
    assert tracer.start("other", lambda _: None) is None
    trace = tracer.start("m", lambda _: None)
    trace.event("HTTP_RECV_START")
    trace.finish()
    assert tracer.start("m", lambda _: None) is None
    tracer.record("m", 5)
    tracer.record("m", 0)
    assert changes == [True, False, True, False]

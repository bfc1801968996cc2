"""The engine decides which requests of its front ends are sampled, and keeps their traces."""

from __future__ import annotations

import contextlib
import json

import numpy as np

from shoal.core.dtypes import INT32
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument, Unavailable
from tests.support.fakes import make_request
from tests.support.traces import by_id

INFERENCE = ["REQUEST_START", "QUEUE_START", *("COMPUTE_START", "COMPUTE_INPUT_END")]
INFERENCE += ["COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END"]
ALL = ["RECEIVED", *INFERENCE, "INFER_RESPONSE_COMPLETE", "SENT"]


def request_for(frontend, kind=np.int32):
    array = np.ones((1, 16), kind)
    tensor = Tensor("INPUT0", INT32, array.shape, array=array)
    request, reply = make_request(tensor, model="held")
    request.start_ns = 2
    trace = frontend.tracer.start("held", lambda _: None)
    trace.event("RECEIVED", 1)
    return request, reply, trace


def turn_on(world, **settings):
    changes = {"trace_level": ["TIMESTAMPS"], **settings}
    world.blocking(world.frontends[0].update_trace_settings, "", changes)


async def serve(world, frontend):
    request, reply, trace = request_for(frontend)
    trace.attach(request)
    frontend.infer(request)
    await world.until(lambda: reply.answered and not world.engine.in_flight())
    trace.event("SENT")
    trace.finish()


def traces(world):
    """What has been written, in files with numbers if their count was limited."""
    for frontend in world.frontends:
        with contextlib.suppress(Unavailable):  # it has ended
            world.blocking(frontend.trace_settings, "")  # the engine has read what it had sent
    world.engine.tracer.close()
    files = world.trace_file.parent.glob(f"{world.trace_file.name}*")
    return [trace for file in files for trace in by_id(file)]


def test_every_front_end_knows_at_once_whether_requests_may_be_sampled(world):
    for settings, active in (({}, True), ({"trace_level": ["OFF"]}, False)):
        turn_on(world, **settings)
        assert [frontend.tracer.active for frontend in world.frontends] == [active] * 2


def test_a_trace_has_the_events_of_both_processes(world):
    turn_on(world)
    world.run(serve(world, world.frontends[1]))
    (trace,) = traces(world)
    assert trace["events"] == ALL
    assert (trace["model_name"], trace["model_version"]) == ("held", 1)


def test_the_count_is_one_for_all_front_ends(world):
    turn_on(world, trace_count=["3"])
    for frontend in (*world.frontends, *world.frontends):
        if frontend.tracer.active:
            world.run(serve(world, frontend))
    assert not any(frontend.tracer.active for frontend in world.frontends)
    assert len(traces(world)) == 3


def test_requests_of_a_call_are_below_it(world):
    turn_on(world)

    async def call():
        request, reply, trace = request_for(world.frontends[0])
        span = trace.start_call("held", 1)
        span.attach(request)
        world.frontends[0].infer(request)
        await world.until(lambda: reply.answered and not world.engine.in_flight())
        span.end()
        trace.finish()

    world.run(call())
    outer, inner = traces(world)
    assert outer["events"] == [
        *("RECEIVED", "REQUEST_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE")
    ]
    assert inner["parent_id"] == outer["id"]
    assert inner["events"] == INFERENCE


def test_a_request_that_is_refused_did_not_run(world):
    turn_on(world)

    async def refused():
        frontend = world.frontends[0]
        request, reply, trace = request_for(frontend)
        request.inputs["other"] = Tensor("other", INT32, (1, 1), array=np.ones((1, 1), np.int32))
        trace.attach(request)
        frontend.infer(request)
        await world.until(lambda: reply.answered and not world.engine.in_flight())
        assert type(reply.wait().error) is InvalidArgument
        trace.finish()

    world.run(refused())
    (trace,) = traces(world)
    assert trace["events"] == ["RECEIVED", "REQUEST_START"]


def test_the_trace_of_a_client_that_left_is_complete_with_its_request(world):
    turn_on(world)
    world.backend.gate.clear()

    async def leave():
        frontend = world.frontends[0]
        request, reply, trace = request_for(frontend)
        trace.attach(request)
        frontend.infer(request)
        await world.until(lambda: world.backend.started.acquire(blocking=False))
        trace.leave()
        world.backend.gate.set()
        await world.until(lambda: reply.answered and not world.engine.in_flight())

    world.run(leave())
    (trace,) = traces(world)
    assert trace["events"] == ALL[:-1]


def test_a_front_end_that_ends_leaves_its_traces(world):
    turn_on(world)

    async def end():
        request, _, trace = request_for(world.frontends[1])
        trace.attach(request)
        world.backend.gate.clear()
        world.frontends[1].infer(request)
        await world.until(lambda: world.backend.started.acquire(blocking=False))
        world.frontends[1].close()
        assert not world.frontends[1].tracer.active
        assert world.frontends[1].tracer.start("held", lambda _: None) is None
        await world.until(lambda: len(world.service.frontends()) == 1)
        world.backend.gate.set()
        await world.until(lambda: world.engine.in_flight() == 0)

    world.run(end())
    (trace,) = traces(world)
    assert "REQUEST_END" in trace["events"]


def test_the_settings_of_the_log_reach_every_process(world):
    world.blocking(world.frontends[0].update_log_settings, {"log_verbose_level": 3})
    assert world.engine.log_settings()["log_verbose_level"] == 3
    for frontend in world.frontends:
        assert frontend._log.settings.log_verbose_level == 3
        assert json.dumps(world.blocking(frontend.log_settings))

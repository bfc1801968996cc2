"""More requests than a model can answer: each gets one answer, 200 or a refusal that says when to
try again, and the statistics add up."""

from __future__ import annotations

import asyncio
import collections

import grpc
import numpy as np
import pytest

from shoal.client import Client
from shoal.client import Unavailable as ClientUnavailable
from shoal.config.options.option import NamedSetting
from shoal.testing.server import running_server, wait_until
from shoal.wire.http_body import InferBodyDecoder
from shoal.wire.proto import messages
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS
from tests.support.held_model import ONE, ask, check, failures, hold, queue
from tests.support.repositories import add_fake, add_model, parameter

CONNECTIONS = 40
ROUNDS = 6  # requests on each of them
SLOW = """
backend: "identity"
max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
""" + parameter("execute_delay_ms", "3")
LIMITS = {
    "queue": "dynamic_batching { default_queue_policy { max_queue_size: 3 } }",
    "default scheduler": parameter("max_queue_size", "3"),
    "target": "dynamic_batching { }" + parameter("target_latency_ms", "12"),
    "both": "dynamic_batching { default_queue_policy { max_queue_size: 3 } }"
    + parameter("target_latency_ms", "12"),
}


def request(number):
    body = b'{"id":"%d","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[%d]}]}'
    body %= (number, number)
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def client(port, place, answers):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(place * ROUNDS, (place + 1) * ROUNDS):
        writer.write(request(number))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        body = await reader.readexactly(int(fields["content-length"]))
        answers[number].append((int(head.split()[1]), fields.get("retry-after"), body))
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("plans", [True, False])
@pytest.mark.parametrize("limit", LIMITS)
def test_every_request_has_one_answer_and_is_counted(tmp_path, limit, plans):
    add_model(tmp_path, "slow", SLOW + LIMITS[limit])
    answers = collections.defaultdict(list)
    with running_server(tmp_path, plans=plans) as running:

        async def everybody():
            port = running.server.http_port
            await asyncio.gather(*(client(port, place, answers) for place in range(CONNECTIONS)))

        asyncio.run(everybody())
        refused = 0
        for number in range(CONNECTIONS * ROUNDS):
            ((status, retry_after, body),) = answers[number]
            refused += status == 503
            if status == 503:
                assert retry_after == "1"
                assert b"[request id: %d] " % number in body
            else:
                assert (status, retry_after) == (200, None)
                assert b'"id":"%d"' % number in body
                assert b'"data":[%d]' % number in body
        assert 0 < refused < CONNECTIONS * ROUNDS
        counted = running.statistics("slow")["inference_stats"]
        assert counted["success"]["count"] == CONNECTIONS * ROUNDS - refused
        assert counted["fail"]["count"] == refused
        assert counted["queue"]["count"] == counted["compute_infer"]["count"]
        assert failures(running, "REJECTED", "slow") == refused
        assert failures(running, "OTHER", "slow") == 0
        wait_until(
            lambda: (
                running.metric("nv_inference_pending_request_count", model="slow", version="1") == 0
            )
        )
        by_target = running.metric("shoal_admission_refused_total", model="slow", version="1")
        assert by_target == {"target": refused}.get(limit, by_target)
        assert (by_target is None) == ("target" not in LIMITS[limit])


@pytest.mark.parametrize("transport", ["native", "grpcio"])
@pytest.mark.parametrize("limit", ["queue", "target"])
def test_refusals_over_grpc(tmp_path, limit, transport):
    add_model(tmp_path, "slow", SLOW + LIMITS[limit])
    with (
        running_server(tmp_path, plans=True, grpc_transport=transport) as running,
        grpc.insecure_channel(running.grpc_address) as channel,
    ):
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        refused = 0
        for start in (0, 60, 120):  # the first of them meet a model that was not measured yet
            calls = [infer.future(_message(number)) for number in range(start, start + 60)]
            for number, call in enumerate(calls, start):
                error = call.exception(WAIT_SECS)
                if error is None:
                    found = messages.ModelInferResponse.FromString(call.result())
                    assert found.id == str(number)
                    continue
                refused += 1
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert error.details().startswith(f"[request id: {number}] ")
                trailers = dict(error.trailing_metadata())
                assert trailers["retry-after"] == "1"
                assert trailers["grpc-retry-pushback-ms"] == "1000"
        assert 0 < refused < 180
        counted = running.statistics("slow")["inference_stats"]
        assert (counted["success"]["count"], counted["fail"]["count"]) == (180 - refused, refused)


def _message(number):
    made = messages.ModelInferRequest(model_name="slow", id=str(number))
    made.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    made.raw_input_contents.append(np.int32(number).tobytes())
    return made.SerializeToString()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_our_client_knows_when_to_try_again(serve_held, fake, scheme):
    with serve_held("dynamic_batching { default_queue_policy { max_queue_size: 1 } }") as running:
        first = hold(running, fake)
        (second,) = queue(running, lambda: ask(running, 1))
        address = running.grpc_address if scheme == "grpc" else running.http_address
        with (
            Client(f"{scheme}://{address}", retries=0) as client,
            pytest.raises(ClientUnavailable, match="maximum queue size") as caught,
        ):
            client.infer("held", {"INPUT0": np.zeros((1, 1), np.int32)})
        assert caught.value.retry_after_secs == 1
        fake.gate.set()
        check(first, 0)
        check(second, 1)


@pytest.mark.one_process
def test_a_large_body_is_refused_before_it_is_decoded(serve_held, fake, monkeypatch):
    with serve_held("dynamic_batching { default_queue_policy { max_queue_size: 1 } }") as running:
        first = hold(running, fake)
        (second,) = queue(running, lambda: ask(running, 1))
        monkeypatch.setattr(InferBodyDecoder, "decode", None)
        answer = running.post("/v2/models/held/infer", b"{" * 100_000)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error == "[request id: <id_unknown>] Exceeds maximum queue size"
        assert failures(running, "REJECTED") == 1
        fake.gate.set()
        check(first, 0)
        check(second, 1)


# ---- a target latency, with a model that hangs

TARGET_MS = 20
TARGET = parameter("target_latency_ms", str(TARGET_MS))


def overload(running, fake, model="held", version="1"):
    """Hold the model until it is expected to answer too late; returns the call that it has."""
    check(ask(running, 9), 9)  # so that its cost is known
    assert fake.started.acquire(timeout=WAIT_SECS)
    first = hold(running, fake)
    wait_until(
        lambda: (
            running.metric("shoal_admission_expected_seconds", model=model, version="1")
            > TARGET_MS / 1000
        )
    )
    return first


def test_requests_are_refused_until_the_model_is_quick_again(serve_held, fake):
    with serve_held("dynamic_batching { }" + TARGET) as running:
        first = overload(running, fake)
        answer = ask(running, 1).response()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error == (
            "[request id: 1] the model is overloaded and cannot answer within its target latency "
            "of 20 ms; try again later"
        )
        fake.gate.set()
        check(first, 0)
        check(ask(running, 2), 2)  # nothing waits: it is not refused, whatever is expected
        assert running.metric("shoal_admission_refused_total", model="held", version="1") == 1
        assert failures(running, "REJECTED") == 1


def test_the_option_of_the_server_is_for_models_without_the_parameter(tmp_path, fake):
    add_fake(tmp_path, "held", "dynamic_batching { }" + ONE)
    add_fake(tmp_path, "other", "dynamic_batching { }" + ONE + parameter("target_latency_ms", "0"))
    options = {"backends": fake.registry(), "target_latency_ms": 12.5}
    with running_server(tmp_path, **options) as running:
        first = overload(running, fake)
        assert "target latency of 12.5 ms" in ask(running, 1).response().error
        assert running.metric("shoal_admission_refused_total", model="other", version="1") is None
        fake.gate.set()
        check(first, 0)


def test_an_ensemble_is_refused_at_its_entry(tmp_path, fake):
    """And not half-way: a step that comes to an overloaded model waits."""
    add_fake(tmp_path, "held", "dynamic_batching { }" + ONE + TARGET)
    add_model(tmp_path, "pipe", chain("held", first="INPUT0", last="OUTPUT0"))
    target = parameter("target_latency_ms", "20")
    add_model(tmp_path, "quick", chain("held", first="INPUT0", last="OUTPUT0") + target)
    with running_server(tmp_path, backends=fake.registry()) as running:
        first = overload(running, fake)
        answer = ask(running, 1, model="pipe").response()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error == (
            "[request id: 1] ensemble 'pipe' runs a model that is overloaded; try again later"
        )
        answer = ask(running, 2, model="quick").response()
        assert answer.status == 503
        assert answer.error.startswith("[request id: 2] the model is overloaded")
        assert running.metric("shoal_admission_refused_total", model="quick", version="1") == 1
        assert running.metric("shoal_admission_expected_seconds", model="quick", version="1") > 0.02
        assert failures(running, "REJECTED", "pipe") == 1
        assert failures(running, "REJECTED", "held") == 0
        fake.gate.set()
        check(first, 0)
        check(ask(running, 3, model="pipe"), 3)
        check(ask(running, 4, model="quick"), 4)


def test_cached_responses_are_not_refused(tmp_path, fake):
    more = "dynamic_batching { } response_cache { enable: true }" + TARGET
    add_fake(tmp_path, "held", more + ONE)
    options = {
        "backends": fake.registry(),
        "cache_config": (NamedSetting("local", "size", "1000000"),),
    }
    with running_server(tmp_path, **options) as running:
        first = overload(running, fake)
        check(ask(running, 9), 9)
        assert ask(running, 1).response().status == 503
        fake.gate.set()
        check(first, 0)


def test_a_deadline_that_cannot_be_met_is_refused_at_once(serve_held, fake):
    """The target is a minute, and the model hangs for longer than the client would wait."""
    with (
        serve_held("dynamic_batching { }" + parameter("target_latency_ms", "60000")) as running,
        grpc.insecure_channel(running.grpc_address) as channel,
    ):
        first = overload(running, fake)
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        made = messages.ModelInferRequest(model_name="held")
        made.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
        made.raw_input_contents.append(bytes(4))
        wait_until(
            lambda: (
                running.metric("shoal_admission_expected_seconds", model="held", version="1") > 0.5
            )
        )
        with pytest.raises(grpc.RpcError) as caught:
            infer(made.SerializeToString(), timeout=0.4)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the time that the request allows" in caught.value.details()
        answer = ask(running, 1, timeout=300_000).response()
        assert (answer.status, "that the request allows" in answer.error) == (503, True)
        fake.gate.set()
        check(first, 0)

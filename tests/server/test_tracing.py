"""Requests that are traced, over both protocols, to a file and to a collector of spans."""

from __future__ import annotations

import json
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_model, add_onnx
from tests.support.traces import CALLER, COMPUTE, SpanCollector, by_id, trace_settings

MODEL_EVENTS = ["REQUEST_START", "QUEUE_START"]
HTTP_ALL = [
    *("HTTP_RECV_START", "HTTP_RECV_END", *MODEL_EVENTS, *COMPUTE),
    *("REQUEST_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"),
]
GRPC_ALL = [
    *("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *MODEL_EVENTS, *COMPUTE),
    *("REQUEST_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"),
]
STEPS = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling {
  step {
    model_name: "sum" model_version: -1
    input_map { key: "INPUT0" value: "IN" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "twice" }
  }
  step {
    model_name: "sum" model_version: -1
    input_map { key: "INPUT0" value: "twice" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "OUT" }
  }
}
"""


ASKING = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        asked = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        inner = pb_utils.InferenceRequest(
            model_name="sum",
            requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", asked), pb_utils.Tensor("INPUT1", asked)],
            trace=request.trace(),
        )
        response = inner.exec()
        assert not response.has_error(), response.error().message()
        context = request.trace().get_context()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("CONTEXT", np.array([[str(context).encode()]], np.object_))]
        )
"""
ASKING_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "CONTEXT" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU }
parameters { key: "python_execution" value { string_value: "%s" } }
"""


def numbers(value=1, binary=False):
    array = np.full((1, 16), value, np.int32)
    return Infer().add("INPUT0", array, binary=binary).add("INPUT1", array, binary=binary)


def grpc_numbers(value=1):
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = grpcclient.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), value, np.int32))
        tensors.append(tensor)
    return tensors


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture
def serve(tmp_path, path):
    repository = tmp_path / "models"
    add_onnx(repository, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")

    def start(*words, fill=None, **options):
        if fill is not None:
            fill(repository)
        chosen = words or ("level=TIMESTAMPS", "rate=1")
        return running_server(
            repository,
            trace_config=trace_settings(f"triton,file={path}", *chosen),
            **options,
        )

    return start


@pytest.mark.parametrize("mode", ["loop", "threads"])
def test_every_way_through_the_server(serve, path, mode):
    with serve(execution=mode) as running:
        for _ in range(3):  # the third could take the short way
            assert numbers(binary=True).send(running, "sum").status == 200
        assert numbers().send(running, "sum").status == 200
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            for number in range(3):
                client.infer("sum", grpc_numbers(), request_id=f"r{number}")
    traces = by_id(path)
    assert [sorted(trace["events"]) for trace in traces] == [sorted(HTTP_ALL)] * 4 + [
        sorted(GRPC_ALL)
    ] * 3
    assert all((trace["model_name"], trace["model_version"]) == ("sum", 1) for trace in traces)
    assert [trace.get("request_id") for trace in traces] == [None] * 4 + ["r0", "r1", "r2"]
    assert not any("parent_id" in trace for trace in traces)


def test_a_large_body_takes_time_to_arrive(serve, path):
    def fill(repository):
        echo = onnx_models.identity("FP32")
        add_onnx(repository, "echo", echo, "max_batch_size: 8")

    with serve(fill=fill) as running:
        large = Infer().add("INPUT0", np.zeros((1, 1 << 20), np.float32), binary=True)
        assert large.send(running, "echo").status == 200
    stamps = {
        stamp["name"]: stamp["ns"]
        for item in json.loads(path.read_text())
        for stamp in item.get("timestamps", ())
    }
    assert stamps["HTTP_RECV_START"] < stamps["HTTP_RECV_END"]


def test_generate(serve, path):
    def fill(repository):
        add_onnx(repository, "echo", onnx_models.identity("INT32"), "max_batch_size: 8")

    with serve(fill=fill) as running:
        assert running.post("/v2/models/echo/generate", {"INPUT0": [1]}).status == 200
        assert running.post("/v2/models/echo/generate_stream", {"INPUT0": [1]}).status == 200
        assert running.post("/v2/models/echo/generate", {"INPUT0": "text"}).status == 400
    good, streamed, bad = by_id(path)
    assert sorted(good["events"]) == sorted(streamed["events"]) == sorted(HTTP_ALL)
    assert bad["events"] == ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]


def test_requests_that_are_refused(serve, path):
    with serve() as running:
        assert running.post("/v2/models/nothing/infer", {}).status == 404
        wrong = Infer().add("INPUT0", np.zeros((1, 16), np.int32)).send(running, "sum")
        assert wrong.status == 400
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            for model, inputs in (("nothing", grpc_numbers()), ("sum", grpc_numbers()[:1])):
                with pytest.raises(InferenceServerException):
                    client.infer(model, inputs)
    assert [trace["events"] for trace in by_id(path)] == [
        ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
        *([*HTTP_ALL[:2], "REQUEST_START", *HTTP_ALL[-2:]],),
        ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
        *([*GRPC_ALL[:2], "REQUEST_START", *GRPC_ALL[-2:]],),
    ]


def test_streams(serve, path):
    answers = queue.Queue()
    with serve() as running, grpcclient.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("sum", grpc_numbers())
        client.async_stream_infer("sum", grpc_numbers()[:1])
        outcomes = [answers.get(timeout=WAIT_SECS) for _ in range(2)]
        client.stop_stream()
    assert [error is None for _, error in outcomes] == [True, False]
    good, bad = by_id(path)
    assert sorted(good["events"]) == sorted(GRPC_ALL)
    assert bad["events"] == [*GRPC_ALL[:2], "REQUEST_START", *GRPC_ALL[-2:]]


def test_a_client_that_disconnects(tmp_path, path):
    fake = FakeBackend()
    add_fake(tmp_path / "models", "held", "instance_group { count: 1 kind: KIND_CPU }")
    with running_server(
        tmp_path / "models",
        backends=fake.registry(),
        trace_config=trace_settings(f"triton,file={path}", "level=TIMESTAMPS", "rate=1"),
    ) as running:
        fake.gate.clear()
        asked = Infer().add("INPUT0", np.zeros((1, 1), np.int32))
        first = asked.call(running, "held")
        assert fake.started.acquire(timeout=WAIT_SECS)
        second = asked.call(running, "held")
        running.wait_for_pending("held", 1)
        second.disconnect()
        running.wait_for_pending("held", 0)
        fake.gate.set()
        assert first.response().status == 200
    traces = {tuple(sorted(trace["events"])) for trace in by_id(path)}
    gone = [*HTTP_ALL[:2], *MODEL_EVENTS, "REQUEST_END", "INFER_RESPONSE_COMPLETE"]
    assert traces == {tuple(sorted(HTTP_ALL)), tuple(sorted(gone))}


def test_the_steps_of_an_ensemble(serve, path):
    def fill(repository):
        add_model(repository, "steps", STEPS)

    with serve(fill=fill) as running:
        asked = Infer().add("IN", np.ones((1, 16), np.int32))
        assert asked.send(running, "steps").json["outputs"][0]["data"] == [3] * 16
    whole, first, second = by_id(path)
    assert [whole["model_name"], first["model_name"], second["model_name"]] == [
        "steps",
        "sum",
        "sum",
    ]
    assert first["parent_id"] == second["parent_id"] == whole["id"]
    assert "COMPUTE_START" not in whole["events"]
    assert sorted(first["events"]) == sorted([*MODEL_EVENTS, *COMPUTE, "REQUEST_END"])


def add_asking(execution):
    def fill(repository):
        files = {"1/model.py": ASKING.encode()}
        add_model(repository, "asking", ASKING_CONFIG % execution, files)

    return fill


def ask(running):
    answer = Infer().add("IN", np.ones((1, 16), np.int32)).send(running, "asking")
    assert answer.status == 200, answer
    return answer.json["outputs"][0]["data"][0]


@pytest.mark.parametrize("execution", ["thread", "process"])
def test_models_that_call_other_models(serve, path, execution):
    with serve(fill=add_asking(execution)) as running:
        assert ask(running) == "None"  # only spans have a context
    first, second = by_id(path)
    assert (first["model_name"], second["model_name"]) == ("asking", "sum")
    assert second["parent_id"] == first["id"]
    assert sorted(first["events"]) == sorted(HTTP_ALL)
    assert sorted(second["events"]) == sorted([*MODEL_EVENTS, *COMPUTE, "REQUEST_END"])


def test_tensors(serve, path):
    with serve("level=TENSORS", "rate=1") as running:
        assert numbers(2).send(running, "sum").status == 200
    (trace,) = by_id(path)
    assert trace["events"] == []
    assert trace["tensors"] == [
        ("TENSOR_QUEUE_INPUT", ",".join(["2"] * 16)),
        ("TENSOR_QUEUE_INPUT", ",".join(["2"] * 16)),
        ("TENSOR_BACKEND_OUTPUT", ",".join(["4"] * 16)),
        ("TENSOR_BACKEND_OUTPUT", ",".join(["0"] * 16)),
    ]


def test_settings_change_while_the_server_runs(serve, path):
    with serve("level=OFF", "rate=1") as running:
        assert numbers().send(running, "sum").status == 200
        place = "/v2/models/sum/trace/setting"
        changed = running.post(place, {"trace_level": ["TIMESTAMPS"], "trace_count": "2"})
        assert (changed.status, changed.json["trace_count"]) == (200, "2")
        for _ in range(5):
            assert numbers().send(running, "sum").status == 200
        assert running.get(place).json["trace_count"] == "0"
        numbered = path.with_name("trace.json.0")
        wait_until(numbered.exists, "the file is complete before the server stops")
        wait_until(lambda: numbered.stat().st_size, "it is written")
        assert len(by_id(numbered)) == 2
    assert not path.exists()


def test_requests_are_recorded_for_somebody_who_looks(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_model(tmp_path, "steps", STEPS)
    route = "/v2/models/steps/trace/recording"
    with running_server(tmp_path) as running:
        assert running.get(route).json == {"remaining": 0, "traces": []}
        assert running.post(route, {"count": 2}).json == {"remaining": 2, "traces": []}
        for _ in range(3):
            assert numbers(binary=True).send(running, "sum").status == 200
            asked = Infer(id="mine").add("IN", np.ones((1, 16), np.int32))
            assert asked.send(running, "steps").status == 200
        found = wait_until(
            lambda: (seen := running.get(route).json) and len(seen["traces"]) == 2 and seen
        )
        assert found["remaining"] == 0
        for trace in found["traces"]:
            assert {"HTTP_RECV_START", "HTTP_SEND_END"} <= trace["times_us"].keys()
            whole, *steps = trace["requests"]
            assert (whole["model_name"], whole["request_id"]) == ("steps", "mine")
            assert {step["parent_id"] for step in steps} == {whole["id"]}
            assert [step["model_name"] for step in steps] == ["sum", "sum"]
            assert all(set(COMPUTE) <= step["times_us"].keys() for step in steps)
        assert running.get("/v2/models/sum/trace/recording").json["traces"] == []
        assert "0 to 100" in running.post(route, {"count": 101}).json["error"]
        assert "'count' takes a number" in running.post(route, {"count": "x"}).json["error"]
        assert running.get("/v2/models/nobody/trace/recording").status == 400


def test_extensions_say_so(serve):
    with serve() as running:
        assert running.get("/v2").json["extensions"][-2:] == ["trace", "logging"]


# ---- spans


@pytest.fixture
def collector():
    made = SpanCollector()
    yield made
    made.close()


@pytest.fixture
def spans(serve, collector):
    def start(*words, **options):
        return serve(
            *("mode=opentelemetry", "level=TIMESTAMPS", *words),
            f"opentelemetry,url={collector.url}",
            "opentelemetry,bsp_schedule_delay=1",
            **options,
        )

    return start


def test_spans_of_both_protocols(spans, collector):
    with spans("rate=1") as running:
        assert numbers().send(running, "sum").status == 200
        whole, model, compute = collector.take(3)
        assert [whole["name"], model["name"], compute["name"]] == ["InferRequest", "sum", "compute"]
        assert whole["parentSpanId"] == ""
        assert [event["name"] for event in compute["events"]] == COMPUTE
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            client.infer("sum", grpc_numbers())
        other, *_ = collector.take(3)
        assert other["traceId"] != whole["traceId"]
        assert {event["name"] for event in other["events"]} == {*GRPC_ALL[:2], *GRPC_ALL[-3:]}


def test_a_callers_trace_is_continued(spans, collector):
    with spans("rate=0") as running:
        assert numbers().send(running, "sum").status == 200
        assert numbers().call(running, "sum", headers=CALLER).response().status == 200
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            client.infer("sum", grpc_numbers())
            client.infer("sum", grpc_numbers(), headers=CALLER)
        made = collector.take(6)
    assert {span["traceId"] for span in made} == {CALLER["traceparent"][3:35]}
    roots = [span for span in made if span["name"] == "InferRequest"]
    assert [span["parentSpanId"] for span in roots] == [CALLER["traceparent"][36:52]] * 2
    assert collector.spans.empty()


@pytest.mark.parametrize("execution", ["thread", "process"])
def test_models_can_pass_the_trace_on(spans, collector, execution):
    with spans("rate=1", fill=add_asking(execution)) as running:
        told = json.loads(ask(running))
        made = collector.take(5)
    by_name = {span["name"]: span for span in made if span["name"] != "compute"}
    here = by_name["asking"]
    assert told == {"traceparent": f"00-{here['traceId']}-{here['spanId']}-01"}
    assert by_name["sum"]["parentSpanId"] == here["spanId"]


def test_failures_are_marked(spans, collector):
    with spans("rate=1") as running:
        refused = Infer().send(running, "sum")
        assert refused.status == 400
        whole, model = collector.take(2)
    assert whole["status"] == {"code": 2, "message": refused.json["error"]}
    assert model["name"] == "sum"


def test_an_unreachable_collector_loses_only_spans(serve, caplog):
    with serve(
        *("mode=opentelemetry", "level=TIMESTAMPS", "rate=1"),
        "opentelemetry,url=http://127.0.0.1:9/v1/traces",
    ) as running:
        assert numbers().send(running, "sum").status == 200
    assert "spans of traces were lost: http://127.0.0.1:9/v1/traces" in caplog.text

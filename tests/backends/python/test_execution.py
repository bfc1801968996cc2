"""What holds for every Python model, wherever its instance runs."""

from __future__ import annotations

import json
import logging
import threading

import ml_dtypes
import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import (
    BackendFailure,
    Cancelled,
    ConfigError,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, make_request

DECOUPLED = "model_transaction_policy { decoupled: true }\n"
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(value(request) * 2) for request in requests]
"""


def numbers(response):
    return response.outputs[0].array.tolist()


def test_requests_get_responses(models, ask):
    model = models.load(DOUBLE)
    for number in range(5):
        assert numbers(ask(model, number, 1)) == [[2 * number, 2]]
    assert model.statistics.read().success_count == 5


def test_a_batch_is_one_execution(models, request_of):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [answer([[len(requests)]]) for request in requests]
        """
    )
    made = [request_of(n) for n in range(3)]
    model.run(*[request for request, _ in made])
    assert [numbers(collector.wait()) for _, collector in made] == [[[3]]] * 3
    assert model.statistics.read().execution_count == 1


def test_arguments_and_requests_are_complete(models, ask):
    model = models.load(
        """
        import json

        class TritonPythonModel:
            def initialize(self, args):
                self.args = args

            def execute(self, requests):
                request = requests[0]
                said = {
                    "args": {k: v for k, v in self.args.items() if k != "model_config"},
                    "batch": json.loads(self.args["model_config"])["max_batch_size"],
                    "dims": json.loads(self.args["model_config"])["input"][0]["dims"],
                    "id": request.request_id(),
                    "correlation": request.correlation_id(),
                    "flags": request.flags(),
                    "timeout": request.timeout(),
                    "parameters": json.loads(request.parameters()),
                    "wanted": sorted(request.requested_output_names()),
                    "folder": pb_utils.get_model_dir(),
                }
                text = pb_utils.Tensor("OUT", np.array([[json.dumps(said)]], object))
                return [pb_utils.InferenceResponse([text], parameters={"a": True, "b": 2})]
        """
    )
    response = ask(
        model, 1, id="x", correlation_id="s", flags=3, timeout_us=5, parameters={"p": "q"}
    )
    said = json.loads(response.outputs[0].array[0, 0])
    assert said == {
        "args": {
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(models.folder / "m"),
            "model_version": "1",
            "model_name": "m",
        },
        "batch": 8,
        "dims": [-1],
        "id": "x",
        "correlation": "s",
        "flags": 3,
        "timeout": 5,
        "parameters": {"p": "q"},
        "wanted": ["OUT"],
        "folder": str(models.folder / "m" / "1"),
    }
    assert response.parameters == {"a": True, "b": 2}


TYPES = 'backend: "python" default_model_filename: "model.py"' + "".join(
    f"""
input {{ name: "{kind.name}" data_type: {kind.config_name} dims: [ -1 ] optional: true }}
output {{ name: "OUT_{kind.name}" data_type: {kind.config_name} dims: [ -1 ] }}
"""
    for kind in dtypes.ALL
)
ECHO = """
def same(tensor):
    name = "OUT_" + tensor.name()
    if tensor.triton_dtype() == 14:
        return pb_utils.Tensor.from_dlpack(name, tensor)
    return pb_utils.Tensor(name, tensor.as_numpy())


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([same(t) for t in r.inputs()]) for r in requests]
"""


def sample(kind, count):
    if kind is dtypes.BYTES:
        return np.array([b"\xff\0word", b"", "é".encode()] * (count // 3 + 1), object)[:count]
    if kind is dtypes.BF16:
        return np.arange(count).astype(ml_dtypes.bfloat16).view(np.uint16)
    return (np.arange(count) % 100).astype(kind.numpy)


def test_every_datatype_small_and_large(models):
    model = models.load(ECHO, TYPES)
    for kind in dtypes.ALL:
        for count in (0, 3, 100_000):
            array = sample(kind, count)
            raw = Tensor.from_array(kind.name, array, kind).raw
            tensor = Tensor(kind.name, kind, array.shape, raw=raw)
            request, collector = make_request(tensor)
            model.run(request)
            response = collector.wait()
            assert response.error is None, response.error
            (output,) = response.outputs
            assert output.datatype is kind
            assert bytes(output.raw) == bytes(tensor.raw)


def test_inputs_may_be_written_to(models, ask):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    array = value(request)
                    array += 1
                    responses.append(answer(array))
                return responses
        """
    )
    assert numbers(ask(model, 1)) == [[2]]


def test_a_sent_response_is_not_changed_by_the_model(models, request_of):
    model = models.load(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.buffer = np.zeros((1, 1), np.int32)

            def execute(self, requests):
                responses = []
                for request in requests:
                    np.copyto(self.buffer, value(request))
                    responses.append(
                        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.buffer)])
                    )
                    break
                return responses
        """
    )
    first, collected = request_of(1)
    model.run(first)
    second, _ = request_of(2)
    model.run(second)
    assert numbers(collected.wait()) == [[1]]


def test_outputs_are_reshaped_and_pruned(models, ask):
    config = """
    backend: "python"
    default_model_filename: "model.py"
    max_batch_size: 8
    input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }
    """
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                extra = pb_utils.Tensor("EXTRA", np.zeros(1))
                out = pb_utils.Tensor("OUT", np.array([7], np.int32))
                return [pb_utils.InferenceResponse([extra, out])]
        """,
        config,
    )
    (output,) = ask(model, 1).outputs
    assert (output.name, output.shape) == ("OUT", (1, 1))


def test_sequences_of_helpers_are_found(models, ask):
    model = models.load(
        """
        import helper

        class TritonPythonModel:
            def execute(self, requests):
                from late import PLUS
                return [answer(value(r) + helper.plus() + PLUS) for r in requests]
        """,
        files={"helper.py": "def plus():\n    return 10", "late.py": "PLUS = 100"},
    )
    assert numbers(ask(model, 1)) == [[111]]


# ---- errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNKNOWN", None),
        ("INTERNAL", BackendFailure),
        ("NOT_FOUND", NotFound),
        ("INVALID_ARG", InvalidArgument),
        ("UNAVAILABLE", Unavailable),
        ("CANCELLED", Cancelled),
    ],
)
def test_error_codes_reach_the_client(models, request_of, code, kind):
    model = models.load(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                error = pb_utils.TritonError("it is {code}", pb_utils.TritonError.{code})
                return [pb_utils.InferenceResponse(error=error) for _ in requests]
        """
    )
    request, collector = request_of(1)
    model.run(request)
    error = collector.wait().error
    assert error.message == f"it is {code}"
    assert kind is None or type(error) is kind


def test_an_exception_is_an_internal_error_with_its_traceback(models, request_of, caplog):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return lorem_ipsum
        """
    )
    request, collector = request_of(1)
    model.run(request)
    error = collector.wait().error
    assert isinstance(error, BackendFailure)
    start = "Failed to process the request(s) for model 'm_0_0', message: NameError: name 'lorem"
    assert error.message.startswith(start)
    (record,) = [r for r in caplog.records if r.getMessage() == error.message]
    assert f"{record.pathname}({record.lineno}): execute" in error.message
    assert record.filename == "model.py"
    assert sum(model.statistics.read().failures.values()) == 1


WRONG = {
    "return []": "Number of InferenceResponse objects do not match the number of InferenceRequest",
    "return [answer([[1]])] * 2": "InferenceResponse(s) size is:2",
    "return (answer([[1]]),)": "Expected a list in the execute return, found type '<class 'tuple'",
    "yield answer([[1]])": "Expected a list in the execute return, found type '<class 'generator'",
    "return [1]": "Expected an 'InferenceResponse' object in the execute function return list",
    "return [None]": "neither returned a response for the request nor kept it",
    "raise SystemExit(3)": "SystemExit: 3",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise Unspeakable": "Unspeakable, whose text cannot be had",
    "raise ValueError(chr(0xD800))": "ValueError: \\ud800",
    "raise ValueError('x' * 1_000_000)": "characters in all",
    "return self.execute(requests)": "RecursionError",
    "return [pb_utils.InferenceResponse([], parameters={'x': 1 << 70})]": "fit into 64 bits",
    "return [pb_utils.Tensor('OUT', np.zeros(1, complex))]": "dtype is not supported. Found compl",
}


def test_every_request_gets_a_response_whatever_the_model_does(models, ask, request_of):
    wrong = "".join(
        f"    def wrong_{n}(self, requests):\n        {b}\n" for n, b in enumerate(WRONG)
    )
    model = models.load(
        "class Unspeakable(Exception):\n"
        "    def __str__(self):\n"
        "        raise RuntimeError\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        which = value(requests[0])[0, 0]\n"
        "        if which < 0:\n"
        "            return [answer(value(r)) for r in requests]\n"
        "        return getattr(self, f'wrong_{which}')(requests)\n" + wrong
    )
    for number, text in enumerate(WRONG.values()):
        request, collector = request_of(number)
        model.run(request)
        message = collector.wait().error.message
        assert text in message
        assert len(message) < 10_000
        assert ask(model, -1).outputs[0].array.item() == -1  # and it goes on


def test_one_bad_request_does_not_affect_the_others(models, request_of):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [
                    answer(value(r)) if value(r)[0, 0] else
                    pb_utils.InferenceResponse(error=pb_utils.TritonError("zero"))
                    for r in requests
                ]
        """
    )
    made = [request_of(n) for n in (1, 0, 2)]
    model.run(*[request for request, _ in made])
    errors = [collector.wait().error for _, collector in made]
    assert [error and error.message for error in errors] == [None, "zero", None]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class TritonPythonModel: ...", "does not implement `execute` method"),
        ("x = 1", "has no class TritonPythonModel"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("class TritonPythonModel:\n    def", "SyntaxError"),
        (
            (
                "class TritonPythonModel:\n"
                "    def initialize(self, args):\n"
                "        raise pb_utils.TritonModelException('not today')\n"
                "    def execute(self, requests): ..."
            ),
            "TritonModelException: not today",
        ),
    ],
)
def test_a_model_that_does_not_start_reports_why(models, source, text):
    with pytest.raises(Internal) as raised:
        models.load(source)
    assert text in raised.value.message


def test_rescheduling_needs_iterative_sequences(models, request_of):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None for _ in requests]
        """
    )
    request, collector = request_of(1)
    model.run(request)
    assert "sequence_batching.iterative_sequence" in collector.wait().error.message


# ---- decoupled, async, later


STREAM = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            thread = threading.Thread(
                target=self.send, args=(request.get_response_sender(), int(value(request)[0, 0]))
            )
            thread.start()

    def send(self, sender, count):
        for number in range(count):
            sender.send(answer([[number]]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_decoupled_model_sends_any_number_of_responses(models, request_of):
    model = models.load(STREAM, more=DECOUPLED)
    made = [request_of(count) for count in (3, 0, 1)]
    model.run(*[request for request, _ in made])
    for count, (_, collector) in zip((3, 0, 1), made, strict=True):
        collector.wait()
        sent = [r.outputs[0].array.item() for r in collector.responses if r.outputs]
        assert sent == list(range(count))
        assert [r.final for r in collector.responses] == [False] * count + [True]


def test_async_execute(models, ask, request_of):
    plain = models.load(
        """
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                return [answer(value(r)) for r in requests]
        """,
        name="plain",
    )
    assert numbers(ask(plain, 4)) == [[4]]
    decoupled = models.load(
        """
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                sender = requests[0].get_response_sender()
                await asyncio.sleep(0)
                sender.send(answer([[1]]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        name="decoupled",
        more=DECOUPLED,
    )
    request, collector = request_of(1)
    decoupled.run(request)
    assert collector.wait().final
    assert len(collector.responses) == 2


def test_a_response_may_come_after_execute_has_returned(models, request_of):
    model = models.load(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []

            def execute(self, requests):
                if self.kept:
                    for request in self.kept:
                        request.get_response_sender().send(answer([[1]]), 1)
                    self.kept = []
                    return [answer([[2]]) for _ in requests]
                self.kept = requests
                return None
        """
    )
    first, collected = request_of(1)
    model.run(first)
    assert not collected.answered
    second, other = request_of(2)
    model.run(second)
    assert numbers(other.wait()) == [[2]]
    assert numbers(collected.wait()) == [[1]]


def test_an_abandoned_request_gets_a_response(models, request_of):
    model = models.load("class TritonPythonModel:\n    def execute(self, requests): ...")
    request, collector = request_of(1)
    model.run(request)
    assert "Python model 'm' neither returned a response" in collector.wait().error.message


def test_cancellation_reaches_the_model(models, request_of):
    model = models.load(
        """
        import time

        class TritonPythonModel:
            def execute(self, requests):
                pb_utils.Logger.log_info("executing")
                while not requests[0].is_cancelled():
                    time.sleep(0.001)
                error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                return [pb_utils.InferenceResponse(error=error)]
        """
    )
    request, collector = request_of(1)
    began = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: began.set()
    logging.getLogger("shoal.models").addHandler(handler)
    logging.getLogger("shoal.models").setLevel(logging.INFO)
    try:
        runner = threading.Thread(target=model.run, args=(request,))
        runner.start()
        assert began.wait(WAIT_SECS)
        assert not collector.answered
        request.cancel()
        assert isinstance(collector.wait().error, Cancelled)
        runner.join(WAIT_SECS)
    finally:
        logging.getLogger("shoal.models").removeHandler(handler)


def test_closing_waits_for_unsent_responses(models, request_of):
    model = models.load(
        """
        import threading, time

        class TritonPythonModel:
            def execute(self, requests):
                threading.Thread(target=self.late, args=(requests[0].get_response_sender(),)).start()

            def late(self, sender):
                time.sleep(0.2)
                sender.send(answer([[1]]), 1)
        """
    )
    request, collector = request_of(1)
    model.run(request)
    models.close(model)
    assert collector.answered
    assert collector.wait().error is None


# ---- other models


ASK = """
class TritonPythonModel:
    def execute(self, requests):
        request = pb_utils.InferenceRequest(
            model_name="other",
            model_version=2,
            inputs=[pb_utils.Tensor("X", value(requests[0]))],
            requested_output_names=["Y"],
            request_id="inner",
            correlation_id=9,
            flags=1,
            timeout=7,
            parameters={"p": 1},
        )
        response = request.exec()
        if response.has_error():
            return [pb_utils.InferenceResponse(error=response.error())]
        got = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", got)])]
"""


def test_another_model_is_called(models, ask):
    def answer(request):
        doubled = request.inputs["X"].array * 2
        threading.Thread(
            target=request.reply.send,
            args=(Response("other", 2, "inner", [Tensor.from_array("Y", doubled)]),),
        ).start()

    models.others.answer = answer
    model = models.load(ASK)
    assert numbers(ask(model, 21)) == [[42]]
    (asked,) = models.others.asked
    assert (asked.model_name, asked.model_version, asked.id) == ("other", 2, "inner")
    assert (asked.correlation_id, asked.flags, asked.timeout_us) == (9, 1, 7)
    assert asked.requested_outputs == ("Y",)
    assert asked.parameters == {"p": 1}


def test_large_tensors_go_to_other_models_and_back(models):
    models.others.answer = lambda request: request.reply.send(
        Response("other", 1, "", [Tensor.from_array("Y", request.inputs["X"].array + 1)])
    )
    model = models.load(ASK)
    array = np.arange(200_000, dtype=np.int32).reshape(1, -1)
    request, collector = make_request(Tensor.from_array("IN", array), rows=1)
    model.run(request)
    assert np.array_equal(collector.wait().outputs[0].array, array + 1)


def test_its_refusal_is_an_error_in_the_response(models, request_of):
    def refuse(request):
        raise InvalidArgument("not like this")

    models.others.answer = refuse
    model = models.load(ASK)
    request, collector = request_of(1)
    model.run(request)
    assert collector.wait().error.message == "not like this"
    assert isinstance(collector.wait().error, InvalidArgument)


def test_a_decoupled_model_needs_the_decoupled_call(models, request_of):
    models.others.decoupled.add("other")
    model = models.load(ASK)
    request, collector = request_of(1)
    model.run(request)
    assert "Please use 'decoupled=True' argument" in collector.wait().error.message


def test_a_stream_of_another_model_can_be_cut_short(models, request_of):
    models.others.decoupled.add("other")

    def answer(request):
        def send(number, final=False):
            outputs = [] if final else [Tensor.from_array("Y", np.array([number], np.int32))]
            request.reply.send(Response("other", 1, "", outputs, final=final))

        request.on_cancel = lambda: send(0, final=True)
        for number in range(3):
            send(number)

    models.others.answer = answer
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                request = pb_utils.InferenceRequest(
                    model_name="other", inputs=[], requested_output_names=["Y"]
                )
                seen = []
                responses = request.exec(decoupled=True)
                for response in responses:
                    tensors = response.output_tensors()
                    seen += [t.as_numpy().item() for t in tensors]
                    if len(seen) == 3 and tensors:
                        responses.cancel()
                return [answer([seen])]
        """
    )
    request, collector = request_of(1)
    model.run(request)
    assert numbers(collector.wait()) == [[0, 1, 2]]


def test_many_models_are_called_at_once(models, ask):
    waiting = []

    def answer(request):
        waiting.append(request)
        if len(waiting) == 3:  # none is answered before all have been asked
            for each in waiting:
                got = each.inputs["X"].array
                each.reply.send(Response("other", 1, "", [Tensor.from_array("Y", got)]))

    models.others.answer = answer
    model = models.load(
        """
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                asked = [
                    pb_utils.InferenceRequest(
                        model_name="other",
                        inputs=[pb_utils.Tensor("X", np.array([n], np.int32))],
                        requested_output_names=["Y"],
                    ).async_exec()
                    for n in range(3)
                ]
                responses = await asyncio.gather(*asked)
                total = sum(r.output_tensors()[0].as_numpy().item() for r in responses)
                return [answer([[total]])]
        """
    )
    assert numbers(ask(model, 1)) == [[3]]


def test_a_model_that_would_wait_for_itself_gets_an_error(models, request_of):
    model = models.load(ASK.replace('model_name="other"', 'model_name="m"'))
    request, collector = request_of(1)
    model.run(request)
    assert "no instance is left to run it" in collector.wait().error.message
    assert models.others.asked == []


def test_models_are_loaded_unloaded_and_looked_at(models, ask):
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                pb_utils.load_model("a")
                pb_utils.load_model("b", config='{"x": 1}', files={"file:1/model.py": b"text"})
                pb_utils.unload_model("a", True)
                ready = [pb_utils.is_model_ready("ready"), pb_utils.is_model_ready("other", "3")]
                return [answer([ready])]
        """
    )
    assert numbers(ask(model, 1)) == [[1, 0]]
    assert models.others.calls == [
        ("load", "a", None, {}),
        ("load", "b", '{"x": 1}', {"1/model.py": b"text"}),
        ("unload", "a", True),
    ]


# ---- metrics, log, readiness


def test_metrics_are_the_servers(models, ask):
    from shoal.statistics.exposition import Exposition

    model = models.load(
        """
        class TritonPythonModel:
            def initialize(self, args):
                kinds = pb_utils.MetricFamily
                self.family = kinds("model_requests", "Requests", kinds.COUNTER)
                self.metric = self.family.Metric({"model": "m"})
                self.sizes = kinds("model_sizes", "Sizes", kinds.HISTOGRAM)
                self.size = self.sizes.Metric(buckets=[1.0, 10.0])

            def execute(self, requests):
                self.metric.increment(len(requests))
                self.size.observe(5)
                try:
                    self.metric.set(1)
                except pb_utils.TritonModelException:
                    return [answer([[self.metric.value()]])]
        """
    )
    assert numbers(ask(model, 1)) == [[1]]

    def rendered():
        text = Exposition()
        models.metrics.render(text)
        return text.encode().decode()

    assert 'model_requests{model="m"} 1' in rendered()
    assert 'model_sizes_bucket{le="10"} 1' in rendered()
    models.close(model)
    wait_until(lambda: rendered() == "", "the metrics of a model that is gone")


def test_log_lines_name_the_models_file(models, ask, caplog):
    caplog.set_level(logging.INFO)
    model = models.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                pb_utils.Logger.log_warn("here I am")
                return [answer([[1]])]
        """
    )
    ask(model, 1)
    (record,) = [r for r in caplog.records if r.getMessage() == "here I am"]
    assert record.filename == "model.py"
    assert record.levelname == "WARNING"


@pytest.mark.parametrize(("returned", "ready"), [("True", True), ("False", False), ("1/0", False)])
def test_the_model_reports_whether_it_is_ready(models, returned, ready):
    model = models.load(
        f"""
        class TritonPythonModel:
            def execute(self, requests): ...
            def is_ready(self):
                return {returned}
        """
    )
    assert model.loaded.asks_readiness
    assert model.loaded.ready() is ready


def test_a_model_without_an_opinion_is_ready(models):
    model = models.load(DOUBLE)
    assert not model.loaded.asks_readiness
    assert model.loaded.ready()


# ---- auto_complete_config


def test_a_model_completes_its_config(models, ask):
    model = models.load(
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
                config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]})
                config.set_max_batch_size(4)
                config.set_dynamic_batching()
                return config

            def execute(self, requests):
                return [answer(value(r)) for r in requests]
        """,
        'backend: "python"\ndefault_model_filename: "model.py"\n',
    )
    assert model.config.max_batch_size == 4
    assert model.config.dynamic_batching is not None
    assert [t.name for t in model.config.input] == ["IN"]
    assert numbers(ask(model, 3)) == [[3]]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            "config.set_max_batch_size(2)\n        return config",
            "ValueError: configuration specified max_batch_size 8, but",
        ),
        ("return None", "must return a valid pb.ModelConfig object."),
        ("raise RuntimeError('cannot')", "RuntimeError: cannot"),
        ("import os; os._exit(3)", "ended before it was ready: it exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (killed)"),
    ],
)
def test_a_completion_that_fails_reports_why(processes, body, text):
    source = f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
    def execute(self, requests): ...
"""
    with pytest.raises((Internal, ConfigError)) as raised:
        processes.load(source)
    assert text in raised.value.message


def test_a_tensor_that_cannot_be_sent_is_an_error_and_no_silence(models, request_of):
    model = models.load(
        """
        class Stubborn:
            def __str__(self):
                raise RuntimeError("no text of me")

        class TritonPythonModel:
            def execute(self, requests):
                array = np.array([[Stubborn()]], object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
        """
    )
    request, collector = request_of(1)
    model.run(request)
    assert "RuntimeError: no text of me" in collector.wait().error.message


def test_threads_that_a_model_starts_are_its_own(models, request_of):
    sources = """
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            threading.Thread(target=self.work, args=(requests[0].get_response_sender(),)).start()

        def work(self, sender):
            folder = pb_utils.get_model_dir()
            inner = pb_utils.InferenceRequest(
                model_name="other", inputs=[], requested_output_names=[]
            ).exec()
            sender.send(answer([[int("/NAME/" in folder), int(inner.has_error())]]), 1)
    """
    models.others.answer = lambda request: request.reply.send(Response("other", 1, ""))
    both = [models.load(sources.replace("NAME", name), name=name) for name in ("first", "second")]
    for model in both:
        request, collector = request_of(1)
        model.run(request)
        assert numbers(collector.wait()) == [[1, 0]]

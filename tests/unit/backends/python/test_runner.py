"""Models in the hands of `PythonModelRunner`: how an instance calls its model, without a server."""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import pytest

import triton_python_backend_utils as pb_utils
from shoal.errors import NotFound
from shoal.testing.python_models import ModelFailed, PythonModelRunner

CONFIG = """
name: "m"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"


def row(*values):
    return {"IN": np.array([values], np.int32)}


def value(request):
    return int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])


def out(number, name="OUT"):
    return pb_utils.Tensor(name, np.array([[number]], np.int32))


def answer(number):
    return pb_utils.InferenceResponse([out(number)])


class Base:
    def execute(self, requests):
        return [answer(value(request) + 1) for request in requests]


def run(model, config=CONFIG, **options):
    return PythonModelRunner(model, config=config, **options)


def test_requests_are_answered():
    with run(Base) as model:
        assert model.infer(row(1))["OUT"].tolist() == [[2]]
        assert [o["OUT"].item() for o in model.batch([row(1), row(2), row(3)])] == [2, 3, 4]


def test_initialize_gets_strings():
    seen = {}

    class Model(Base):
        def initialize(self, args):
            seen.update(args)

    with run(Model):
        pass
    assert all(isinstance(text, str) for text in seen.values())
    assert json.loads(seen["model_config"])["max_batch_size"] == 8
    assert seen["model_name"] == "m"
    assert seen["model_instance_kind"] == "CPU"
    assert seen["model_instance_device_id"] == "0"


def test_a_request_tells_everything():
    class Model(Base):
        def execute(self, requests):
            (request,) = requests
            said = {
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "wanted": sorted(request.requested_output_names()),
                "inputs": [tensor.name() for tensor in request.inputs()],
            }
            text = pb_utils.Tensor("OUT", np.array([json.dumps(said)], object))
            return [pb_utils.InferenceResponse([text])]

    with run(Model) as model:
        outputs = model.infer(
            row(1), id="7", correlation_id="s", flags=1, timeout_us=9, parameters={"a": 1}
        )
    assert json.loads(outputs["OUT"][0]) == {
        "id": "7",
        "correlation": "s",
        "flags": 1,
        "timeout": 9,
        "parameters": {"a": 1},
        "wanted": ["OUT"],  # nobody asked for anything in particular: all of them
        "inputs": ["IN"],
    }


def test_outputs_that_nobody_asked_for_are_left_out():
    class Model(Base):
        def execute(self, requests):
            return [pb_utils.InferenceResponse([out(1), out(2, "EXTRA")]) for _ in requests]

    with run(Model) as model:
        assert list(model.infer(row(1))) == ["OUT"]


def test_one_error_in_a_batch_is_one_error():
    class Model(Base):
        def execute(self, requests):
            error = pb_utils.TritonError("not this one", pb_utils.TritonError.UNAVAILABLE)
            return [answer(1), pb_utils.InferenceResponse(error=error), answer(3)]

    with run(Model) as model:
        exchanges = [model.request(row(n)) for n in range(3)]
        model.execute(exchanges)
    said = [exchange.wait()[0].error() for exchange in exchanges]
    assert [error and error.message() for error in said] == [None, "not this one", None]


WRONG_RETURNS = [
    (
        lambda _: [],
        (
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            "objects. InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0"
        ),
    ),
    (lambda _: (), "Expected a list in the execute return, found type '<class 'tuple'>'."),
    (
        lambda rs: [1 for _ in rs],
        (
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            "type '<class 'int'>'."
        ),
    ),
    (lambda _: None, "neither returned a response for the request nor kept it"),
    (lambda rs: [None for _ in rs], "neither returned a response for the request nor kept it"),
]


@pytest.mark.parametrize(("returned", "text"), WRONG_RETURNS)
def test_wrong_returns(returned, text):
    class Model:
        def execute(self, requests):
            return returned(requests)

    with run(Model) as model:
        exchanges = [model.request(row(n)) for n in range(2)]
        model.execute(exchanges)
    for exchange in exchanges:
        (response,) = exchange.wait()
        assert text in response.error().message()
        assert response.error().code() == pb_utils.TritonError.INTERNAL


def test_an_exception_fails_the_batch_with_its_traceback():
    class Model:
        def execute(self, requests):
            self.helper()

        def helper(self):
            raise KeyError("the reason")

    with run(Model) as model, pytest.raises(ModelFailed) as raised:
        model.infer(row(1))
    text = str(raised.value)
    assert text.startswith("Failed to process the request(s) for model 'm_0', message: KeyError: ")
    assert "'the reason'\n\nAt:\n  " in text
    assert text.index(": helper") < text.index(": execute")
    assert raised.value.code == pb_utils.TritonError.INTERNAL


def test_reading_a_response_that_was_sent_does_not_answer_twice():
    class Model:
        def execute(self, requests):
            requests[0].get_response_sender().send(answer(1))
            return [answer(2)]

    with run(Model) as model:
        exchange = model.request(row(1))
        model.execute([exchange])
        assert [r.output_tensors()[0].as_numpy().item() for r in exchange.wait()] == [1]


# ---- async


def test_async_execute():
    class Model:
        async def execute(self, requests):
            await asyncio.sleep(0)
            return [answer(value(request)) for request in requests]

    with run(Model) as model:
        assert model.infer(row(5))["OUT"].item() == 5


def test_async_execute_of_a_decoupled_model_goes_on_in_the_background():
    go = threading.Event()

    class Model:
        async def execute(self, requests):
            sender = requests[0].get_response_sender()
            await asyncio.get_running_loop().run_in_executor(None, go.wait)
            for number in range(3):
                sender.send(answer(number))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    with run(Model, DECOUPLED) as model:
        exchange = model.request(row(1))
        model.execute([exchange])
        assert exchange.responses == []
        go.set()
        numbers = [r.output_tensors()[0].as_numpy().item() for r in exchange.wait()]
    assert numbers == [0, 1, 2]


def test_an_exception_in_the_background_is_an_answer_too():
    class Model:
        async def execute(self, requests):
            await asyncio.sleep(0)
            raise ValueError("too late")

    with run(Model, DECOUPLED) as model, pytest.raises(ModelFailed, match="ValueError: too late"):
        model.stream(row(1))


# ---- decoupled


def test_a_decoupled_model_answers_from_another_thread():
    class Model:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                count = value(request)
                threading.Thread(target=self.answer, args=(sender, count)).start()

        def answer(self, sender, count):
            for number in range(count):
                sender.send(answer(number))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    with run(Model, DECOUPLED) as model:
        assert [o["OUT"].item() for o in model.stream(row(3))] == [0, 1, 2]
        assert model.stream(row(0)) == []


def test_a_decoupled_model_must_return_none():
    with run(Base, DECOUPLED) as model, pytest.raises(ModelFailed) as raised:
        model.stream(row(1))
    assert "is using the decoupled mode and the execute function must return None." in str(
        raised.value
    )


def test_a_request_can_be_kept_and_answered_later():
    kept = []

    class Model:
        def execute(self, requests):
            kept.extend(requests)

    with run(Model) as model:
        exchange = model.request(row(1))
        model.execute([exchange])
        assert not exchange.over
        kept.pop().get_response_sender().send(answer(9), 1)
        assert exchange.wait()[0].output_tensors()[0].as_numpy().item() == 9


def test_cancellation_is_seen():
    seen = []

    class Model:
        def execute(self, requests):
            seen.append(
                (requests[0].is_cancelled(), requests[0].get_response_sender().is_cancelled())
            )
            return [answer(1)]

    with run(Model) as model:
        exchange = model.request(row(1))
        model.execute([exchange])
        withdrawn = model.request(row(1))
        withdrawn.cancel()
        model.execute([withdrawn])
    assert seen == [(False, False), (True, True)]


# ---- other models


def ask(**options):
    return pb_utils.InferenceRequest(
        model_name=options.pop("model", "other"),
        inputs=[out(4, "IN")],
        requested_output_names=["OUT"],
        **options,
    )


class Asking:
    def execute(self, requests):
        response = ask().exec()
        if response.has_error():
            return [pb_utils.InferenceResponse(error=response.error()) for _ in requests]
        return [pb_utils.InferenceResponse(response.output_tensors()) for _ in requests]


def double(inputs):
    return {"OUT": inputs["IN"] * 2, "OTHER": inputs["IN"]}


def test_another_model_is_asked():
    with run(Asking, models={"other": double}) as model:
        assert model.infer(row(1))["OUT"].item() == 8


def test_its_errors_come_in_the_response():
    def fails(_):
        raise NotFound("nothing here")

    with run(Asking, models={"other": fails}) as model, pytest.raises(ModelFailed) as raised:
        model.infer(row(1))
    assert raised.value.code == pb_utils.TritonError.NOT_FOUND


def test_it_is_asked_asynchronously():
    class Model:
        async def execute(self, requests):
            responses = await asyncio.gather(*[ask().async_exec() for _ in range(3)])
            total = sum(r.output_tensors()[0].as_numpy().item() for r in responses)
            return [answer(total)]

    with run(Model, models={"other": double}) as model:
        assert model.infer(row(1))["OUT"].item() == 24


def test_a_decoupled_one_is_walked_through_twice():
    class Model:
        def execute(self, requests):
            responses = ask().exec(decoupled=True)
            first = [len(r.output_tensors()) for r in responses]
            assert first == [len(r.output_tensors()) for r in responses]
            responses.cancel()  # too late, and no fault
            return [answer(sum(first))]

    def several(_):
        return [double({"IN": np.ones((1, 1), np.int32)})] * 3

    with run(Model, models={"other": several}) as model:
        assert model.infer(row(1))["OUT"].item() == 3


@pytest.mark.parametrize("phase", ["initialize", "finalize"])
def test_only_execute_may_ask(phase, caplog):
    class Model(Base):
        def initialize(self, _):
            if phase == "initialize":
                ask().exec()

        def finalize(self):
            if phase == "finalize":
                ask().exec()

    text = "BLS is only supported during the 'execute' function."
    if phase == "initialize":
        with pytest.raises(pb_utils.TritonModelException, match=text):
            run(Model, models={"other": double})
    else:
        run(Model, models={"other": double}).close()
        assert text in caplog.text


# ---- readiness, metrics, the end


@pytest.mark.parametrize(
    ("answered", "ready"), [(True, True), (False, False), ("yes", False), (ValueError("x"), False)]
)
def test_readiness(answered, ready):
    class Model(Base):
        def is_ready(self):
            if isinstance(answered, Exception):
                raise answered
            return answered

    class Async(Base):
        async def is_ready(self):
            return Model.is_ready(self)

    for kind in (Model, Async):
        with run(kind) as model:
            assert model.ready() is ready


def test_no_opinion_is_ready():
    with run(Base) as model:
        assert model.ready()


def test_a_late_answer_is_a_no_and_the_next_one_gets_it():
    go = threading.Event()
    asked = []

    class Model(Base):
        def is_ready(self):
            asked.append(1)
            go.wait()
            return True

    with run(Model) as model:
        assert not model._instance.ready(timeout_secs=0.05)
        go.set()
        assert model.ready()
        assert len(asked) <= 2


def test_metrics_of_a_model_can_be_read():
    class Model(Base):
        def initialize(self, _):
            self.family = pb_utils.MetricFamily("seen", "Seen", pb_utils.MetricFamily.COUNTER)
            self.metric = self.family.Metric({"model": "m"})

        def execute(self, requests):
            self.metric.increment(len(requests))
            return super().execute(requests)

    with run(Model) as model:
        model.infer(row(1))
        assert 'seen{model="m"} 1' in model.metrics_text()


def test_finalize_is_called_and_may_fail(caplog):
    class Model(Base):
        def finalize(self):
            raise RuntimeError("cannot let go")

    run(Model).close()
    assert "finalize of 'm_0' failed: RuntimeError: cannot let go" in caplog.text


def test_a_model_completes_its_own_config():
    class Model(Base):
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
            config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
            return config

    with run(Model, config={"name": "m"}) as model:
        assert model.config["input"][0]["name"] == "IN"
        assert model.infer(row(1))["OUT"].item() == 2

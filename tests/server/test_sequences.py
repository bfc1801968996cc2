"""Sequences on a running server: what models are told and remember, and how sequences end.

`held` is a model of the fake backend, whose executions a test can hold; the others are ONNX models
that repeat what they are told.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from shoal.backends.base import LoadedModel, RequestExecutor
from shoal.backends.registry import BackendRegistry
from shoal.core.tensor import Tensor
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import (
    EXECUTION_MODES,
    add_fake,
    add_model,
    add_onnx,
    execution,
    parameter,
    touch,
)
from tests.support.sequences import history, history_config, running_total, total_config

ONE = "instance_group { count: 1 kind: KIND_CPU }\n"
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"
READY = """
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
"""
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 4 }"}
LONG = "max_sequence_idle_microseconds: 60000000"
NO_START = "must specify the START flag on the first request of the sequence"


def step(correlation_id, *flags, value=1, **options):
    """A request of a sequence: `flags` are "start" and "end"."""
    shape = options.pop("shape", (1, 1))
    datatype = options.pop("datatype", "INT32")
    array = np.full(shape, value, np.int32)
    if datatype == "BYTES":
        array = np.array([[str(value)]], object)
    parameters = {f"sequence_{flag}": True for flag in flags} | {"sequence_id": correlation_id}
    return Infer(**parameters, **options).add(
        options.pop("input", "INPUT"),
        array.astype(object if datatype == "BYTES" else datatype.lower()),
        datatype,
    )


def send(running, model, correlation_id, *flags, **options):
    """The outputs of one request, as plain numbers."""
    got = outputs(step(correlation_id, *flags, **options).send(running, model))
    return {name: array.reshape(-1).tolist() for name, array in got.items()}


# ---- what models are told and remember


@pytest.mark.parametrize("mode", EXECUTION_MODES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_batch_size", [0, 1, 4])
def test_a_sequence_from_start_to_end(tmp_path, strategy, max_batch_size, mode):
    config = total_config(STRATEGIES[strategy], max_batch_size=max_batch_size, more=execution(mode))
    add_onnx(tmp_path, "total", running_total(batch=max_batch_size > 0), config)
    shape = (1, 1) if max_batch_size else (1,)
    with running_server(tmp_path) as running:
        steps = [(5, "start"), (6,), (7, "end"), (8, "start", "end")]
        told = [
            send(running, "total", 99, *flags, value=value, shape=shape) for value, *flags in steps
        ]
        assert [got["OUTPUT"] for got in told] == [[5], [11], [18], [8]]
        assert [got["GOT_START"] for got in told] == [[1], [0], [0], [1]]
        assert [got["GOT_END"] for got in told] == [[0], [0], [1], [1]]
        assert [got["GOT_READY"] for got in told] == [[1]] * 4
        assert [got["GOT_CORRID"] for got in told] == [[99]] * 4
        statistics = running.statistics("total")
        assert (statistics["inference_count"], statistics["execution_count"]) == (4, 4)


@pytest.mark.parametrize("switch", ["INT32", "FP32", "BOOL"])
@pytest.mark.parametrize(
    ("corrid", "correlation_id", "told"),
    [
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT64", 2**63 - 1, 2**63 - 1),
        ("UINT32", 2**32 + 3, 3),
        ("INT32", 7, 7),
        ("BYTES", "a sequence", b"a sequence"),
    ],
)
def test_every_type_of_control(tmp_path, switch, corrid, correlation_id, told):
    add_onnx(
        tmp_path,
        "total",
        running_total(switch=switch, corrid=corrid),
        total_config(switch=switch, corrid=corrid),
    )
    with running_server(tmp_path) as running:
        got = send(running, "total", correlation_id, "start", value=3)
        assert (got["GOT_START"], got["GOT_END"], got["GOT_READY"]) == ([1], [0], [1])
        assert got["GOT_CORRID"] == [told]
        assert send(running, "total", correlation_id, "end", value=4)["OUTPUT"] == [7]


@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
def test_a_sequence_starts_from_a_file(tmp_path, datatype):
    initial = (
        f'initial_state {{ name: "begin" data_type: TYPE_{datatype} dims: [ 1 ] '
        'data_file: "hundred" }'
    )
    content = np.array([100], "<i4" if datatype == "INT32" else "<f4").tobytes()
    add_onnx(
        tmp_path,
        "total",
        running_total(datatype),
        total_config(datatype=datatype, state=initial),
        files={"initial_state/hundred": content},
    )
    kind = "int32" if datatype == "INT32" else "float32"
    with running_server(tmp_path) as running:
        for _ in range(2):  # each sequence from the file
            array = np.array([[5]], kind)
            for flag, expected in (("sequence_start", 105), ("sequence_end", 110)):
                asked = Infer(sequence_id=1, **{flag: True}).add("INPUT", array)
                assert outputs(asked.send(running, "total"))["OUTPUT"].item() == expected


def test_another_file_is_read_when_the_model_is_loaded_again(tmp_path):
    initial = 'initial_state { name: "begin" data_type: TYPE_INT32 dims: [ 1 ] data_file: "begin" }'
    folder = add_onnx(
        tmp_path,
        "total",
        running_total(),
        total_config(state=initial),
        files={"initial_state/begin": np.array([100], "<i4").tobytes()},
    )
    with running_server(tmp_path, model_control_mode="explicit", load_model=("*",)) as running:
        assert send(running, "total", 1, "start")["OUTPUT"] == [101]
        file = folder / "initial_state" / "begin"
        file.write_bytes(np.array([200], "<i4").tobytes())
        touch(file)
        assert running.load("total").status == 200
        assert send(running, "total", 1, "start")["OUTPUT"] == [201]


MEMORY = {
    "plain": "",
    "same": "use_same_buffer_for_input_output: true",
    "growable": "use_same_buffer_for_input_output: true use_growable_memory: true",
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_state_that_grows(tmp_path, strategy, memory):
    add_onnx(
        tmp_path,
        "history",
        history(),
        history_config(STRATEGIES[strategy], state=MEMORY[memory]),
    )
    with running_server(tmp_path) as running:
        send(running, "history", 1, "start", value=1)
        # Another sequence of another length, at the same time: they do not fit into one batch.
        send(running, "history", 2, "start", value=-1)
        for value in (2, 3):
            calls = [
                step(n, value=v).call(running, "history") for n, v in ((1, value), (2, -value))
            ]
            answers = [outputs(call.response())["SEEN"].reshape(-1).tolist() for call in calls]
            assert answers[0] == [0, *range(1, value + 1)]
            assert answers[1] == [0, *range(-1, -value - 1, -1)]
        assert send(running, "history", 1, "start", value=9)["SEEN"] == [0, 9]


def test_sequences_of_different_lengths_do_not_meet(tmp_path):
    add_onnx(tmp_path, "history", history(), history_config())
    with running_server(tmp_path) as running:
        for count, number in ((1, 11), (3, 12), (1, 13)):
            for turn in range(count):
                flags = ["start"] if turn == 0 else []
                seen = send(running, "history", number, *flags, value=number)["SEEN"]
                assert seen == [0, *[number] * (turn + 1)]
        for _ in range(5):
            calls = [step(n, value=n).call(running, "history") for n in (11, 12, 13)]
            for call, number in zip(calls, (11, 12, 13), strict=True):
                seen = outputs(call.response())["SEEN"].reshape(-1).tolist()
                assert set(seen[1:]) == {number}


def test_a_state_is_no_output_unless_it_is_listed(tmp_path):
    add_onnx(tmp_path, "total", running_total(), total_config())
    with running_server(tmp_path) as running:
        assert "TOTAL" not in send(running, "total", 1, "start")
        refused = step(1).want("TOTAL").send(running, "total")
        assert refused.status == 400
        assert refused.error.startswith("unexpected inference output 'TOTAL' for model 'total'")
        metadata = running.get("/v2/models/total").json
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
        assert "TOTAL" not in [tensor["name"] for tensor in metadata["outputs"]]


def test_the_config_may_omit_inputs_and_outputs(tmp_path):
    """What the server makes is not taken for an input of the client's."""
    config = "\n".join(
        line for line in total_config().splitlines() if not line.startswith(("input", "output"))
    )
    add_onnx(tmp_path, "total", running_total(), config)
    with running_server(tmp_path) as running:
        metadata = running.get("/v2/models/total").json
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
        assert send(running, "total", 1, "start", value=4)["OUTPUT"] == [4]
        assert send(running, "total", 1, value=4)["OUTPUT"] == [8]


def test_warming_up(tmp_path):
    warm = """
model_warmup {
  name: "first" batch_size: 2
  inputs { key: "INPUT" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
}
model_warmup {
  name: "controls given" batch_size: 1
  inputs { key: "INPUT" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }
  inputs { key: "READY" value { data_type: TYPE_INT32 dims: [ 1 ] random_data: true } }
}
"""
    add_onnx(tmp_path, "total", running_total(), total_config(more=warm))
    with running_server(tmp_path) as running:
        assert send(running, "total", 1, "start")["OUTPUT"] == [1]


def test_the_extension_is_announced(tmp_path):
    with running_server(tmp_path) as running:
        extensions = running.get("/v2").json["extensions"]
        assert extensions[:3] == ["classification", "sequence", "model_repository"]


# ---- wrong uses


@pytest.fixture(scope="module")
def totals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "number", running_total(), total_config(LONG))
    add_onnx(folder, "text", running_total(corrid="BYTES"), total_config(LONG, corrid="BYTES"))
    add_onnx(folder, "any", running_total(corrid=""), total_config(LONG, corrid=""))
    with running_server(folder) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "parameters", "sentence"),
    [
        (
            "number",
            {},
            "inference request to model 'number' must specify a non-zero or non-empty correlation ID",
        ),
        (
            "number",
            {"sequence_id": 0, "sequence_start": True},
            "non-zero or non-empty correlation ID",
        ),
        (
            "any",
            {"sequence_id": "", "sequence_start": True},
            "non-zero or non-empty correlation ID",
        ),
        (
            "number",
            {"sequence_id": 5},
            "inference request for sequence 5 to model 'number' must specify the START flag on the first request of the sequence",
        ),
        (
            "text",
            {"sequence_id": "five", "sequence_end": True},
            "inference request for sequence five to model 'text' must specify the START flag on the first request of the sequence",
        ),
        (
            "number",
            {"sequence_id": "five", "sequence_start": True},
            "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'BYTES', but model 'number' expects 'UINT64'",
        ),
        (
            "text",
            {"sequence_id": 5, "sequence_start": True},
            "data-type is 'UINT64', but model 'text' expects 'BYTES'",
        ),
    ],
)
def test_refused(totals, model, parameters, sentence):
    refused = Infer(**parameters).add("INPUT", np.array([[1]], np.int32)).send(totals, model)
    assert refused.status == 400
    assert sentence in refused.error


def test_more_than_one_row(totals):
    asked = Infer(sequence_id=3, sequence_start=True).add("INPUT", np.ones((2, 1), np.int32))
    refused = asked.send(totals, "number")
    assert refused.status == 400
    assert refused.error == (
        "inference request to model 'number' must specify batch-size 1 due to requirements of "
        "sequence batcher"
    )


@pytest.mark.parametrize("name", ["START", "CORRID", "TOTAL_BEFORE"])
def test_clients_do_not_send_what_the_server_makes(totals, name):
    asked = step(4, "start").add(name, np.ones((1, 1), np.int32))
    refused = asked.send(totals, "number")
    assert refused.status == 400
    assert "expected 1 inputs but got 2 inputs for model 'number'" in refused.error


def test_numbers_and_strings_side_by_side(totals):
    for value in (1, 2):
        flags = ["start"] if value == 1 else []
        assert send(totals, "any", 7, *flags, value=1)["OUTPUT"] == [value]
        assert send(totals, "any", "7", *flags, value=10)["OUTPUT"] == [10 * value]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda text: text.replace('"START" control', '"BEGIN" control'),
            "unexpected inference input 'BEGIN', allowed inputs are",
        ),
        (
            lambda text: text.replace("int32_false_true: [ 0, 1 ]", "fp32_false_true: [ 0, 1 ]", 1),
            "the configuration makes tensor 'START' TYPE_FP32, the model takes TYPE_INT32",
        ),
        (
            lambda text: text.replace('output_name: "TOTAL"', 'output_name: "SUM"'),
            "unexpected inference output 'SUM', allowed outputs are",
        ),
        (
            lambda text: text.replace(
                "data_type: TYPE_INT32 dims: [ 1 ]  }\n}", "data_type: TYPE_FP32 dims: [ 1 ] }\n}"
            ),
            "the configuration makes tensor 'TOTAL_BEFORE' TYPE_FP32, the model takes TYPE_INT32",
        ),
        (
            lambda text: text + 'input { name: "READY" data_type: TYPE_INT32 dims: [ 1 ] }',
            "control tensor 'READY' is listed in input as well",
        ),
        (
            lambda text: text.replace(
                'output_name: "TOTAL"', 'output_name: "TOTAL" use_growable_memory: true'
            ),
            "you must also enable 'use_same_buffer_for_input_output' for state input 'TOTAL_BEFORE'",
        ),
        (
            lambda text: text.replace(
                'output_name: "TOTAL"',
                'output_name: "TOTAL" initial_state '
                '{ name: "i" data_type: TYPE_INT32 dims: [ 1 ] data_file: "none" }',
            ),
            "cannot read initial_state/none: No such file or directory",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused_at_load(tmp_path, caplog, change, sentence):
    config = total_config()
    changed = change(config)
    assert changed != config
    add_onnx(tmp_path, "total", running_total(), changed)
    with pytest.raises(ModelsFailed), running_server(tmp_path):
        pass
    assert sentence in caplog.text


# ---- sequences, slots and time


@pytest.fixture
def serve(tmp_path, fake):
    def start(block, instances=ONE, max_batch_size=2, **options):
        config = f"sequence_batching {{ {block} {READY} }}\n{instances}"
        add_fake(tmp_path, "held", config, max_batch_size=max_batch_size)
        registry = fake.registry()
        return running_server(tmp_path, backends=registry, **options)

    return start


def ask(running, correlation_id, *flags, value=0, **parameters):
    """Send a request to `held` and wait until it is queued or runs."""
    return step(correlation_id, *flags, value=value, input="INPUT0", **parameters).call(
        running, "held"
    )


def check(call, value):
    assert outputs(call.response())["OUTPUT0"].item() == value


def hold(running, fake, correlation_id=1, *flags):
    """A request that the model does not finish before the gate opens."""
    while fake.started.acquire(blocking=False):
        pass
    fake.gate.clear()
    call = ask(running, correlation_id, *flags)
    assert fake.started.acquire(timeout=WAIT_SECS)
    return call


def test_more_sequences_than_slots(serve, fake):
    with serve(LONG) as running:
        held = hold(running, fake, 1, "start")
        calls = [ask(running, 2, "start", value=2)]
        running.wait_for_pending("held", 1)
        for number in (3, 4):  # these two wait for a slot
            calls.append(ask(running, number, "start", "end", value=number))
            running.wait_for_pending("held", len(calls))
        fake.gate.set()
        check(held, 0)
        check(calls[0], 2)
        assert running.model("held").statistics.pending() == 2
        check(ask(running, 2, "end", value=5), 5)
        check(calls[1], 3)
        check(calls[2], 4)
        # The slot of 2 was given on twice; that of 1 stayed its own.
        rows = [batch["READY"].reshape(-1).tolist() for batch in fake.batches]
        assert rows == [[1], [0, 1], [0, 1], [0, 1], [0, 1]]


def test_a_batch_spans_the_slots(serve, fake):
    with serve(LONG, max_batch_size=4) as running:
        for number in (1, 2, 3):
            check(ask(running, number, "start", value=number), number)
        held = hold(running, fake, 3)
        calls = [ask(running, 1, value=10), ask(running, 3, value=30)]
        running.wait_for_pending("held", 2)
        fake.gate.set()
        held.response()
        check(calls[0], 10)
        check(calls[1], 30)
        assert fake.batches[-1]["READY"].reshape(-1).tolist() == [1, 0, 1]
        assert fake.batches[-1]["INPUT0"].reshape(-1).tolist()[::2] == [10, 30]
        statistics = running.statistics("held")
        assert statistics["inference_count"] == 6
        assert statistics["execution_count"] == 5
        sizes = {
            entry["batch_size"]: entry["compute_infer"]["count"]
            for entry in statistics["batch_stats"]
        }
        assert sizes == {1: 1, 2: 1, 3: 3}


def test_an_idle_sequence_ends(serve, fake):
    with serve("max_sequence_idle_microseconds: 20000", max_batch_size=1) as running:
        check(ask(running, 1, "start", value=1), 1)
        # Its slot is the only one: this one runs when the first has been given up.
        check(ask(running, 2, "start", value=2), 2)
        refused = ask(running, 1).response()
        assert refused.status == 400
        assert NO_START in refused.error


def test_waiting_for_a_slot_may_be_limited(serve, fake):
    with serve(LONG, max_batch_size=1) as running:
        check(ask(running, 1, "start", value=1), 1)
        patient = ask(running, 2, "start", value=2)
        running.wait_for_pending("held", 1)
        hasty = [ask(running, 3, "start")]
        running.wait_for_pending("held", 2)
        hasty.append(ask(running, 3, timeout=20_000))  # the hastiest of a sequence decides
        for call in hasty:
            answer = call.response()
            assert answer.status == 503
            assert answer.error == "timeout of the corresponding sequence has been expired"
        name = "nv_inference_request_failure"
        assert running.metric(name, model="held", version="1", reason="REJECTED") == 2
        check(ask(running, 1, "end", value=1), 1)
        check(patient, 2)


def test_minimum_slot_utilization(serve, fake):
    block = "direct { max_queue_delay_microseconds: 60000000 minimum_slot_utilization: 1 } " + LONG
    with serve(block) as running:
        first = ask(running, 1, "start", value=1)
        running.wait_for_pending("held", 1)
        assert fake.batches == []
        second = ask(running, 2, "start", value=2)
        check(first, 1)
        check(second, 2)
        assert len(fake.batches) == 1


def test_starting_again_without_an_end(serve, fake, caplog):
    with serve(LONG) as running:
        check(ask(running, 1, "start", value=1), 1)
        check(ask(running, 1, "start", value=2), 2)
        assert "sequence 1 of model 'held' starts again without having ended" in caplog.text
        check(ask(running, 1, "end", value=3), 3)
        assert NO_START in ask(running, 1).response().error


def test_a_client_that_disconnects_ends_its_sequence(serve, fake):
    with serve(LONG, max_batch_size=1) as running:
        held = hold(running, fake, 1, "start")
        gone = ask(running, 1)
        running.wait_for_pending("held", 1)
        kept = ask(running, 1)
        running.wait_for_pending("held", 2)
        waiting = ask(running, 2, "start", value=2)
        running.wait_for_pending("held", 3)
        gone.disconnect()
        assert kept.response().error == "[request id: <id_unknown>] Request cancelled"
        running.wait_for_pending("held", 1)
        fake.gate.set()
        check(held, 0)
        check(waiting, 2)  # in the slot that the first has lost
        assert NO_START in ask(running, 1).response().error
        assert len(fake.batches) == 2


def test_requests_of_one_sequence_keep_their_order(serve, fake):
    with serve("oldest { max_candidate_sequences: 2 } " + LONG, TWO) as running:
        held = hold(running, fake, 1, "start")
        calls = []
        for value in range(1, 6):
            calls.append(ask(running, 1, value=value))
            running.wait_for_pending("held", value)
        fake.gate.set()
        held.response()
        for value, call in enumerate(calls, start=1):
            check(call, value)
        seen = [batch["INPUT0"].item() for batch in fake.batches]
        assert seen == [0, 1, 2, 3, 4, 5]  # one at a time, though another instance was free


def test_many_sequences_at_once(tmp_path):
    """Threads that start, continue and end sequences without regard for one another."""
    add_onnx(tmp_path, "total", running_total(), total_config(LONG, more=TWO))
    add_onnx(
        tmp_path,
        "oldest",
        running_total(),
        total_config("oldest { max_candidate_sequences: 3 } " + LONG, more=TWO),
    )
    wrong = []

    def client(running, number):
        for turn in range(6):
            model = ("total", "oldest")[(number + turn) % 2]
            total = 0
            for place, value in enumerate(range(1, 6)):
                flags = [f for f, at in (("start", 0), ("end", 4)) if at == place]
                total += value * number
                got = send(running, model, number, *flags, value=value * number)
                if got["OUTPUT"] != [total] or got["GOT_CORRID"] != [number]:
                    wrong.append((number, turn, place, got))

    with running_server(tmp_path) as running:
        threads = [threading.Thread(target=client, args=(running, n)) for n in range(1, 17)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECS)
            assert not thread.is_alive()
        assert wrong == []
        for model in ("total", "oldest"):
            assert running.statistics(model)["inference_count"] == 16 * 3 * 5
            in_flight = running.model(model).in_flight
            wait_until(lambda count=in_flight: count() == 0, "all is done")


# ---- changing and ending models


def instances(count):
    return {"instance_group": [{"count": count, "kind": "KIND_CPU"}]}


def load(running, tmp_path, count):
    config = running.get("/v2/models/held/config").json
    answer = running.load("held", config=config | instances(count))
    assert answer.status == 200, answer


def test_sequences_survive_a_change_of_instances(serve, fake, tmp_path):
    with serve(LONG, max_batch_size=1, model_control_mode="explicit", load_model=("*",)) as running:
        check(ask(running, 1, "start", value=1), 1)
        load(running, tmp_path, 3)
        assert len(fake.loads) == 1  # the model itself was not loaded again
        check(ask(running, 1, value=2), 2)
        check(ask(running, 2, "start", value=3), 3)  # there is room for more
        assert fake.open_executors == 3
        load(running, tmp_path, 1)
        wait_until(lambda: fake.open_executors == 2, "the free instance has left")
        check(ask(running, 1, value=4), 4)
        check(ask(running, 2, value=5), 5)  # on the instance that is leaving
        check(ask(running, 2, "end", value=6), 6)
        wait_until(lambda: fake.open_executors == 1, "the other has left, too")
        check(ask(running, 1, "end", value=7), 7)


def test_unloading_serves_what_waits(serve, fake):
    with serve(LONG, max_batch_size=1, model_control_mode="explicit", load_model=("*",)) as running:
        held = hold(running, fake, 1, "start")
        calls = [ask(running, 1, value=1), ask(running, 2, "start", value=2)]
        running.wait_for_pending("held", 2)
        fake.gate.set()
        assert running.unload("held").status == 200
        check(held, 0)
        check(calls[0], 1)
        check(calls[1], 2)
        wait_until(lambda: fake.open_models == 0, "it is closed")


def test_a_new_version_does_not_know_the_sequences(serve, fake, tmp_path):
    with serve(LONG, model_control_mode="explicit", load_model=("*",)) as running:
        check(ask(running, 1, "start", value=1), 1)
        config = running.get("/v2/models/held/config").json
        config["max_batch_size"] = 3
        assert running.load("held", config=config).status == 200
        assert NO_START in ask(running, 1).response().error
        check(ask(running, 1, "start", value=2), 2)
        wait_until(lambda: fake.open_models == 1, "the old one is closed")


def test_an_exiting_server_lets_sequences_go_on(serve, fake):
    with serve(LONG) as running:
        check(ask(running, 1, "start", value=1), 1)
        running.server.engine.begin_exit()
        refused = ask(running, 2, "start").response()
        assert refused.status == 503
        assert refused.error == (
            "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
        check(ask(running, 1, value=2), 2)
        check(ask(running, 1, "end", value=3), 3)


# ---- iterative sequences


class Countdown(FakeBackend):
    """Answers with the number of calls that were left, after that many calls."""

    name = "countdown"

    def load(self, context):
        return CountdownModel()


class CountdownModel(LoadedModel):
    def executor(self, placement):
        return CountdownExecutor()


class CountdownExecutor(RequestExecutor):
    def __init__(self):
        self.left = {}

    def execute(self, batch):
        for pending in batch:
            inputs = pending.request.inputs
            if not inputs["READY"].array.item():
                continue
            key = pending.request.correlation_id
            if inputs["START"].array.item():
                self.left[key] = [inputs["IN"].array.item(), 0]
            self.left[key][0] -= 1
            self.left[key][1] += 1
            if self.left[key][0] > 0:
                pending.reschedule()
            else:
                calls = np.full((1, 1), self.left.pop(key)[1], np.int32)
                pending.send([Tensor.from_array("OUT", calls)])


ITERATIVE = """
backend: "countdown"
max_batch_size: 2
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  iterative_sequence: true
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_iterative_sequences(tmp_path, strategy):
    config = ITERATIVE.replace("iterative", STRATEGIES[strategy] + " iterative", 1)
    add_model(tmp_path, "countdown", config + ONE)
    with running_server(tmp_path, backends=BackendRegistry({"countdown": Countdown})) as running:
        numbers = [5, 1, 3, 2, 4]
        calls = [
            Infer().add("IN", np.array([[number]], np.int32)).call(running, "countdown")
            for number in numbers
        ]
        counted = [outputs(call.response())["OUT"].item() for call in calls]
        assert counted == numbers

        def executed():  # what the model answers itself is counted when it has returned
            return running.statistics("countdown")["inference_count"]

        wait_until(lambda: executed() >= len(numbers), "all have been counted")
        assert executed() == len(numbers)


# ---- Python models


STATEFUL = b"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            before = pb_utils.get_input_tensor_by_name(request, "BEFORE").as_numpy()
            tensors = [pb_utils.Tensor(name, before + value) for name in ("OUTPUT", "AFTER")]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""
STATEFUL_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ] }
}
instance_group { kind: KIND_CPU }
"""


@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_state_of_a_python_model(tmp_path, where):
    config = STATEFUL_CONFIG + parameter("python_execution", where)
    add_model(tmp_path, "stateful", config, {"1/model.py": STATEFUL})
    with running_server(tmp_path) as running:
        for total in (2, 4, 6):
            flags = ["start"] if total == 2 else []
            assert send(running, "stateful", 1, *flags, value=2) == {"OUTPUT": [total]}


PATIENT = b"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            if key not in self.left:
                self.left[key] = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0])
            self.left[key] -= 1
            if self.left[key]:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            else:
                del self.left[key]
                tensor = pb_utils.Tensor("OUT", np.array([[key]], np.int32))
                responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_python_model_may_reschedule_a_request(tmp_path, where):
    config = ITERATIVE.replace("countdown", "python").replace(
        "iterative", "oldest { } iterative", 1
    )
    config = config[: config.index("  control_input")] + "}\n" + ONE
    config += parameter("python_execution", where)
    add_model(tmp_path, "patient", config, {"1/model.py": PATIENT})
    with running_server(tmp_path) as running:
        calls = [
            Infer().add("IN", np.array([[number]], np.int32)).call(running, "patient")
            for number in (5, 1, 3)
        ]
        ids = [outputs(call.response())["OUT"].item() for call in calls]
        assert sorted(ids) == [1, 2, 3]  # made up by the server, a sequence for each

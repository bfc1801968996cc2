"""What every format must do, whoever computes: one suite, one server per format."""

from __future__ import annotations

import json
import threading

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http

from shoal.core.dtypes import BY_NAME
from shoal.testing.server import wait_until
from tests.chaos.schedule import long_run
from tests.support.client import Infer, outputs

WIDTH = 4
ROWS = np.array([[1, 2, 3, 4], [0, 5, 6, 7]], np.float32)

MOST_CYCLES = 24
LEFT_BEHIND_MIB = 6  # of three cycles; models weigh six or eight each


def ask(served, name, rows, datatype=""):
    request = Infer().add(served.format.input, rows, datatype, binary=True)
    answer = request.want(served.format.output, binary_data=True).send(served.running, name)
    return outputs(answer)[served.format.output]


def check(served, name, rows, factor):
    assert np.allclose(ask(served, name, rows), served.format.expected(rows, factor), atol=1e-4)


def counted(served, name, requests):
    """The statistics, once they have so many requests: a Python model's are counted when all of
    its batch are answered."""

    def read():
        found = served.running.statistics(name)
        return found if found["inference_stats"]["success"]["count"] == requests else None

    return wait_until(read, f"{requests} requests are counted")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(served, protocol):
    served.scaled("plain")
    library = getattr(tritonclient, protocol)
    client = library.InferenceServerClient(getattr(served.running, f"{protocol}_address"))
    tensor = library.InferInput(served.format.input, ROWS.shape, "FP32")
    tensor.set_data_from_numpy(ROWS)
    answer = client.infer("plain", [tensor]).as_numpy(served.format.output)
    client.close()
    assert np.allclose(answer, served.format.expected(ROWS, 2.0), atol=1e-4)


def test_the_config_is_completed(served):
    served.scaled("plain")
    config = served.running.get("/v2/models/plain/config").json
    assert [tensor["name"] for tensor in config["input"]] == [served.format.input]
    assert served.format.output in [tensor["name"] for tensor in config["output"]]
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert [int(dim) for dim in config["input"][0]["dims"]] == [WIDTH]
    assert config["default_model_filename"] in ("", served.format.filename)


def test_datatypes(served):
    kind = served.format
    for datatype in kind.datatypes:
        config = kind.config(datatype, WIDTH) + "max_batch_size: 8\n"
        name = f"typed_{datatype}"
        served.add(name, config, lambda folder, name=datatype: kind.typed(folder, name))
        served.load(name)
        values = [[1, 0, 1, 0], [0, 1, 0, 1]]
        if datatype == "BYTES":
            rows = np.array([[b"a", b"bc", b"", "é".encode()]] * 2, dtype=object)
        else:
            rows = np.array(values).astype(BY_NAME[datatype].numpy)
        answer = ask(served, name, rows, datatype)
        if kind.same_type:
            assert answer.dtype == rows.dtype, datatype
            assert answer.tolist() == rows.tolist(), datatype
        else:
            assert np.allclose(answer, kind.expected(rows, 1.0)), datatype


def test_requests_are_joined(served):
    more = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 15000000 }"
    served.scaled("joined", more)
    rows = [np.full((1, WIDTH), value, np.float32) for value in range(4)]
    want = served.format.output
    calls = [
        Infer()
        .add(served.format.input, row, binary=True)
        .want(want, binary_data=True)
        .call(served.running, "joined")
        for row in rows
    ]
    for row, call in zip(rows, calls, strict=True):
        answer = outputs(call.response())[want]
        assert np.allclose(answer, served.format.expected(row, 2.0), atol=1e-4)
    statistics = counted(served, "joined", 4)
    assert statistics["inference_count"] == 4
    assert statistics["execution_count"] == 1


def test_versions(served):
    served.scaled("versions", "version_policy { all {} }", versions=(1, 3))
    check(served, "versions/versions/1", ROWS, 2.0)
    check(served, "versions/versions/3", ROWS, 4.0)
    check(served, "versions", ROWS, 4.0)  # the newest


def test_reload_with_a_changed_file(served):
    folder = served.scaled("changing")
    check(served, "changing", ROWS, 2.0)
    served.format.write(folder / "1", 5.5)
    check(served, "changing", ROWS, 2.0)  # until it is told
    served.load("changing")
    check(served, "changing", ROWS, 5.5)


def test_concurrent_instances(served):
    served.scaled("many", "instance_group { kind: KIND_CPU count: 3 }")
    wrong = []

    def client(number):
        for turn in range(8):
            rows = np.full((1 + turn % 3, WIDTH), (number + turn) % 5, np.float32)
            answer = ask(served, "many", rows)
            if not np.allclose(answer, served.format.expected(rows, 2.0), atol=1e-4):
                wrong.append((rows, answer))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(served.running.model("many")._instances._workers) == 3
    assert counted(served, "many", 6 * 8)["inference_count"] == 6 * (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2)


def test_an_error_in_the_model_reaches_the_client(served):
    failing = served.format.failing
    served.scaled("bystander")
    served.add("failing", failing.config, failing.write)
    served.load("failing")

    def send(inputs):
        request = Infer()
        for name, array in inputs.items():
            request.add(name, array, binary=True)
        return request.want(failing.output, binary_data=True).call(served.running, "failing")

    first = outputs(send(failing.good).response())[failing.output]
    for _ in range(3):
        answer = send(failing.bad).response()
        assert answer.status in (400, 500)
        assert failing.says in answer.error
    assert np.array_equal(outputs(send(failing.good).response())[failing.output], first)
    check(served, "bystander", ROWS, 2.0)
    assert served.running.get("/v2/health/ready").status == 200
    statistics = counted(served, "failing", 2)["inference_stats"]
    assert statistics["fail"]["count"] == 3


def test_an_error_does_not_affect_the_rest_of_the_batch(served):
    failing = served.format.failing
    if not failing.together:
        pytest.skip("its requests do not share a batch, or fail together by Triton's rule")
    more = (
        "\ndynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }"
    )
    served.add("mates", failing.config + more, failing.write)
    served.load("mates")
    calls = []
    for inputs in (failing.good, failing.bad, failing.good):
        request = Infer()
        for name, array in inputs.items():
            request.add(name, array, binary=True)
        calls.append(request.want(failing.output, binary_data=True).call(served.running, "mates"))
    answers = [call.response() for call in calls]
    assert sorted(answer.status for answer in answers) == [200, 200, 500]
    assert failing.says in next(answer.error for answer in answers if answer.status == 500)


@pytest.mark.parametrize(
    ("shape", "datatype", "says"),
    [
        ((1, WIDTH + 1), "FP32", "unexpected shape for input"),
        ((1, 1, WIDTH), "FP32", "unexpected shape for input"),
        ((9, WIDTH), "FP32", "batch-size must be <= 8"),
        ((1, WIDTH), "INT32", "data-type is 'INT32', but model"),
    ],
)
def test_wrong_input_is_refused(served, shape, datatype, says):
    served.scaled("plain")
    rows = np.zeros(shape, BY_NAME[datatype].numpy)
    answer = Infer().add(served.format.input, rows, binary=True).send(served.running, "plain")
    assert answer.status == 400
    assert says in answer.error
    check(served, "plain", ROWS, 2.0)


def test_a_wrong_name_is_refused(served):
    served.scaled("plain")
    answer = Infer().add("NOTHING", ROWS, binary=True).send(served.running, "plain")
    assert answer.status == 400
    assert f"allowed inputs are: {served.format.input}" in answer.error


def test_a_wrong_config_is_refused(served):
    if not served.format.checks_names:
        pytest.skip("what its config calls an output is the config's own word")
    config = served.format.config("FP32", WIDTH)
    config += (
        f'max_batch_size: 8 output {{ name: "NO_SUCH" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}'
    )
    served.add("mistaken", config, lambda folder: served.format.write(folder, 2.0))
    answer = served.running.load("mistaken")
    assert answer.status == 400
    assert "unexpected inference output 'NO_SUCH', allowed outputs are:" in answer.error
    assert served.format.output in answer.error


@pytest.mark.parametrize("content", ["garbage", "nothing", "half"])
def test_a_wrong_file_is_refused_at_load(served, content):
    kind = served.format
    if content != "garbage" and kind.name.startswith("python"):
        pytest.skip("an empty file is a Python file")
    config = kind.config("FP32", WIDTH) + "max_batch_size: 8\n"
    folder = served.add("broken", config, lambda folder: kind.write(folder, 2.0))
    file = folder / "1" / kind.filename
    whole = file.read_bytes()
    parts = {"garbage": kind.garbage, "nothing": b"", "half": whole[: len(whole) // 2]}
    file.write_bytes(parts[content])
    answer = served.running.load("broken")
    assert answer.status in (400, 500), answer
    assert f"broken/1/{kind.filename}" in answer.error
    assert json.loads(answer.body).keys() == {"error"}
    file.write_bytes(whole)
    served.load("broken")
    check(served, "broken", ROWS, 2.0)


def test_a_missing_file_is_refused_at_load(served):
    config = served.format.config("FP32", WIDTH) + "max_batch_size: 8\n"
    config += f'default_model_filename: "{served.format.filename}"\n'
    served.add("absent", config)
    answer = served.running.load("absent")
    assert answer.status in (400, 404, 500), answer
    assert served.format.filename in answer.error


@long_run  # of each format; make test has that of ONNX and of Python processes elsewhere
def test_unloading_gives_memory_back(served):
    kind = served.format
    config = kind.config("FP32", kind.large_width) + "max_batch_size: 8\n"
    served.add("large", config, kind.large)
    rows = np.zeros((1, kind.large_width), np.float32)

    def cycle():
        served.load("large")
        ask(served, "large", rows)
        assert served.running.unload("large").status == 200
        return resident_mib()

    # Allocators and compilers keep more and more of what they had, for a while; models that stay
    # behind add up without end.
    readings = [cycle() for _ in range(4)]
    while readings[-1] - readings[-4] >= LEFT_BEHIND_MIB:
        assert len(readings) < MOST_CYCLES, readings
        readings.append(cycle())


def resident_mib():
    """Of this process and those it has started."""
    own = psutil.Process()
    total = 0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / (1 << 20)

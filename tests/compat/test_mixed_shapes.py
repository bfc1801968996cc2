"""Texts of different lengths in one batch, with NVIDIA's own client: padded and ragged models."""

from __future__ import annotations

import queue

import numpy as np
import pytest
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution, parameter

BATCHING = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 20000000 }\n"
PADDED = BATCHING + parameter("padding", "true") + parameter("padding_mask", "attention_mask")
RAGGED = (
    BATCHING
    + """
input { name: "ITEMS" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] }
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS"
              data_type: TYPE_INT32 source_input: "ITEMS" }
batch_output { target_name: "DOUBLED" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "ITEMS" }
"""
)
LENGTHS = (3, 8, 1, 5, 13, 8, 2, 6)  # eight rows: the batch is full and goes at once


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "alone", onnx_models.attention(), "max_batch_size: 8")
    for mode in EXECUTION_MODES:
        add_onnx(folder, f"padded_{mode}", onnx_models.attention(), PADDED + execution(mode))
        add_onnx(folder, f"ragged_{mode}", onnx_models.ragged_sums(), RAGGED + execution(mode))
    with running_server(folder) as running:
        yield running


@pytest.fixture(params=EXECUTION_MODES)
def mode(request):
    return request.param


def tensor(kit, name, array, datatype):
    made = kit.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text(kit, length, *, mask):
    ids = (np.arange(length, dtype=np.int64)[None] * 7 + length) % 32
    inputs = [tensor(kit, "input_ids", ids, "INT64")]
    if mask:
        inputs.append(tensor(kit, "attention_mask", np.ones_like(ids), "INT64"))
    return inputs


def all_at_once(client, kit, model, requests):
    """Each request's answer; they are sent without waiting for one another."""
    pending = [later(client, kit, model, inputs) for inputs in requests]
    return [answer() for answer in pending]


def later(client, kit, model, inputs):
    """Send a request; what is returned waits for its answer."""
    if kit is httpclient:
        return client.async_infer(model, inputs).get_result
    answers = queue.SimpleQueue()
    client.async_infer(model, inputs, callback=lambda result, error: answers.put((result, error)))

    def wait():
        result, error = answers.get(timeout=WAIT_SECS)
        assert error is None
        return result

    return wait


def executions(running, model):
    return running.metric("nv_inference_exec_count", model=model, version="1")


@pytest.mark.parametrize("mask", [True, False], ids=["mask sent", "mask made"])
def test_padded_outputs_are_those_of_each_text_alone(running, client, kit, mode, mask):
    alone = [client.infer("alone", text(kit, length, mask=True)) for length in LENGTHS]
    model = f"padded_{mode}"
    before = executions(running, model)
    requests = [text(kit, length, mask=mask) for length in LENGTHS]
    answers = all_at_once(client, kit, model, requests)
    assert executions(running, model) == before + 1
    for length, right, answer in zip(LENGTHS, alone, answers, strict=True):
        states = answer.as_numpy("states")
        assert states.shape == (1, length, 8)
        np.testing.assert_allclose(states, right.as_numpy("states"), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            answer.as_numpy("pooled"), right.as_numpy("pooled"), rtol=1e-5, atol=1e-5
        )


def test_texts_of_different_lengths_that_disagree_are_refused(client, kit):
    inputs = [
        tensor(kit, "input_ids", np.zeros((1, 4), np.int64), "INT64"),
        tensor(kit, "attention_mask", np.ones((1, 3), np.int64), "INT64"),
    ]
    with pytest.raises(InferenceServerException) as caught:
        client.infer("padded_threads", inputs)
    assert "the inputs disagree about the length 'sequence'" in str(caught.value)


def test_ragged_outputs_are_each_requests_own(running, client, kit, mode):
    items = [np.arange(length, dtype=np.float32)[None] + length for length in LENGTHS]
    model = f"ragged_{mode}"
    before = executions(running, model)
    requests = [[tensor(kit, "ITEMS", array, "FP32")] for array in items]
    answers = all_at_once(client, kit, model, requests)
    assert executions(running, model) == before + 1
    for array, answer in zip(items, answers, strict=True):
        assert answer.as_numpy("SUM").tolist() == [[float(array.sum())]]
        assert answer.as_numpy("DOUBLED").tolist() == (array * 2).tolist()


def test_padded_inputs_and_cut_outputs_in_shared_memory(client, kit, mode, memory_key):
    """Eight rows fill a batch: seven as usual, one through a region."""
    states_bytes = 3 * 8 * 4
    region = shm.create_shared_memory_region("padded", memory_key, 1024)
    try:
        client.register_system_shared_memory("padded", memory_key, 1024)
        ids = np.array([[4, 5, 6]], np.int64)
        shm.set_shared_memory_region(region, [ids])
        given = kit.InferInput("input_ids", [1, 3], "INT64")
        given.set_shared_memory("padded", ids.nbytes)
        wanted = kit.InferRequestedOutput("states")
        wanted.set_shared_memory("padded", states_bytes, offset=256)
        mask = tensor(kit, "attention_mask", np.ones_like(ids), "INT64")
        plain = [tensor(kit, "input_ids", ids, "INT64"), mask]
        right = client.infer("alone", plain).as_numpy("states")

        seven = tensor(kit, "input_ids", np.zeros((7, 9), np.int64), "INT64")
        other = later(client, kit, f"padded_{mode}", [seven])
        client.infer(f"padded_{mode}", [given], outputs=[wanted])
        assert other().as_numpy("states").shape == (7, 9, 8)
        found = shm.get_contents_as_numpy(region, np.float32, [1, 3, 8], offset=256)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(region)

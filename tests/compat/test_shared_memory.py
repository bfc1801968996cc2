"""Tensors through shared memory, with NVIDIA's own client."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_onnx

ROW = np.arange(16, dtype=np.int32).reshape(1, 16)
TEXTS = np.array([[b"eel", "größer".encode()]], dtype=object)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_onnx(folder, "echo", onnx_models.identity("BYTES"), "max_batch_size: 8")
    with running_server(folder) as running:
        yield running


@pytest.fixture
def client(client):
    """As in the other files; afterwards no region stays registered."""
    yield client
    client.unregister_system_shared_memory()


def registered(client):
    """The names of the regions the server knows."""
    status = client.get_system_shared_memory_status()
    return [row["name"] for row in status] if isinstance(status, list) else list(status.regions)


@pytest.fixture
def region(memory_key):
    made = shm.create_shared_memory_region("tensors", memory_key, 1024)
    yield made
    shm.destroy_shared_memory_region(made)


def test_inputs_and_outputs(client, kit, region, memory_key):
    client.register_system_shared_memory("tensors", memory_key, 1024)
    shm.set_shared_memory_region(region, [ROW, ROW * 2])
    inputs = [kit.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    for n, tensor in enumerate(inputs):
        tensor.set_shared_memory("tensors", 64, offset=64 * n)
    outputs = [kit.InferRequestedOutput(f"OUTPUT{n}") for n in range(2)]
    outputs[0].set_shared_memory("tensors", 64, offset=256)
    answer = client.infer("sum", inputs, outputs=outputs)
    written = shm.get_contents_as_numpy(region, np.int32, [1, 16], offset=256)
    assert (written == ROW * 3).all()
    assert (answer.as_numpy("OUTPUT1") == -ROW).all()
    assert registered(client) == ["tensors"]


def test_strings(client, kit, region, memory_key):
    client.register_system_shared_memory("tensors", memory_key, 1024)
    shm.set_shared_memory_region(region, [serialize_byte_tensor(TEXTS)])
    size = sum(4 + len(text) for text in TEXTS.ravel())
    tensor = kit.InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_shared_memory("tensors", size)
    answer = client.infer("echo", [tensor])
    assert answer.as_numpy("OUTPUT0").tolist() == TEXTS.tolist()


@pytest.mark.usefixtures("region")
@pytest.mark.parametrize(
    ("size", "offset", "text"),
    [
        (64, 1024, "Invalid offset for shared memory region"),
        (64, 1000, "Invalid offset \\+ byte size for shared memory region"),
        (32, 0, "input byte size mismatch"),
    ],
)
def test_wrong_bounds(client, kit, memory_key, size, offset, text):
    client.register_system_shared_memory("tensors", memory_key, 1024)
    inputs = [kit.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    for tensor in inputs:
        tensor.set_shared_memory("tensors", size, offset=offset)
    with pytest.raises(InferenceServerException, match=text):
        client.infer("sum", inputs)
    client.unregister_system_shared_memory("tensors")
    assert registered(client) == []  # no lease was left behind


@pytest.mark.usefixtures("region")
def test_an_output_that_does_not_fit(client, kit, memory_key):
    client.register_system_shared_memory("tensors", memory_key, 1024)
    inputs = [kit.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    for tensor in inputs:
        tensor.set_data_from_numpy(ROW)
    output = kit.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("tensors", 32)
    with pytest.raises(InferenceServerException, match="should be at least 64 bytes to hold"):
        client.infer("sum", inputs, outputs=[output])


def test_unknown_regions(client, kit):
    tensor = kit.InferInput("INPUT0", [1, 16], "INT32")
    tensor.set_shared_memory("nobody", 64)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        client.infer("sum", [tensor])
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        client.register_system_shared_memory("tensors", "/nobody_made_this", 64)

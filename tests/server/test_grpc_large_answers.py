"""Several large answers at once on one connection: owed to the client, not held against it."""

from __future__ import annotations

import queue

import numpy as np
import tritonclient.grpc as grpcclient

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx, execution

COUNT = 24
ELEMENTS = 600_000  # 2.4 MB


def test_a_client_that_reads_slowly_gets_all_of_them(tmp_path):
    model = onnx_models.identity("FP32", (ELEMENTS,), batch=False)
    add_onnx(tmp_path, "same", model, execution("threads"))
    sent = np.arange(ELEMENTS, dtype=np.float32)
    tensor = grpcclient.InferInput("INPUT0", [ELEMENTS], "FP32")
    tensor.set_data_from_numpy(sent)
    arrived = queue.Queue()
    with (
        running_server(tmp_path) as running,
        grpcclient.InferenceServerClient(running.grpc_address) as client,
    ):
        for _ in range(COUNT):
            client.async_infer(
                "same", [tensor], callback=lambda result, error: arrived.put((result, error))
            )
        for _ in range(COUNT):
            result, error = arrived.get(timeout=WAIT_SECS)
            assert error is None, str(error)
            assert np.array_equal(result.as_numpy("OUTPUT0"), sent)

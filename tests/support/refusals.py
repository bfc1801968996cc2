"""Requests that a server must refuse, the models they are sent to, and how a refusal looks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.repositories import add_onnx, execution

ECHOED = ("FP32", "BYTES", "BOOL", "UINT8", "INT64", "UINT64")


def add_models(folder: Path) -> None:
    """ "sum" in two versions, and "echo_FP32" and so on, all executed on the event loop."""
    config = "max_batch_size: 8 dynamic_batching { }" + execution("loop")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32", dims=(2,)), config, versions=(1, 2))
    for datatype in ECHOED:
        add_onnx(folder, f"echo_{datatype}", onnx_models.identity(datatype), config)


def valid_request() -> Infer:
    """A request that "sum" answers."""
    infer = Infer().add("INPUT0", np.array([[1, 2]], np.int32))
    return infer.add("INPUT1", np.array([[3, 4]], np.int32))


def check_still_serving(running, caplog) -> None:
    """Nothing surprised the server, whatever a test did, and it serves the next client."""
    logged = caplog.get_records("call")
    assert [record.getMessage() for record in logged if record.levelname == "ERROR"] == []
    assert outputs(valid_request().send(running, "sum"))["OUTPUT0"].tolist() == [[4, 6]]
    assert running.faults == []


def check_refused(answer, *texts, status=400) -> None:
    """The error is a sentence that has all of `texts`."""
    assert answer.status == status, answer
    for text in texts:
        assert text in answer.error
    assert len(answer.error.split()) > 3, f"no sentence: {answer.error}"


def one_input(datatype, shape, data, **more) -> bytes:
    """The JSON of a request for an echo model, whatever it may hold."""
    entry = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data, **more}
    return json.dumps({"inputs": [entry]}).encode()

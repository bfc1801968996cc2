"""The model that every peer without an ONNX Runtime of its own serves, and its plainest form.

    request body --Model.read--> feeds --ONNX Runtime--> outputs --Model.write--> response body

The plain form is the tensors' bytes one after the other, in the model's order; W2 posts a JPEG.
What to serve stands in the environment, so that worker processes find it wherever they start:

    BENCH_MODEL    path of the ONNX file     BENCH_THREADS  threads of one ONNX Runtime session
    BENCH_PICTURE  1 when requests are JPEG  BENCH_WORKERS  processes or replicas to start
    BENCH_PORT     where to listen           BENCH_JSON     1 when requests are JSON lists by name
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

Array = np.ndarray[Any, Any]

SIDE = 224
MEAN = (123.675, 116.28, 103.53)
SCALE = 1 / 57.63
DTYPES = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float)": np.float32}


def setting(name: str, default: str = "") -> str:
    """What the benchmark put into the environment."""
    return os.environ.get(f"BENCH_{name}", default)


def picture(data: bytes) -> Array:
    """A JPEG as the classifier wants it: FP32[1, 3, 224, 224]."""
    import cv2

    cv2.setNumThreads(1)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    blob: Array = cv2.dnn.blobFromImage(pixels, SCALE, (SIDE, SIDE), MEAN, swapRB=True)
    return blob


class Model:
    """One ONNX Runtime session on the CPU and the plain form of its requests."""

    def __init__(self, path: str = "", threads: int = 0, pictures: bool | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or int(setting("THREADS", "1"))
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            path or setting("MODEL"), options, providers=["CPUExecutionProvider"]
        )
        self.pictures = setting("PICTURE") == "1" if pictures is None else pictures
        self.json = setting("JSON") == "1"
        self.inputs = [
            (one.name, DTYPES[one.type], tuple(one.shape[1:])) for one in self.session.get_inputs()
        ]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def read(self, body: bytes) -> dict[str, Array]:
        """The feeds of one request."""
        if self.pictures:
            return {self.inputs[0][0]: picture(body)}
        feeds, start = {}, 0
        for name, dtype, shape in self.inputs:
            count = int(np.prod(shape))
            feeds[name] = np.frombuffer(body, dtype, count, start).reshape(1, *shape)
            start += feeds[name].nbytes
        return feeds

    def run(self, feeds: dict[str, Array]) -> list[Array]:
        """The outputs in the model's order."""
        outputs: list[Array] = self.session.run(self.outputs, feeds)
        return outputs

    def answer(self, body: bytes) -> bytes:
        """One request to its response, plain or JSON."""
        if self.json:
            return self._answer_json(body)
        return b"".join(output.tobytes() for output in self.run(self.read(body)))

    def _answer_json(self, body: bytes) -> bytes:
        """Arrays by name, both ways."""
        import orjson

        values = orjson.loads(body)
        feeds = {name: np.array(values[name], dtype) for name, dtype, _ in self.inputs}
        outputs = dict(zip(self.outputs, self.run(feeds), strict=True))
        return orjson.dumps(outputs, option=orjson.OPT_SERIALIZE_NUMPY)

    def answer_many(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Several plain requests in one execution."""
        if len(bodies) == 1:
            return [self.answer(bodies[0])]
        each = [self.read(body) for body in bodies]
        joined = {name: np.concatenate([one[name] for one in each]) for name, _, _ in self.inputs}
        outputs = self.run(joined)
        return [b"".join(output[row].tobytes() for output in outputs) for row in range(len(bodies))]

"""The models that NVIDIA's clients are tried with: small ones, of each kind the clients tell apart.

add_sub    ONNX, batches, two INT32[16]: the demo's
twice      Python, no batches, FP32[-1]
parameters Python, batches, returns the request's parameters as text
picky      Python, batches, fails for numbers below zero
slow       identity, batches, 30 seconds
words      Python, decoupled, no batches: one response for each word
steps      Python, decoupled, batches: COUNT responses for each row
count_down a function with `yield`
"""

from __future__ import annotations

import shutil
from pathlib import Path

DEMO_MODELS = Path(__file__).resolve().parents[2] / "demo" / "shoal_demo" / "models"

_HEAD = """\
import json

import numpy as np
import triton_python_backend_utils as utils


def value(request, name):
    return utils.get_input_tensor_by_name(request, name).as_numpy()


def response(**arrays):
    return utils.InferenceResponse([utils.Tensor(name, array) for name, array in arrays.items()])


class TritonPythonModel:
    def execute(self, requests):
"""
_COUPLED = """\
        return [self.answer(request) for request in requests]

"""
_DECOUPLED = """\
        for request in requests:
            sender = request.get_response_sender()
            for each in self.answers(request):
                sender.send(each)
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

"""
_CODE = {
    "twice": _COUPLED
    + """\
    def answer(self, request):
        return response(OUTPUT=value(request, "INPUT") * 2)
""",
    "parameters": _COUPLED
    + """\
    def answer(self, request):
        rows = len(value(request, "INPUT"))
        return response(OUTPUT=np.array([[request.parameters().encode()]] * rows, dtype=object))
""",
    "picky": _COUPLED
    + """\
    def answer(self, request):
        numbers = value(request, "INPUT")
        if (numbers < 0).any():
            raise utils.TritonModelException("a number below zero")
        return response(OUTPUT=numbers)
""",
    "words": _DECOUPLED
    + """\
    def answers(self, request):
        for word in value(request, "TEXT")[0].split():
            if word == b"bad":
                raise utils.TritonModelException("a bad word")
            yield response(WORD=np.array([word], dtype=object))
""",
    "steps": _DECOUPLED
    + """\
    def answers(self, request):
        rows = value(request, "COUNT")
        for step in range(int(rows.max())):
            yield response(STEP=np.full_like(rows, step))
""",
}
_DECOUPLED_POLICY = "model_transaction_policy { decoupled: true }\n"
_CONFIGS = {
    "twice": ("", [("INPUT", "FP32", -1)], [("OUTPUT", "FP32", -1)]),
    "parameters": (
        "max_batch_size: 4",
        [("INPUT", "INT32", 1)],
        [("OUTPUT", "STRING", 1)],
    ),
    "picky": (
        "max_batch_size: 4 dynamic_batching { }",
        [("INPUT", "INT32", 2)],
        [("OUTPUT", "INT32", 2)],
    ),
    "words": (_DECOUPLED_POLICY, [("TEXT", "STRING", 1)], [("WORD", "STRING", 1)]),
    "steps": (
        _DECOUPLED_POLICY + "max_batch_size: 4",
        [("COUNT", "INT32", 1)],
        [("STEP", "INT32", 1)],
    ),
}
_SLOW = """\
backend: "identity"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
parameters { key: "execute_delay_ms" value { string_value: "30000" } }
"""
_FUNCTION = """\
from collections.abc import Iterator

import shoal


@shoal.model
def count_down(start: int) -> Iterator[int]:
    yield from range(start, 0, -1)
"""


def write(folder: Path) -> tuple[Path, Path]:
    """Lay the models out in `folder`; returns the repository and the file with the function."""
    models = folder / "models"
    shutil.copytree(DEMO_MODELS / "add_sub", models / "add_sub")
    for name, (more, inputs, outputs) in _CONFIGS.items():
        version = models / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_HEAD + _CODE[name], encoding="utf-8")
        (models / name / "config.pbtxt").write_text(
            f'backend: "python"\n{more}\n'
            + "".join(_tensor("input", *each) for each in inputs)
            + "".join(_tensor("output", *each) for each in outputs),
            encoding="utf-8",
        )
    (models / "slow" / "1").mkdir(parents=True)
    (models / "slow" / "config.pbtxt").write_text(_SLOW, encoding="utf-8")
    app = folder / "app.py"
    app.write_text(_FUNCTION, encoding="utf-8")
    return models, app


def _tensor(kind: str, name: str, datatype: str, dims: int) -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'

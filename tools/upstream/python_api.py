"""Programs for Triton's in-process Python API: `import tritonserver`.

They start their servers themselves; the one that is started for each example serves nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from upstream.example import Block, Client, Edited, Example, Place, StandIn
from upstream.stand_ins import hugging_face

_TUTORIAL = "Triton_Inference_Server_Python_API"
_README = f"{_TUTORIAL}/README.md"
_PYTEST = "python -m pytest -q -p no:cacheprovider"


# Modules with the names that the examples import, which call nothing.
_RAY = """
def deployment(**options):
    def decorated(kind):
        kind.bind = staticmethod(lambda *arguments: None)
        return kind
    return decorated

def ingress(app):
    return lambda kind: kind
"""
_STUBS = {
    "ray/__init__.py": "",
    "ray/serve/__init__.py": _RAY,
    "ray/serve/handle.py": "class DeploymentHandle: pass",
    "confluent_kafka/__init__.py": "class KafkaError: pass\nclass KafkaException(Exception): pass",
    "confluent_kafka/serialization.py": "class StringSerializer: pass",
    "gcn_kafka.py": "class Consumer: pass\nclass Producer: pass",
}
_PAINTER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        picture = np.full((1, 8, 8, 3), 200, np.float32)
        tensors = [pb_utils.Tensor("generated_image", picture)]
        return [pb_utils.InferenceResponse(tensors) for _ in requests]
"""
_PAINTER_CONFIG = """
backend: "python"
input { name: "prompt" data_type: TYPE_STRING dims: [ -1, -1 ] }
output { name: "generated_image" data_type: TYPE_FP32 dims: [ -1, -1, -1, 3 ] }
"""


def _write(place: Place, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = place.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _without_ray(**environment: str) -> StandIn:
    def make(place: Place) -> None:
        _write(place, _STUBS)
        place.environment.update(environment)

    return StandIn("Ray and Kafka are not started: the deployment is called itself", make)


def _paint(place: Place) -> None:
    folder = "own/stable_diffusion_xl"
    _write(place, {f"{folder}/1/model.py": _PAINTER, f"{folder}/config.pbtxt": _PAINTER_CONFIG})


def _bert_words(folder: Path) -> None:
    from transformers import BertTokenizerFast

    vocabulary = folder / "words.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\nworld", "utf-8")
    BertTokenizerFast(str(vocabulary)).save_pretrained(folder)


def _mock_models(place: Place) -> None:
    """Let their tests find their own modules, their mock models and this Python."""
    paths = ["openai", os.environ.get("PYTHONPATH", "")]
    place.environment.update(
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )


EXAMPLES = (
    Example(
        name="core/python/test/test_api",
        clone="core",
        files={"tests": "python/test"},
        clients=(Client(f"{_PYTEST} tests/test_api.py -k 'not leak'", (r"13 passed, 5 skipped",)),),
        needs=("tritonserver", "pytest_asyncio"),
        remark="What is skipped needs a GPU; the tests of leaks, which take minutes, are left out",
    ),
    Example(
        name="tutorials/Python_API",
        clone="tutorials",
        files={
            "models/identity": f"{_TUTORIAL}/identity-models/identity",
            "1.py": Edited(
                Block(_README, '"/workspace/identity-models"'), {"/workspace/identity-": ""}
            ),
            "2.py": Block(_README, 'server.model("identity")'),
            "3.py": Block(_README, "to_string_array"),
        },
        clients=(
            Client(
                """python -c "for n in '123': exec(open(n + '.py').read())" """,
                (r"\[\['hello world!'\]\]",),
            ),
        ),
        needs=("tritonserver",),
    ),
    Example(
        name="tutorials/Python_API/rayserve",
        clone="tutorials",
        files={
            "own/identity": f"{_TUTORIAL}/identity-models/identity",
            "deployment.py": f"{_TUTORIAL}/examples/rayserve/tritonserver_deployment.py",
        },
        clients=(
            Client(
                'python -c "import deployment; served = deployment.TritonDeployment();'
                " print(served.test('Theodore')); served.generate('a pigeon', 'pigeon.jpg')\"",
                ("stable_diffusion_xl.*READY", "Theodore"),
            ),
        ),
        stand_ins=(
            _without_ray(S3_BUCKET_URL="own"),
            StandIn("a grey picture in place of Stable Diffusion", _paint, ("PIL",)),
        ),
        needs=("tritonserver", "fastapi", "torch", "requests"),
    ),
    Example(
        name="tutorials/Python_API/kafka-io",
        clone="tutorials",
        files={
            "own": f"{_TUTORIAL}/examples/kafka-io/models",
            "utils": f"{_TUTORIAL}/examples/kafka-io/utils",
            "deployment.py": f"{_TUTORIAL}/examples/kafka-io/tritonserver_deployment.py",
        },
        clients=(
            Client(
                'python -c "import deployment;'
                " print(deployment.TritonKafkaEndpoint().infer(['hello world']))\"",
                (r'"input_ids": \[\[\d+, \d+', '"name": "tokenizer", "version": 1'),
            ),
        ),
        stand_ins=(
            _without_ray(MODEL_NAME="tokenizer", MODEL_INPUT_NAME="TEXT", MODEL_REPOSITORY="own"),
            hugging_face("bert-base-cased", "a tokenizer with six words", _bert_words),
        ),
        needs=("tritonserver", "fastapi", "certifi"),
    ),
    Example(
        name="server/python/openai",
        clone="server",
        files={"openai": "python/openai"},
        clients=(
            Client(
                f"{_PYTEST} --rootdir=openai openai/tests/test_observability.py"
                " openai/tests/test_request_size.py",
                (r"\d+ passed",),
            ),
        ),
        stand_ins=(StandIn("their own mock models in place of a language model", _mock_models),),
        needs=("tritonserver", "fastapi<0.130", "httpx<0.28", "partial_json_parser"),
        remark="The OpenAI frontend with two files of its tests",
    ),
)

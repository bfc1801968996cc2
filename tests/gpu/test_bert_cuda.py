"""A BERT of transformers on a GPU, as TorchScript and as torch.export: the same answers.

    python -m pytest tests/gpu -q

Needs PyTorch with CUDA and transformers; left out where there is no GPU.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from shoal.testing.server import running_server
    from tests.support import torch_models
    from tests.support.client import Infer, outputs

DEVICE = "cuda"
TOKENS = 24
CONFIG = """backend: "pytorch"
max_batch_size: 16
dynamic_batching { }
instance_group [ { kind: KIND_GPU count: 2 } ]
input [ { name: "ids" data_type: TYPE_INT64 dims: [ 24 ] },
        { name: "mask" data_type: TYPE_INT64 dims: [ 24 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
GRAPHS = "optimization { cuda { graphs: true } }\n"
HALF = 'parameters { key: "HALF_PRECISION" value { string_value: "fp16" } }\n'


class Classifier(torch.nn.Module):
    """Token ids and mask to logits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.BertConfig(
            **sizes, intermediate_size=128, vocab_size=500, num_labels=3, initializer_range=0.2
        )
        self.bert = transformers.BertForSequenceClassification(config)

    def forward(self, ids, mask):
        return self.bert(input_ids=ids, attention_mask=mask).logits


def rows_of(seed):
    """Some rows, of which the last tokens are masked."""
    random = np.random.default_rng(seed)
    ids = random.integers(1, 500, (1 + seed % 3, TOKENS), np.int64)
    lengths = random.integers(4, TOKENS + 1, len(ids))
    return ids, (np.arange(TOKENS) < lengths[:, None]).astype(np.int64)


@pytest.mark.timeout(240)
def test_both_forms_answer_as_transformers(tmp_path):
    network = Classifier().eval().to(DEVICE)
    example = tuple(torch.ones(2, TOKENS, dtype=torch.int64, device=DEVICE) for _ in range(2))
    ways = {"plain": "", "half_graphs": HALF + GRAPHS}
    for form, (way, more) in itertools.product(("script", "export"), ways.items()):
        folder = tmp_path / f"{form}_{way}"
        if form == "script":
            torch_models.trace(network, example, folder / "1" / "model.pt")
        else:
            torch_models.export(network, example, folder / "1" / "model.pt2")
        (folder / "config.pbtxt").write_text(CONFIG + more)
    with running_server(tmp_path) as running:

        def ask(case):
            name, seed = case
            ids, mask = rows_of(seed)
            with torch.inference_mode():
                given = (torch.from_numpy(array).to(DEVICE) for array in (ids, mask))
                expected = network(*given).cpu().numpy()
            request = Infer().add("ids", ids, binary=True).add("mask", mask, binary=True)
            found = outputs(request.want("OUTPUT__0", binary_data=True).send(running, name))
            tolerance = 0.05 if "half" in name else 1e-3
            np.testing.assert_allclose(found["OUTPUT__0"], expected, atol=tolerance, rtol=tolerance)

        names = [folder.name for folder in tmp_path.iterdir()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, itertools.product(names, range(12))))

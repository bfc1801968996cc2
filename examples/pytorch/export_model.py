"""Write a small PyTorch model into a repository, in three formats that Shoal serves.

    pip install 'shoal[torch]'
    python examples/pytorch/export_model.py flower_models
    shoal serve flower_models

The model tells three kinds of flowers apart by four lengths. Its weights are made up.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

CONFIG = """\
backend: "pytorch"
max_batch_size: 32
input { name: "lengths" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "flowers.txt" }
dynamic_batching { }
"""
MODULE = '''\
"""The same model as code, with its weights in model.pt."""

import torch


class Flowers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, lengths):
        return torch.softmax(self.layer(lengths), dim=1)
'''


class Flowers(torch.nn.Module):
    """Four lengths in centimetres to three probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        with torch.no_grad():
            self.layer.weight.copy_(
                torch.tensor(
                    [[0.4, 1.4, -2.2, -1.0], [0.4, -1.0, 0.5, -1.2], [-1.2, -1.2, 2.3, 3.0]]
                )
            )
            self.layer.bias.copy_(torch.tensor([0.3, 1.3, -4.0]))

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        """One row of probabilities for each row of lengths."""
        return torch.softmax(self.layer(lengths), dim=1)


def main(repository: Path) -> None:
    model = Flowers().eval()
    for name in ("exported", "script", "eager"):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)

    # 1. A torch.export program describes itself: it needs no config.pbtxt.
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        model, (torch.zeros(2, 4),), dynamic_shapes={"lengths": {0: batch}}
    )
    torch.export.save(program, repository / "exported" / "1" / "model.pt2")

    # 2. TorchScript does not describe its tensors, so it needs a config.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch recommends torch.export
        torch.jit.script(model).save(str(repository / "script" / "1" / "model.pt"))

    # 3. A Python module with its weights.
    (repository / "eager" / "1" / "model.py").write_text(MODULE)
    torch.save(model.state_dict(), repository / "eager" / "1" / "model.pt")
    for name, runtime in (("script", ""), ("eager", 'runtime: "model.py"\n')):
        (repository / name / "config.pbtxt").write_text(CONFIG + runtime)
        (repository / name / "flowers.txt").write_text("setosa\nversicolor\nvirginica\n")
    print(f"{repository} is ready: shoal serve {repository}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flower_models"))

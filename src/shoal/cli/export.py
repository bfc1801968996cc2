"""`shoal export`: creates a model folder from a transformers checkpoint on disk."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from shoal.cli import export_embedding
from shoal.cli.parser import CommandParser, help_requested, integer

HELP = """\
usage: shoal export KIND CHECKPOINT_FOLDER OUTPUT_MODEL_FOLDER [OPTION ...]

Make the folder of a model that Shoal serves from a checkpoint of transformers on disk: ONNX files,
tokenizer.json, task.json and config.pbtxt. Nothing is downloaded.

Kinds:
  blip    captions for photos (BlipForConditionalGeneration)
  gpt2    texts (GPT2LMHeadModel)
  sentence-embedding
          vectors for texts (sentence-transformers); see
          shoal export sentence-embedding --help

Examples:
  shoal export blip blip-image-captioning-base models/captions
  shoal serve models
  curl localhost:8000/v2/models/captions/caption -F image=@cat.jpg

Options:
  --max-sequences N  texts that are generated at the same time, each beam counting as one
                     [default: 16]
  --single-file      blip: one ONNX file that runs once per token (pixel_values, input_ids,
                     attention_mask -> logits), for clients with their own loop
  --force            replace an existing folder

It needs torch, transformers and onnx: pip install 'shoal[export]'
"""


def run(words: Sequence[str]) -> int:
    """Run `shoal export`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if words and words[0] == export_embedding.KIND:
        return export_embedding.run(words[1:])
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    chosen = _parse(words)

    from shoal.export import folder

    export = folder.export_blip if chosen.kind == "blip" else folder.export_gpt2
    options = folder.ExportOptions(chosen.max_sequences, chosen.single_file, chosen.force)
    target = Path(chosen.target)
    for path in export(Path(chosen.source), target, options):
        print(f"  {path.stat().st_size / 1e6:10.2f} MB  {path.relative_to(target)}")
    print(f"wrote '{target}'; serve it with: shoal serve {target.parent}")
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal export")
    parser.add_argument("kind", choices=["blip", "gpt2", export_embedding.KIND], metavar="KIND")
    parser.add_argument("source", metavar="CHECKPOINT_FOLDER")
    parser.add_argument("target", metavar="OUTPUT_MODEL_FOLDER")
    parser.add_argument("--max-sequences", type=integer(1, 4096), default=16)
    parser.add_argument("--single-file", action="store_true")
    parser.add_argument("--force", action="store_true")
    return parser.parse_args(list(words))

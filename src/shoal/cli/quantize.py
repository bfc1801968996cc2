"""`shoal quantize`: a smaller version of a model, compared with the original."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.parser import CommandParser, help_requested, integer

if TYPE_CHECKING:
    from shoal.quantize.comparison import Agreement, Measured
    from shoal.quantize.run import Quantized

_KINDS = ("dynamic", "static", "fp16")
HELP = """\
usage: shoal quantize MODEL_FOLDER [OPTION ...]

Convert an ONNX model to INT8 or FP16 by ONNX Runtime, compare the result with the original on data,
and write it beside the original as a new version. The original stays. The new version appears in
one step; a server that polls the repository switches to it by itself.

Examples:
  shoal quantize models/sentiment                         INT8, compared on a few sentences
  shoal quantize models/sentiment --data reviews.txt
  shoal quantize models/photos --kind static --data photos/
  shoal quantize models/photos --data trace.json --dry-run

Options:
  --kind dynamic|static|fp16  dynamic: INT8 weights, scales of activations found while running;
                              static: INT8 with scales found with --data beforehand, quicker for
                              convolutions; fp16: half precision, for GPUs [default: dynamic]
  --data PATH                 data to compare and to find scales with; may be repeated:
                                FILE.txt    a text per line, for models with a tokenizer.json
                                FOLDER      photos, for models with one input of photos
                                FILE.npz    arrays by the names of the inputs, a row per sample
                                FILE.json   as for shoal perf --input-data, or a trace that was
                                            recorded with --trace-config=level=TENSORS
                              [default: a few sentences for models with a tokenizer.json, else
                              random numbers]
  --samples N                 use at most this many samples [default: 100]
  --version N                 the version to convert [default: the highest]
  --min-agreement X           write nothing if the cosine similarity of an output is lower
                              [default: 0]
  --reduce-range              7-bit weights, for processors without VNNI where 8 bits lose accuracy
  --dry-run                   compare only

It needs onnx: pip install onnx
"""


def run(words: Sequence[str]) -> int:
    """Run `shoal quantize`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    chosen = _parse(words)

    from shoal.quantize.run import QuantizeOptions, quantize

    folder = Path(chosen.folder)
    options = QuantizeOptions(
        chosen.kind,
        tuple(chosen.data),
        chosen.samples,
        chosen.version,
        chosen.reduce_range,
        chosen.min_agreement,
        chosen.dry_run,
    )
    found = quantize(folder, options)
    print(table(found, chosen.kind))
    if found.after is None:
        print("nothing was written (--dry-run)")
    else:
        print(f"wrote '{found.after}'; version {found.before} stays. To go back, delete the folder")
    return 0


def table(found: Quantized, kind: str) -> str:
    """Size, speed and agreement of both versions, for people to read."""
    comparison = found.comparison
    before, after = comparison.before, comparison.after
    new = "(new)" if found.after is None else found.after.name
    lines = [
        (
            f"{'version':<8}{'kind':<10}{'size':>11}{'time':>12}   agreement, {comparison.samples} "
            f"samples"
        ),
        f"{found.before:<8}{'original':<10}{_figures(before)}",
        f"{new:<8}{kind:<10}{_figures(after)}   {_ratios(before, after)}",
    ]
    lines += [f"{'':<41}   {_agreement(one)}" for one in comparison.agreements]
    return "\n".join(lines)


def _figures(measured: Measured) -> str:
    return f"{measured.size_bytes / 1e6:>8.2f} MB{measured.milliseconds:>9.3f} ms"


def _ratios(before: Measured, after: Measured) -> str:
    size = before.size_bytes / max(1, after.size_bytes)
    speed = before.milliseconds / max(1e-9, after.milliseconds)
    return f"{size:.1f} times smaller, {speed:.1f} times the speed on this CPU with one thread"


def _agreement(one: Agreement) -> str:
    best = "" if one.same_best is None else f", same highest element in {one.same_best:.1%}"
    return (
        f"{one.output}: cosine at least {one.cosine:.4f}, largest difference {one.largest:.3g}"
        f"{best}"
    )


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal quantize")
    parser.add_argument("folder", metavar="MODEL_FOLDER")
    parser.add_argument("--kind", choices=_KINDS, default="dynamic")
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--samples", type=integer(1, 1_000_000), default=100)
    parser.add_argument("--version", type=integer(1), default=0)
    parser.add_argument("--min-agreement", type=_share, default=0.0)
    parser.add_argument("--reduce-range", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(list(words))


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found '{text}'")
    return value

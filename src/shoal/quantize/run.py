"""From a model's folder to a new version of it: converted, compared, and moved into place.

    models/m/1/model.onnx --> models/.m-quantize-…/model.onnx --compare--> models/m/2

The new version appears in one step, when it is complete: a server that polls never sees a part of
it. Older versions stay as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config.model import ModelConfig
from shoal.config.pbtxt import parse_pbtxt
from shoal.errors import InvalidArgument, NotFound, Unsupported
from shoal.perf.model_facts import TensorFacts
from shoal.quantize.comparison import Comparison, compare, open_session
from shoal.quantize.conversion import convert
from shoal.quantize.samples import Feed, SampleReader
from shoal.repository.layout import version_folders

_TYPES = {
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "int64": "INT64",
    "int32": "INT32",
    "int16": "INT16",
    "int8": "INT8",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "bool": "BOOL",
    "string": "BYTES",
}


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """The options of a run."""

    kind: str = "dynamic"
    data: Sequence[Path] = ()
    samples: int = 100
    version: int = 0  # 0: the highest
    reduce_range: bool = False
    lowest_agreement: float = 0.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Quantized:
    """What a run has found, and the folder that it has written."""

    comparison: Comparison
    before: int
    after: Path | None  # None: nothing was written


def quantize(folder: Path, options: QuantizeOptions) -> Quantized:
    """Write a new version of the model in `folder`. If this raises, nothing is written."""
    config = _config(folder)
    versions = version_folders(folder)
    number = options.version or max(versions, default=0)
    if number not in versions:
        raise NotFound(
            f"'{folder}' has no version {number}"
            if options.version
            else f"'{folder}' has no versions: name the folder of a model, such as models/resnet"
        )
    source = versions[number] / (config.default_model_filename or "model.onnx")
    if not source.is_file() or source.suffix != ".onnx":
        raise Unsupported(
            f"'{source}' is not an ONNX file: only models of one ONNX file can be converted"
        )
    samples = _samples(folder, source, config, options)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-quantize-", dir=folder.parent))
    try:
        target = scratch / source.name
        convert(source, target, options.kind, samples, reduce_range=options.reduce_range)
        comparison = compare(source, target, samples)
        if comparison.lowest < options.lowest_agreement:
            raise InvalidArgument(
                f"the converted model agrees with version {number} by {comparison.lowest:.4f}, "
                f"less than {options.lowest_agreement:g}: nothing was written. Try another --kind, "
                f"or static scales from more data"
            )
        if options.dry_run:
            return Quantized(comparison, number, None)
        _copy_others(versions[number], scratch, source)
        scratch.chmod(0o755)
        after = folder / str(max(versions) + 1)
        scratch.rename(after)
        return Quantized(comparison, number, after)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _config(folder: Path) -> ModelConfig:
    if not folder.is_dir():
        raise NotFound(f"there is no folder '{folder}': name the folder of a model")
    path = folder / "config.pbtxt"
    if not path.is_file():
        return ModelConfig(name=folder.name)
    return parse_pbtxt(path.read_text("utf-8"), str(path))


def _samples(
    folder: Path, source: Path, config: ModelConfig, options: QuantizeOptions
) -> list[Feed]:
    inputs = open_session(source).get_inputs()
    # A model whose config is completed by the server has a batch if its first dimension is open.
    batched = config.max_batch_size > 0 or all(
        tensor.shape and not isinstance(tensor.shape[0], int) for tensor in inputs
    )
    facts = []
    for tensor in inputs:
        name = tensor.type.removeprefix("tensor(").removesuffix(")")
        if name not in _TYPES:
            raise Unsupported(f"the input '{tensor.name}' is a {tensor.type}, not a tensor")
        dims = tuple(size if isinstance(size, int) else -1 for size in tensor.shape)
        facts.append(TensorFacts(tensor.name, _TYPES[name], dims[1:] if batched else dims))
    reader = SampleReader(folder, facts, 1 if batched else 0)
    if options.data:
        found = [feed for path in options.data for feed in reader.read(path, options.samples)]
        return found[: options.samples]
    if options.kind == "static":
        raise InvalidArgument(
            "static scales are found with real data: give some with --data, or use --kind dynamic"
        )
    return reader.generated()


def _copy_others(version: Path, made: Path, source: Path) -> None:
    """Copy what the version has besides its model."""
    for path in version.iterdir():
        if path.name == source.name or path.name.startswith(f"{source.name}."):
            continue
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, made / path.name)

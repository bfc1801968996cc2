"""The data of requests: zeros, random values, the files of a folder, or steps in JSON.

    --input-data --> streams of steps --rows--> one request's tensors

A step contains one row of every input; a batch consists of consecutive steps. A stream is the data
of one kind of sequence; models without sequences use all streams in order.
"""

from __future__ import annotations

import base64
import binascii
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core import bytes_tensor
from shoal.core.dtypes import BF16, BOOL, BYTES, FP16, DataType, from_name
from shoal.errors import InvalidArgument
from shoal.perf.model_facts import ModelFacts, TensorFacts
from shoal.perf.requests import Content
from shoal.wire import json_text

ZERO, RANDOM = "zero", "random"


class StepValue(NamedTuple):
    """One row of one tensor."""

    raw: bytes
    shape: tuple[int, ...]


Step = dict[str, StepValue]
Stream = list[Step]


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The data options of the command line."""

    sources: tuple[str, ...] = (RANDOM,)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    string_length: int = 128
    string_data: str | None = None
    seed: int = 0


@dataclass(slots=True)
class InputData:
    """All data of a run."""

    streams: list[Stream]
    expected: list[Stream] = field(default_factory=list)  # expected outputs by step; may be empty
    given: bool = False  # by the user, not generated


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `name:1,2,3`. Raises InvalidArgument."""
    name, colon, numbers = text.rpartition(":")
    sizes = numbers.split(",")
    if not colon or not name or not all(size.isascii() and size.isdigit() for size in sizes):
        raise InvalidArgument(
            f"--shape takes the name of an input and its sizes without the batch, such as "
            f"data:3,224,224; found '{text}'"
        )
    shape = tuple(map(int, sizes))
    if 0 in shape:
        raise InvalidArgument(f"--shape={text}: sizes are 1 or more")
    return name, shape


def load(facts: ModelFacts, options: DataOptions) -> InputData:
    """The data for these options and this model. Raises InvalidArgument."""
    known = {tensor.name: tensor for tensor in facts.inputs}
    for name, shape in options.shapes.items():
        if name not in known:
            raise InvalidArgument(
                f"--shape names input '{name}', which model '{facts.name}' does not have; its "
                f"inputs are {_names(facts.inputs)}"
            )
        _check_shape(known[name], shape, "--shape")
    first = options.sources[0]
    if first in (ZERO, RANDOM):
        if len(options.sources) > 1:
            raise InvalidArgument(
                "--input-data may be repeated for JSON files only; zero and random are single"
            )
        return InputData([[_generated(facts, options, zero=first == ZERO)]])
    streams: list[Stream] = []
    expected: list[Stream] = []
    for source in options.sources:
        path = Path(source)
        if path.is_dir():
            streams.append([_from_folder(facts, options, path)])
        elif path.is_file():
            more, outputs = _from_json(facts, options, path)
            streams += more
            expected += outputs
        else:
            raise InvalidArgument(
                f"--input-data={source} is neither zero nor random, and no such file or folder "
                f"exists"
            )
    return InputData(streams, expected, given=True)


def rows(facts: ModelFacts, stream: Stream, first: int, batch: int) -> list[Content]:
    """One request: `batch` steps from `first` on, cyclically.

    Raises InvalidArgument when steps of different shapes would share a batch.
    """
    contents = []
    steps = [stream[(first + row) % len(stream)] for row in range(batch)]
    for tensor in facts.inputs:
        if tensor.name not in steps[0]:
            continue  # optional and omitted
        values = [step[tensor.name] for step in steps if tensor.name in step]
        if len(values) < batch or len({value.shape for value in values}) > 1:
            raise InvalidArgument(
                f"steps {first} to {first + batch - 1} have different shapes of input "
                f"'{tensor.name}', so they cannot share a batch; use -b 1"
            )
        shape = (batch, *values[0].shape) if facts.max_batch else values[0].shape
        raw = b"".join(value.raw for value in values)
        contents.append(Content(tensor.name, tensor.datatype, shape, raw))
    return contents


# ---- generated


def _generated(facts: ModelFacts, options: DataOptions, *, zero: bool) -> Step:
    chance = np.random.default_rng(options.seed)
    step: Step = {}
    for tensor in facts.inputs:
        if tensor.optional and tensor.name not in options.shapes:
            continue
        shape = _shape(tensor, options)
        step[tensor.name] = StepValue(_elements(tensor, shape, options, chance, zero=zero), shape)
    return step


def _elements(
    tensor: TensorFacts,
    shape: tuple[int, ...],
    options: DataOptions,
    chance: np.random.Generator,
    *,
    zero: bool,
) -> bytes:
    datatype = from_name(tensor.datatype)
    count = math.prod(shape)
    if datatype is BYTES:
        if options.string_data is not None:
            return bytes_tensor.encode([options.string_data] * count)
        letters = np.array(list(string.ascii_letters + string.digits))
        texts = ("".join(chance.choice(letters, options.string_length)) for _ in range(count))
        return bytes_tensor.encode(texts)
    if zero:
        return bytes(count * datatype.itemsize)
    if datatype is BF16:
        bits = chance.random(count, np.float32).view(np.uint32) >> 16
        return bits.astype("<u2").tobytes()
    kind = datatype.numpy
    if datatype is BOOL:
        return chance.integers(0, 2, count).astype(kind).tobytes()
    if kind.kind in "iu":
        return chance.bytes(count * datatype.itemsize)
    return chance.random(count).astype(kind).tobytes()


# ---- from folders


def _from_folder(facts: ModelFacts, options: DataOptions, folder: Path) -> Step:
    """One step: a file for each input, with its name."""
    step: Step = {}
    for tensor in facts.inputs:
        file = folder / tensor.name
        if not file.is_file():
            if tensor.optional:
                continue
            raise InvalidArgument(
                f"--input-data={folder} has no file for input '{tensor.name}'; put its values for "
                f"one row there, as raw bytes (texts: one per line)"
            )
        raw = file.read_bytes()
        if tensor.datatype == "BYTES":
            lines = raw.decode("utf-8", "surrogateescape").split("\n")
            lines = lines[:-1] if lines[-1] == "" else lines
            elements = [line.rstrip("\r").encode("utf-8", "surrogateescape") for line in lines]
            shape = _shape(tensor, options, len(elements))
            _check_count(tensor, shape, len(elements), str(file))
            step[tensor.name] = StepValue(bytes_tensor.encode(elements), shape)
            continue
        size = from_name(tensor.datatype).itemsize
        shape = _shape(tensor, options, len(raw) // size)
        if len(raw) != math.prod(shape) * size:
            raise InvalidArgument(
                f"{file} has {len(raw)} bytes; input '{tensor.name}' of shape {list(shape)} and "
                f"{tensor.datatype} takes {math.prod(shape) * size}"
            )
        step[tensor.name] = StepValue(raw, shape)
    return step


# ---- from JSON


def _from_json(
    facts: ModelFacts, options: DataOptions, path: Path
) -> tuple[list[Stream], list[Stream]]:
    try:
        document = json_text.loads(path.read_bytes())
    except InvalidArgument as error:
        raise InvalidArgument(f"--input-data={path} is not JSON: {error.message}") from None
    except OSError as error:
        raise InvalidArgument(f"--input-data={path} cannot be read: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise InvalidArgument(
            f'--input-data={path} has no list "data"; write {{"data": [{{"NAME": [values]}}, …]}}'
        )
    streams = _streams(document["data"], facts.inputs, options, path, "data")
    if not streams or not all(streams):
        raise InvalidArgument(f"--input-data={path}: a stream of data has no steps")
    for stream in streams:
        for number, step in enumerate(stream):
            missing = [t.name for t in facts.inputs if t.name not in step and not t.optional]
            if missing:
                raise InvalidArgument(
                    f"--input-data={path}: step {number} has no data for input '{missing[0]}'"
                )
    found = document.get("validation_data")
    if found is None:
        return streams, []
    return streams, _streams(found, facts.outputs, options, path, "validation_data")


def _streams(
    found: Any,
    tensors: Sequence[TensorFacts],
    options: DataOptions,
    path: Path,
    member: str,
) -> list[Stream]:
    """A list of steps is one stream; a list of lists is several."""
    if not isinstance(found, list):
        raise InvalidArgument(f'--input-data={path}: "{member}" must be a list')
    several = bool(found) and all(isinstance(each, list) for each in found)
    made = []
    for stream in found if several else [found]:
        steps = []
        for number, step in enumerate(stream):
            if not isinstance(step, dict):
                raise InvalidArgument(
                    f'--input-data={path}: entry {number} of "{member}" must be an object with a '
                    f"value for each tensor, or all entries lists of such objects"
                )
            steps.append(_step(step, tensors, options, f"{path}: {member}[{number}]"))
        made.append(steps)
    return made


def _step(
    step: Mapping[str, Any], tensors: Sequence[TensorFacts], options: DataOptions, where: str
) -> Step:
    known = {tensor.name: tensor for tensor in tensors}
    made: Step = {}
    for name, value in step.items():
        if name not in known:
            raise InvalidArgument(
                f"{where}: the model has no tensor '{name}'; it has {_names(tensors)}"
            )
        made[name] = _value(known[name], value, options, f"{where}.{name}")
    return made


def _value(tensor: TensorFacts, value: Any, options: DataOptions, where: str) -> StepValue:
    shape: tuple[int, ...] | None = None
    if isinstance(value, dict):
        if "shape" in value:
            try:
                shape = tuple(int(size) for size in value["shape"])
            except (TypeError, ValueError):
                raise InvalidArgument(f'{where}: "shape" is a list of sizes') from None
            _check_shape(tensor, shape, where)
        if "b64" in value:
            return _from_base64(tensor, value["b64"], shape, options, where)
        if "content" not in value:
            raise InvalidArgument(f'{where}: an object needs "content" or "b64"')
        value = value["content"]
    elements = _flat(value)
    shape = shape or _shape(tensor, options, len(elements))
    _check_count(tensor, shape, len(elements), where)
    return StepValue(_packed(tensor, elements, where), shape)


def _from_base64(
    tensor: TensorFacts,
    text: Any,
    shape: tuple[int, ...] | None,
    options: DataOptions,
    where: str,
) -> StepValue:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidArgument(f'{where}: "b64" is not valid Base64') from None
    datatype = from_name(tensor.datatype)
    if datatype is BYTES:
        shape = shape or _shape(tensor, options, 1)
        if math.prod(shape) == 1:
            raw = bytes_tensor.encode([raw])  # the only element
        else:
            bytes_tensor.decode(raw, math.prod(shape), where)
        return StepValue(raw, shape)
    shape = shape or _shape(tensor, options, len(raw) // datatype.itemsize)
    if len(raw) != math.prod(shape) * datatype.itemsize:
        raise InvalidArgument(
            f"{where}: {len(raw)} bytes do not fill the shape {list(shape)} of {datatype}"
        )
    return StepValue(raw, shape)


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if not any(isinstance(element, list) for element in value):
        return value
    return [element for part in value for element in _flat(part)]


def _packed(tensor: TensorFacts, elements: list[Any], where: str) -> bytes:
    datatype = from_name(tensor.datatype)
    try:
        if datatype is BYTES:
            return bytes_tensor.encode([str(element) for element in elements])
        return _numbers(datatype, elements)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{where}: these values are not {datatype}: {error}") from None


def _numbers(datatype: DataType, elements: list[Any]) -> bytes:
    if datatype is BF16:
        bits = np.asarray(elements, np.float32).view(np.uint32) >> 16
        return bits.astype("<u2").tobytes()
    if datatype is FP16 or datatype.numpy.kind == "f":
        return np.asarray(elements, np.float64).astype(datatype.numpy).tobytes()
    if any(isinstance(element, float) and not element.is_integer() for element in elements):
        raise ValueError("a fraction instead of a whole number")
    return np.array([int(element) for element in elements], datatype.numpy).tobytes()


# ---- shapes


def _shape(tensor: TensorFacts, options: DataOptions, count: int | None = None) -> tuple[int, ...]:
    """The shape to send; a single dynamic size is computed from `count` elements."""
    if tensor.name in options.shapes:
        return options.shapes[tensor.name]
    if not tensor.dynamic:
        return tensor.shape
    fixed = math.prod(size for size in tensor.shape if size >= 0)
    unknown = sum(size < 0 for size in tensor.shape)
    if count and fixed and unknown == 1 and count % fixed == 0:
        return tuple(count // fixed if size < 0 else size for size in tensor.shape)
    example = ",".join("1" if size < 0 else str(size) for size in tensor.shape)
    raise InvalidArgument(
        f"input '{tensor.name}' has a dynamic dim (its shape is {list(tensor.shape)}), so its size "
        f"must be given: --shape {tensor.name}:{example}"
    )


def _check_shape(tensor: TensorFacts, shape: tuple[int, ...], where: str) -> None:
    fits = len(shape) == len(tensor.shape) and all(
        declared < 0 or declared == size for declared, size in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        raise InvalidArgument(
            f"{where}: the shape {list(shape)} does not fit '{tensor.name}', which is "
            f"{list(tensor.shape)} without the batch (-1 is any size)"
        )


def _check_count(tensor: TensorFacts, shape: tuple[int, ...], count: int, where: str) -> None:
    if math.prod(shape) != count:
        raise InvalidArgument(
            f"{where}: {count} values for '{tensor.name}', whose shape {list(shape)} takes "
            f"{math.prod(shape)}"
        )


def _names(tensors: Sequence[TensorFacts]) -> str:
    return ", ".join(f"'{tensor.name}'" for tensor in tensors) or "none"

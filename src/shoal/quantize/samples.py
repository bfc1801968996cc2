"""The data that versions are compared on: given files, recorded requests, or generated.

inputs.npz | texts.txt | photos/ | perf's JSON | trace.json with tensors  -->  one feed each
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core import dtypes
from shoal.errors import InvalidArgument
from shoal.perf import data as perf_data
from shoal.perf.model_facts import ModelFacts, TensorFacts

Feed = dict[str, np.ndarray]

_RECORDED = "TENSOR_QUEUE_INPUT"  # the activity of a trace's inputs
_PHOTOS = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"))
_IDS, _MASK = "input_ids", "attention_mask"
_GENERATED = 16
_USUAL_LENGTH = 16  # of dimensions that may have any
# For models that read texts, where no data is given.
_SENTENCES = (
    "A shoal of fish swims past the old boat.",
    "The train to the coast leaves at noon and is never late.",
    "What a fine day!",
    "Prices rose by two per cent in March, and the bank expects no change before summer.",
    "Where do herring spend the winter?",
    "This is by far the worst soup that I have ever had.",
)


class SampleReader:
    """Reads samples for a model: its folder has the tokenizer or the settings of photos."""

    def __init__(self, folder: Path, inputs: Sequence[TensorFacts], max_batch: int) -> None:
        self._folder = folder
        self._inputs = inputs
        self._facts = ModelFacts(folder.name, "", max_batch, tuple(inputs), ())

    def generated(self) -> list[Feed]:
        """Sentences for models with a tokenizer, else random numbers."""
        if any(tensor.name == _IDS for tensor in self._inputs):
            if (self._folder / "tokenizer.json").is_file():
                return self._texts(_SENTENCES)
            raise InvalidArgument(
                "the model reads tokens, which cannot be made up: give data with --data"
            )
        return [self._random(seed) for seed in range(_GENERATED)]

    def read(self, source: Path, most: int) -> list[Feed]:
        """At most `most` samples of a file or folder. Raises InvalidArgument."""
        found: list[Feed]
        if source.is_dir():
            photos = sorted(path for path in source.iterdir() if path.suffix.lower() in _PHOTOS)
            found = self._photos(photos[:most]) if photos else self._of_perf(source)
        elif not source.is_file():
            raise InvalidArgument(f"--data={source}: there is no such file or folder")
        elif source.suffix == ".npz":
            found = self._arrays(source)
        elif source.suffix == ".txt":
            lines = source.read_text("utf-8").splitlines()
            found = self._texts([line for line in lines if line.strip()][:most])
        else:
            found = self._recorded(source) or self._of_perf(source)
        if not found:
            raise InvalidArgument(f"--data={source} has no data")
        return found[:most]

    # ---- kinds of sources

    def _arrays(self, source: Path) -> list[Feed]:
        with np.load(source, allow_pickle=False) as arrays:
            missing = [tensor.name for tensor in self._inputs if tensor.name not in arrays]
            if missing:
                raise InvalidArgument(f"--data={source} has no array '{missing[0]}'")
            whole = {tensor.name: arrays[tensor.name] for tensor in self._inputs}
        counts = {len(array) for array in whole.values()}
        if len(counts) != 1:
            raise InvalidArgument(f"--data={source}: the arrays have different numbers of rows")
        return [
            {name: self._typed(name, array[row : row + 1]) for name, array in whole.items()}
            for row in range(counts.pop())
        ]

    def _texts(self, texts: Sequence[str]) -> list[Feed]:
        path = self._folder / "tokenizer.json"
        if not path.is_file() or not any(tensor.name == _IDS for tensor in self._inputs):
            raise InvalidArgument(
                "texts are for models with a tokenizer.json in their folder and an input input_ids"
            )
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self._longest())
        feeds = []
        for one in tokenizer.encode_batch(list(texts)):
            rows = {_IDS: one.ids, _MASK: [1] * len(one.ids), "token_type_ids": one.type_ids}
            unknown = [tensor.name for tensor in self._inputs if tensor.name not in rows]
            if unknown:
                raise InvalidArgument(f"the input '{unknown[0]}' is not made from texts")
            names = [tensor.name for tensor in self._inputs]
            feeds.append({name: self._typed(name, np.array([rows[name]])) for name in names})
        return feeds

    def _longest(self) -> int:
        path = self._folder / "task.json"
        settings = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return int(settings.get("max_length", 512))

    def _photos(self, photos: Sequence[Path]) -> list[Feed]:
        from shoal.tasks.images.preparation import ImagePreparation
        from shoal.tasks.settings import TaskSettings

        if len(self._inputs) != 1:
            raise InvalidArgument("photos are for models with one input")
        tensor = self._inputs[0]
        datatype = dtypes.from_name(tensor.datatype)
        prepare = ImagePreparation.of(TaskSettings.of(self._folder), tensor.shape, datatype)
        return [{tensor.name: prepare(photo.read_bytes(), str(photo))[None]} for photo in photos]

    def _recorded(self, source: Path) -> list[Feed]:
        """The requests of a trace with tensors; none if it is another JSON file."""
        try:
            events = json.loads(source.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--data={source} cannot be read: {error}") from None
        if type(events) is not list:
            return []
        requests: dict[Any, Feed] = {}
        for event in events:
            if type(event) is dict and event.get("activity") == _RECORDED:
                tensor = event["tensor"]
                if any(tensor["name"] == known.name for known in self._inputs):
                    feed = requests.setdefault(event["id"], {})
                    feed[tensor["name"]] = self._typed(tensor["name"], _array(tensor))
        needed = {tensor.name for tensor in self._inputs}
        whole = [feed for feed in requests.values() if feed.keys() == needed]
        if not whole:
            raise InvalidArgument(
                f"--data={source} has no whole request of this model: record some with "
                f"--trace-config=level=TENSORS"
            )
        return whole

    def _of_perf(self, source: Path) -> list[Feed]:
        """As `shoal perf --input-data` reads it."""
        found = perf_data.load(self._facts, perf_data.DataOptions(sources=(str(source),)))
        return [feed for stream in found.streams for feed in self._feeds_of(stream)]

    def _feeds_of(self, stream: perf_data.Stream) -> Iterator[Feed]:
        for step in range(len(stream)):
            yield {
                content.name: np.frombuffer(
                    content.raw, dtypes.from_name(content.datatype).numpy
                ).reshape(content.shape)
                for content in perf_data.rows(self._facts, stream, step, 1)
            }

    def _random(self, seed: int) -> Feed:
        chance = np.random.default_rng(seed)
        feed: Feed = {}
        for tensor in self._inputs:
            dims = [_USUAL_LENGTH if size < 0 else size for size in tensor.shape]
            shape = (1, *dims) if self._facts.max_batch else tuple(dims)
            kind = dtypes.from_name(tensor.datatype).numpy
            if kind.kind == "f":
                feed[tensor.name] = chance.standard_normal(shape).astype(kind)
            elif kind.kind in "iub":
                feed[tensor.name] = chance.integers(0, 2, shape).astype(kind)
            else:
                raise InvalidArgument(
                    f"the input '{tensor.name}' has texts, which cannot be made up: give data with "
                    f"--data"
                )
        return feed

    def _typed(self, name: str, array: np.ndarray) -> np.ndarray:
        datatype = next(tensor.datatype for tensor in self._inputs if tensor.name == name)
        kind = dtypes.from_name(datatype).numpy
        return np.ascontiguousarray(array.astype(kind, copy=False))


def _array(tensor: Mapping[str, str]) -> np.ndarray:
    """A tensor of a trace, whose elements are one line of numbers."""
    kind = dtypes.from_name(tensor["dtype"]).numpy
    if kind.kind not in "fiub":
        raise InvalidArgument(f"the recorded tensor '{tensor['name']}' has no numbers")
    words = tensor["data"].split(",")
    if kind.kind == "b":
        values = np.array([word.strip().lower() in ("1", "true") for word in words])
    else:
        values = np.array(words, np.float64 if kind.kind == "f" else np.int64)
    return values.astype(kind).reshape([int(size) for size in tensor["shape"].split(",")])

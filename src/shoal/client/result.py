"""The result of one request: arrays by output name, decoded on first access.

result["prob"] -> numpy array        result.top_k("prob", 3) -> per row, Label(score, index, name)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.client.errors import InvalidInput, ProtocolError
from shoal.client.inputs import decoded
from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument

FINAL = "triton_final_response"


class Label(NamedTuple):
    """One class of a classification."""

    score: float
    index: int  # type: ignore[assignment]  # tuple has a method of that name
    name: str = ""


class Output:
    """One output as it was received."""

    __slots__ = ("array", "datatype", "name", "parameters", "raw", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: Sequence[int],
        raw: Buffer | None = None,
        array: np.ndarray | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = tuple(shape)
        self.raw = raw  # None: the elements are JSON or in shared memory
        self.array = array
        self.parameters = parameters or {}

    def __repr__(self) -> str:
        return f"Output({self.name!r}, {self.datatype}, {list(self.shape)})"


Labels = Callable[["Result", str], Sequence[str]]


class Result(Mapping[str, np.ndarray]):
    """The response to one request, as a mapping from output name to array.

    Arrays may be views of the received bytes. Text is `bytes` in object arrays; bfloat16 is
    returned as float32.
    """

    __slots__ = ("_labels", "id", "model_name", "model_version", "outputs", "parameters", "raw")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        outputs: dict[str, Output],
        *,
        id: str = "",
        parameters: Mapping[str, Any] | None = None,
        raw: Buffer = b"",
    ) -> None:
        self.id = id
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.parameters = parameters or {}
        self.raw = raw  # the body of the HTTP response, or the protobuf message
        self._labels: Labels | None = None

    def __getitem__(self, name: str) -> np.ndarray:
        """The output `name`; KeyError lists the outputs."""
        output = self._output(name)
        array = output.array
        if array is None:
            try:
                array = decoded(
                    output.datatype, output.shape, output.raw or b"", f"output '{name}'"
                )
            except InvalidArgument as error:
                raise ProtocolError(f"the server's response is malformed: {error}") from None
            output.array = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        listed = ", ".join(
            f"{output.name}: {output.datatype} {list(output.shape)}"
            for output in self.outputs.values()
        )
        return f"Result({self.model_name!r} version {self.model_version!r}, {{{listed}}})"

    @property
    def final(self) -> bool:
        """Whether this is the last response to its request, on a stream."""
        return bool(self.parameters.get(FINAL, True))

    def top_k(
        self, name: str, k: int = 1, labels: Sequence[str] | None = None
    ) -> list[list[Label]]:
        """The `k` best classes of each row of the output `name`, best first.

        Works on scores, and on classifications requested with `infer(…, classes={name: k})`. For
        scores the names are `labels`, or the model's own: a `Client` requests them once,
        with the first inputs it sent to the model; an `AsyncClient` has them after
        `await client.labels(result, name)`. A class without a name has an empty one.
        """
        if k < 1:
            raise InvalidInput(f"top_k gives the best 1 or more classes, found {k}")
        output = self._output(name)
        array = self[name]
        if output.datatype == "BYTES":
            rows = array.reshape(1, -1) if array.ndim < 2 else array.reshape(array.shape[0], -1)
            return [[_parsed(text, name) for text in row[:k]] for row in rows]
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"output '{name}' is of datatype {output.datatype}: no scores")
        from shoal.wire.classification import highest

        scores = array.reshape(1, -1) if array.ndim < 2 else array.reshape(array.shape[0], -1)
        names = labels if labels is not None else self._names(name)
        return [
            [
                Label(row[index].item(), index, names[index] if index < len(names) else "")
                for index in highest(row, min(k, row.size))
            ]
            for row in scores
        ]

    def _names(self, name: str) -> Sequence[str]:
        return () if self._labels is None else self._labels(self, name)

    def _output(self, name: str) -> Output:
        try:
            return self.outputs[name]
        except KeyError:
            there = ", ".join(f"'{output}'" for output in self.outputs) or "none"
            raise KeyError(f"there is no output '{name}'; there are {there}") from None


def _parsed(text: Any, name: str) -> Label:
    """A label of `score:index[:name]`, as the classification extension writes them."""
    try:
        score, index, *rest = bytes(text).decode().split(":", 2)
        value = float(score)
        return Label(value, int(index), rest[0] if rest else "")
    except (ValueError, TypeError):
        raise InvalidInput(
            f"output '{name}' contains text, not a classification; request one with "
            f"classes={{'{name}': 3}}"
        ) from None

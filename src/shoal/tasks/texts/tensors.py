"""The inputs of a model that reads tokens, and how they are filled.

[[101, 7592, 102], [101, 102]]  -->  input_ids, attention_mask, token_type_ids [2, 3]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.core.dtypes import FP16, FP32, FP64, INT32, INT64
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError
from shoal.tasks.settings import TaskSettings

IDS, MASK, KINDS = "input_ids", "attention_mask", "token_type_ids"
_ROWS_WITHOUT_LIMIT = 32


class TokenRow(NamedTuple):
    """One text, or a pair of them, as the model reads it."""

    ids: Sequence[int]
    types: Sequence[int] = ()  # the token types; empty: all are 0
    truncated: bool = False
    offsets: Sequence[tuple[int, int]] = ()  # of each token in the text, where a task needs them
    words: Sequence[int | None] = ()  # the number of each token's word; None: a special token


@dataclass(frozen=True, slots=True)
class TextTensors:
    """The model's inputs and output. `width` is 0 if rows may have any length."""

    inputs: tuple[TensorSpec, ...]
    output: str
    size: int  # the output's last dimension; -1 if the model does not declare it
    per_token: bool  # whether the output has a row for each token
    most_rows: int
    width: int

    @classmethod
    def of(
        cls, signature: Signature, settings: TaskSettings, task: str, preferred: Sequence[str]
    ) -> TextTensors:
        """The tensors of a model. `preferred` are names of outputs, the best first.

        Reads: output. Raises ConfigError if the model does not read tokens.
        """
        for name, spec in signature.inputs.items():
            if name not in (IDS, MASK, KINDS) and not spec.optional:
                raise _unfit(task, "input", f"the model has an input '{name}'")
            if name in (IDS, MASK, KINDS) and spec.datatype not in (INT32, INT64):
                raise _unfit(task, "input", f"'{name}' is {spec.datatype.name}, not INT64 or INT32")
        if IDS not in signature.inputs:
            raise _unfit(task, "input", "the model has no input 'input_ids'")
        ids = signature.inputs[IDS].dims
        batch = () if signature.max_batch_size else ids[:1]
        if len(ids) != len(batch) + 1 or (batch and batch[0] != -1):
            raise _unfit(
                task, "input", f"'input_ids' has the dims {list(ids)}, not a row of tokens"
            )
        name = _chosen(signature, settings, preferred)
        dims = signature.outputs[name].dims[len(batch) :]
        if len(dims) not in (1, 2) or signature.outputs[name].datatype not in (FP16, FP32, FP64):
            raise _unfit(task, "output", f"'{name}' is neither a vector nor one for each token")
        return cls(
            inputs=tuple(signature.inputs[n] for n in (IDS, MASK, KINDS) if n in signature.inputs),
            output=name,
            size=dims[-1],
            per_token=len(dims) == 2,
            most_rows=signature.max_batch_size or _ROWS_WITHOUT_LIMIT,
            width=max(0, ids[-1]),
        )

    @property
    def masked(self) -> bool:
        """Whether the model has a mask for padding tokens."""
        return any(spec.name == MASK for spec in self.inputs)

    def arrays(self, rows: Sequence[TokenRow], pad_token: int) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs for some texts, as wide as the longest of them or as the model requires."""
        shape = (len(rows), self.width or max(len(row.ids) for row in rows))
        made: dict[str, np.ndarray[Any, Any]] = {}
        for spec in self.inputs:
            array = np.zeros(shape, spec.datatype.numpy)
            if spec.name == IDS:
                array[:] = pad_token
                for filled, row in zip(array, rows, strict=True):
                    filled[: len(row.ids)] = row.ids
            elif spec.name == MASK:
                for filled, row in zip(array, rows, strict=True):
                    filled[: len(row.ids)] = 1
            else:
                for filled, row in zip(array, rows, strict=True):
                    filled[: len(row.types)] = row.types
            made[spec.name] = array
        return made


def _chosen(signature: Signature, settings: TaskSettings, preferred: Sequence[str]) -> str:
    named = settings.text("output")
    if named and named not in signature.outputs:
        settings.wrong(
            "output",
            f"the model has no output '{named}'",
            f"Write one of {', '.join(signature.outputs)}",
        )
    known = [name for name in preferred if name in signature.outputs]
    return named or next(iter(known), next(iter(signature.outputs)))


def _unfit(task: str, field: str, message: str) -> ConfigError:
    return ConfigError(
        message,
        file="config.pbtxt",
        field=field,
        fix=f"The task '{task}' needs an encoder: input_ids, and if the model has them "
        "attention_mask and token_type_ids, to a vector or to one for each token",
    )

"""The encoder's tensors, and how they are filled with token ids.

[[101, 7592, 102], [101, 102]]  -->  input_ids, attention_mask, token_type_ids [2, 3]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.dtypes import FP16, FP32, FP64, INT32, INT64
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError
from shoal.tasks.settings import TaskSettings

IDS, MASK, KINDS = "input_ids", "attention_mask", "token_type_ids"
_EMBEDDINGS = ("sentence_embedding", "embedding", "last_hidden_state", "token_embeddings")
_ROWS_WITHOUT_LIMIT = 32


@dataclass(frozen=True, slots=True)
class EncoderTensors:
    """The model's inputs and output. `width` is 0 if rows may have any length."""

    inputs: tuple[TensorSpec, ...]
    output: str
    size: int  # of a vector; -1 if the model does not declare it
    per_token: bool  # whether the output has a vector for each token
    most_rows: int
    width: int

    @classmethod
    def of(cls, signature: Signature, settings: TaskSettings) -> EncoderTensors:
        """The tensors of a model. Raises ConfigError if it is not an encoder."""
        for name, spec in signature.inputs.items():
            if name not in (IDS, MASK, KINDS) and not spec.optional:
                raise _unfit("input", f"the model has an input '{name}'")
            if name in (IDS, MASK, KINDS) and spec.datatype not in (INT32, INT64):
                raise _unfit("input", f"'{name}' is {spec.datatype.name}, not INT64 or INT32")
        if IDS not in signature.inputs:
            raise _unfit("input", "the model has no input 'input_ids'")
        ids = signature.inputs[IDS].dims
        batch = () if signature.max_batch_size else ids[:1]
        if len(ids) != len(batch) + 1 or (batch and batch[0] != -1):
            raise _unfit("input", f"'input_ids' has the dims {list(ids)}, not a row of tokens")
        name = _chosen(signature, settings)
        dims = signature.outputs[name].dims[len(batch) :]
        if len(dims) not in (1, 2) or signature.outputs[name].datatype not in (FP16, FP32, FP64):
            raise _unfit("output", f"'{name}' is neither a vector nor one for each token")
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

    def arrays(
        self, rows: Sequence[Sequence[int]], pad_token: int
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs for some texts, as wide as the longest of them or as the model requires."""
        shape = (len(rows), self.width or max(map(len, rows)))
        made: dict[str, np.ndarray[Any, Any]] = {}
        for spec in self.inputs:
            array = np.zeros(shape, spec.datatype.numpy)
            if spec.name == IDS:
                array[:] = pad_token
                for row, ids in zip(array, rows, strict=True):
                    row[: len(ids)] = ids
            elif spec.name == MASK:
                for row, ids in zip(array, rows, strict=True):
                    row[: len(ids)] = 1
            made[spec.name] = array
        return made


def _chosen(signature: Signature, settings: TaskSettings) -> str:
    named = settings.text("output")
    if named and named not in signature.outputs:
        settings.wrong(
            "output",
            f"the model has no output '{named}'",
            f"Write one of {', '.join(signature.outputs)}",
        )
    known = [name for name in _EMBEDDINGS if name in signature.outputs]
    return named or next(iter(known), next(iter(signature.outputs)))


def _unfit(field: str, message: str) -> ConfigError:
    return ConfigError(
        message,
        file="config.pbtxt",
        field=field,
        fix="The task 'sentence-embedding' needs an encoder: input_ids, and if the model has them "
        "attention_mask and token_type_ids, to a vector or to one for each token",
    )

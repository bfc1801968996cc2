"""The tensors of a question answering model: for each token, the logits of a start and an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.dtypes import FP16, FP32, FP64, INT32, INT64
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError, Internal
from shoal.tasks.questions.windows import IDS, MASK, TYPES

STARTS, ENDS = "start_logits", "end_logits"
_INPUTS = (IDS, MASK, TYPES)
_MANY_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ReaderTensors:
    """The model's inputs and outputs."""

    inputs: tuple[TensorSpec, ...]
    most_rows: int  # in one request
    width: int  # of a row; 0 if rows may have any length
    outputs: tuple[str, str] = (STARTS, ENDS)

    @classmethod
    def of(cls, signature: Signature) -> ReaderTensors:
        """The tensors of a model. Raises ConfigError if it does not answer questions."""
        for name, spec in signature.inputs.items():
            if name not in _INPUTS and not spec.optional:
                raise _unfit("input", f"the model has an input '{name}'")
            if name in _INPUTS and spec.datatype not in (INT32, INT64):
                raise _unfit("input", f"'{name}' is {spec.datatype.name}, not INT64 or INT32")
        if IDS not in signature.inputs:
            raise _unfit("input", f"the model has no input '{IDS}'")
        for name in (STARTS, ENDS):
            output = signature.outputs.get(name)
            if output is None:
                raise _unfit("output", f"the model has no output '{name}'")
            if output.datatype not in (FP16, FP32, FP64):
                raise _unfit("output", f"'{name}' is {output.datatype.name}, not FP32")
        dims = signature.inputs[IDS].dims
        rows = (signature.max_batch_size,) if signature.max_batch_size else dims[:1]
        if len(dims) != (1 if signature.max_batch_size else 2) or rows[0] == 0 or rows[0] < -1:
            raise _unfit("input", f"'{IDS}' has the dims {list(dims)}, not a row of tokens")
        if not signature.max_batch_size and rows[0] > 1:
            raise _unfit("input", f"'{IDS}' requires exactly {rows[0]} rows")
        return cls(
            tuple(signature.inputs[name] for name in _INPUTS if name in signature.inputs),
            most_rows=rows[0] if rows[0] > 0 else _MANY_ROWS,
            width=max(0, dims[-1]),
        )

    @property
    def masked(self) -> bool:
        """Whether the model has a mask for padding tokens."""
        return any(spec.name == MASK for spec in self.inputs)

    def arrays(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors that the model has, in its datatypes."""
        return {
            spec.name: rows[spec.name].astype(spec.datatype.numpy, copy=False)
            for spec in self.inputs
        }

    def logits(
        self, found: Mapping[str, np.ndarray], rows: int, tokens: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The logits of starts and ends, a row for each window. Internal if the shape is wrong.

        `tokens` is the length of the longest row; logits of padding may follow.
        """
        starts, ends = (found[name].reshape(len(found[name]), -1) for name in self.outputs)
        for name, logits in zip(self.outputs, (starts, ends), strict=True):
            if logits.shape[0] != rows or logits.shape[1] < tokens:
                raise Internal(
                    f"the model returned '{name}' with the shape {list(logits.shape)} for {rows} "
                    f"rows of {tokens} tokens"
                )
        return starts, ends


def _unfit(field: str, message: str) -> ConfigError:
    return ConfigError(
        message,
        file="config.pbtxt",
        field=field,
        fix="The task 'question-answering' needs a model from input_ids, and if it has them "
        "attention_mask and token_type_ids, to start_logits and end_logits, one for each token",
    )

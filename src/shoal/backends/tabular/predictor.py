"""A model of rows, whatever library it comes from: how many features, which answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core import dtypes
from shoal.core.dtypes import DataType

# Datatypes that hold the same kind of value; the first one is what a completed config says.
_FAMILIES = {
    "f": (dtypes.FP32, dtypes.FP64, dtypes.FP16),
    "i": (dtypes.INT64, dtypes.INT32),
    "u": (dtypes.INT64, dtypes.INT32),
    "b": (dtypes.BOOL,),
    "U": (dtypes.BYTES,),
    "S": (dtypes.BYTES,),
    "O": (dtypes.BYTES,),
}
NUMBERS = (
    *(dtypes.FP32, dtypes.FP64, dtypes.FP16, dtypes.INT64, dtypes.INT32, dtypes.INT16),
    *(dtypes.INT8, dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64, dtypes.BOOL),
)


@dataclass(frozen=True, slots=True)
class PredictorOutput:
    """One output: so many columns for every row, of the kind of value a numpy type has."""

    dtype: np.dtype[np.generic]
    width: int = 1  # -1: not known before the model has run
    listed: bool = True  # whether a completed config lists it; others may be named in a config

    @property
    def datatypes(self) -> tuple[DataType, ...]:
        """The datatypes a config may give it, the usual one first."""
        return _FAMILIES.get(self.dtype.kind, ())


class Predictor(ABC):
    """One loaded model. It may be asked by several threads at once."""

    features: int = -1  # columns of a row; -1: not known
    takes_text: bool = False  # rows are single strings instead of numbers
    takes_strings: bool = False  # columns may be strings, if the config says so
    outputs: Mapping[str, PredictorOutput]

    @abstractmethod
    def predict(self, rows: np.ndarray, wanted: Sequence[str]) -> Sequence[np.ndarray]:
        """The wanted answers for `rows`, in that order, one or two dimensions each.

        Rows are numbers, or `str` objects for a model that takes strings. Whatever is raised
        fails the batch.
        """

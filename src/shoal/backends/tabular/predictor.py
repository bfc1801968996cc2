"""A model of rows from any library: its features and outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core import dtypes
from shoal.core.dtypes import DataType

# Datatypes for the same kind of value; the first one is that of a completed config.
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
    """One output: `width` columns for every row, of the kind of a numpy type."""

    dtype: np.dtype[np.generic]
    width: int = 1  # -1: unknown until the model has run
    listed: bool = True  # whether a completed config lists it

    @property
    def datatypes(self) -> tuple[DataType, ...]:
        """The datatypes that a config may use, the default first."""
        return _FAMILIES.get(self.dtype.kind, ())


class Predictor(ABC):
    """One loaded model. Several threads may call it at once."""

    features: int = -1  # columns of a row; -1: not known
    takes_text: bool = False  # rows are single strings instead of numbers
    takes_strings: bool = False  # columns may be strings, if the config says so
    outputs: Mapping[str, PredictorOutput]

    @abstractmethod
    def predict(self, rows: np.ndarray, wanted: Sequence[str]) -> Sequence[np.ndarray]:
        """The outputs in `wanted` for `rows`, in that order, with one or two dimensions each.

        Rows are numbers, or `str` objects for a model that takes strings. An exception fails the
        batch.
        """

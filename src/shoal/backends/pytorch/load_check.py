"""Whether a model that was changed to run faster still gives the same answers, found at its load.

    one batch of random inputs --> results before --> the change --> results after --> close enough?

Only where the config has all shapes: for other models there is no batch to try.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.backends import graph_config
from shoal.backends.base import Executor
from shoal.backends.pytorch.executor import TorchExecutor, input_types
from shoal.backends.pytorch.library import undisturbed
from shoal.backends.pytorch.program import Program
from shoal.backends.pytorch.settings import PyTorchSettings
from shoal.config.model import ModelConfig
from shoal.core.dtypes import BF16, BYTES, DataType
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

_MOST_ROWS = 4
_TIMED_ROWS = 32
_RUNS_BEFORE = 4
_TIMED_RUNS = 10
_TURNS = 3
# How far results may be apart, as a share of their size. Reordered sums differ by less; TF32, which
# PyTorch uses for convolutions, by less than a thousandth.
CLOSE = 0.01
CLOSE_IN_HALF = 0.1


class LoadCheck:
    """Runs the programs of one model on the same batch."""

    def __init__(
        self,
        config: ModelConfig,
        settings: PyTorchSettings,
        file: str,
        inputs: Mapping[str, np.ndarray],
    ) -> None:
        self._config = config
        self._settings = settings
        self._file = file
        self._inputs = inputs
        self._before: Sequence[np.ndarray] = ()

    @classmethod
    def of(
        cls, program: Program, config: ModelConfig, settings: PyTorchSettings, file: str
    ) -> LoadCheck | None:
        """A check against the program as it is; None where it cannot be run on such a batch."""
        inputs = example(config)
        if inputs is None:
            return None
        check = cls(config, settings, file, inputs)
        try:
            check._before = check._results(check._executor(program))
        except ShoalError as error:
            logger.debug("%s: the model cannot be run on random inputs: %s", file, error)
            return None
        return check

    def difference(self, program: Program) -> float:
        """How far its results are from those before, see `difference`; infinite if it fails."""
        try:
            return self.difference_of(self._executor(program))
        except ShoalError:
            return math.inf

    def difference_of(self, executor: Executor) -> float:
        """The same for an instance. Raises what it raises."""
        return difference(self._before, self._results(executor))

    def seconds(self, program: Program) -> float:
        """How long the program takes for a batch of a busy server; infinite if it fails."""
        inputs = example(self._config, _TIMED_ROWS)
        assert inputs is not None
        executor = self._executor(program)
        try:
            with undisturbed:
                executor.seconds(inputs, _RUNS_BEFORE)  # in which TorchScript adapts its code
                return min(executor.seconds(inputs, _TIMED_RUNS) for _ in range(_TURNS))
        except Exception as error:  # noqa: BLE001 - such a batch may not fit the GPU's memory
            logger.debug("%s: the model could not be timed: %s", self._file, error)
            return math.inf

    def _executor(self, program: Program) -> TorchExecutor:
        return TorchExecutor(program, self._config, self._settings, self._file)

    def _results(self, executor: Executor) -> Sequence[np.ndarray]:
        return executor.run(self._inputs, [tensor.name for tensor in self._config.output])


def example(config: ModelConfig, most_rows: int = _MOST_ROWS) -> dict[str, np.ndarray] | None:
    """A batch that the model should be able to run; None where the config does not tell its shape.

    Integers are zeros and ones, and other numbers lie between: they are valid as tokens, masks and
    indices, too.
    """
    types = input_types(config)
    dims = {tensor.name: graph_config.model_dims(tensor) for tensor in config.input}
    if set(types) != set(dims) or any(-1 in own for own in dims.values()):
        return None
    if BYTES in types.values():
        return None
    generator = np.random.default_rng(0)
    head = (min(most_rows, config.max_batch_size),) if config.max_batch_size else ()
    return {
        name: _random(generator, datatype, (*head, *dims[name])) for name, datatype in types.items()
    }


def difference(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float:
    """The largest difference of an output, as a share of its size; infinite where a number became
    something else."""
    largest = 0.0
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return math.inf
        if one.dtype.kind != "f":
            wrong = float(np.mean(one != other)) if one.size else 0.0
            largest = max(largest, wrong)
            continue
        known = np.isfinite(one)
        if not np.isfinite(other[known]).all():
            return math.inf
        expected = one[known].astype(np.float64)
        apart = float(np.linalg.norm(other[known].astype(np.float64) - expected))
        size = float(np.linalg.norm(expected))
        largest = max(largest, apart / size if size else apart)
    return largest


def _random(generator: np.random.Generator, datatype: DataType, shape: Sequence[int]) -> np.ndarray:
    if datatype is BF16:
        bits: np.ndarray = generator.random(shape, np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16)
    if datatype.numpy.kind == "f":
        return generator.random(shape, np.float32).astype(datatype.numpy)
    return generator.integers(0, 2, shape).astype(datatype.numpy)

"""A program made ready for its instances: precision, layout, and on a GPU whatever makes it faster.

    program --half, channels last--> --optimize--> --compile-->   each checked, or undone

On a GPU, each step is checked against the program as it was; see `load_check`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from shoal.backends.pytorch.cuda import CudaExecutor
from shoal.backends.pytorch.library import HALVES, clean_message
from shoal.backends.pytorch.load_check import CLOSE, CLOSE_IN_HALF, LoadCheck
from shoal.backends.pytorch.program import Program
from shoal.backends.pytorch.settings import COMPILE, GRAPHS, HALF, OPTIMIZE, PyTorchSettings
from shoal.config.model import ModelConfig

logger = logging.getLogger(__name__)


class Improvement:
    """What is done to the programs of one model."""

    def __init__(self, config: ModelConfig, settings: PyTorchSettings, file: str) -> None:
        self._config = config
        self._file = file
        self.settings = settings  # without half precision, where that was undone
        self._check: LoadCheck | None = None  # of the last program on a GPU

    def apply(self, program: Program, reopen: Callable[[], Program], *, on_gpu: bool) -> Program:
        """The program, improved, or what `reopen` gives if it was spoilt; then it was closed."""
        chosen = self.settings
        check = self._check = None
        if on_gpu and not program.stateful and chosen.compile is None:
            check = self._check = LoadCheck.of(program, self._config, chosen, self._file)
        layout = chosen.channels_last
        if layout is None:
            layout = on_gpu and bool(chosen.half) and program.has_convolutions
        if chosen.half:
            program.use_half(HALVES[chosen.half])
        if layout:
            program.use_channels_last()
        if chosen.half and check is not None:
            apart = check.difference(program)
            if apart > CLOSE_IN_HALF:
                logger.warning(
                    "%s: the results in %s differ from those in full precision by %s: the model "
                    "runs in full precision. Write %s only for models that can be converted",
                    self._file,
                    chosen.half,
                    _percent(apart),
                    HALF,
                )
                program.close()
                self.settings = replace(chosen, half="")
                return self.apply(reopen(), reopen, on_gpu=on_gpu)
        if check is not None and chosen.optimize:
            self._optimize(program, check)
        options = chosen.compile
        if options is not None and not program.compile(options):
            logger.warning(
                "%s: %s has no effect: the model (%s) is compiled already",
                self._file,
                COMPILE,
                program.kind.value,
            )
        return program

    def _optimize(self, program: Program, check: LoadCheck) -> None:
        """Optimise a program if that makes it faster. Some networks become slower."""
        before = check.seconds(program)
        if before == math.inf:
            return
        try:
            if not program.optimize():
                return
        except Exception as error:  # noqa: BLE001 - it runs as it is
            logger.warning("%s: cannot be optimised: %s", self._file, clean_message(error))
            return
        apart = check.difference(program)
        if apart <= self._tolerance:
            after = check.seconds(program)
            logger.debug("%s: %.2f ms, optimised %.2f", self._file, before * 1e3, after * 1e3)
            if after <= before:
                program.accept()
            else:
                program.revert()
            return
        program.revert()
        logger.warning(
            "%s: optimised for inference, the model gives results that differ by %s: it runs as it "
            "is. Write %s: false to leave this out",
            self._file,
            _percent(apart),
            OPTIMIZE,
        )

    def check_graphs(self, executor: CudaExecutor) -> None:
        """Have an instance do without CUDA graphs if they give other results."""
        if self._check is None or not executor.has_graphs:
            return
        apart = self._check.difference_of(executor)
        if apart > self._tolerance:
            executor.drop_graphs()
            logger.warning(
                "%s: CUDA graphs of the model give results that differ by %s: it runs without "
                "them. Write %s: false",
                self._file,
                _percent(apart),
                GRAPHS,
            )

    @property
    def _tolerance(self) -> float:
        return CLOSE_IN_HALF if self.settings.half else CLOSE


def _percent(share: float) -> str:
    return "too much to compare them" if share == math.inf else f"{share:.1%}"

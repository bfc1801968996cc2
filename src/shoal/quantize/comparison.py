"""Two versions of a model side by side: size, speed, and how far their outputs agree."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Unsupported
from shoal.quantize.samples import Feed

_ROUNDS = 3  # of all samples, for the time


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far one output of two versions agrees over all samples."""

    output: str
    cosine: float  # of the angle between both, the lowest of all samples
    largest: float  # the largest absolute difference
    same_best: float | None  # the share of rows with the same highest element; None: no classes


@dataclass(frozen=True, slots=True)
class Measured:
    """The size and speed of a version."""

    size_bytes: int
    milliseconds: float  # the median of a sample, with one thread


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both versions and their agreement."""

    before: Measured
    after: Measured
    agreements: Sequence[Agreement]
    samples: int

    @property
    def lowest(self) -> float:
        """The worst cosine of all outputs."""
        return min((one.cosine for one in self.agreements), default=1.0)


def compare(before: Path, after: Path, samples: Sequence[Feed]) -> Comparison:
    """Run both files on all samples, by turns. Raises Unsupported if one does not run."""
    sessions = [open_session(path) for path in (before, after)]
    names = [output.name for output in sessions[0].get_outputs()]
    times: tuple[list[float], list[float]] = ([], [])
    found: list[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]] = []
    for turn in range(_ROUNDS + 1):  # the first one warms up, and is compared
        for feed in samples:
            results = []
            for session, taken in zip(sessions, times, strict=True):
                begun = time.perf_counter()
                results.append(_run(session, feed))
                if turn:
                    taken.append((time.perf_counter() - begun) * 1e3)
            if not turn:
                found.append((results[0], results[1]))
    agreements = [
        _agreement(name, [(one[at], other[at]) for one, other in found])
        for at, name in enumerate(names)
        if found[0][0][at].dtype.kind in "fiu"
    ]
    measured = [
        Measured(size_of(path), statistics.median(taken))
        for path, taken in zip((before, after), times, strict=True)
    ]
    return Comparison(measured[0], measured[1], agreements, len(samples))


def open_session(path: Path) -> Any:
    """A session with one thread on the CPU. Raises Unsupported."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(f"ONNX Runtime cannot load the converted model: {reason}") from error


def size_of(path: Path) -> int:
    """The bytes of a model file and of the weights beside it."""
    beside = path.parent.glob(f"{path.name}?data")
    return path.stat().st_size + sum(other.stat().st_size for other in beside)


def _run(session: Any, feed: Feed) -> Sequence[np.ndarray]:
    try:
        outputs: Sequence[np.ndarray] = session.run(None, feed)
        return outputs
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(f"the model does not run on this data: {reason}") from error


def _agreement(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Agreement:
    cosines, largest, rows, same = [], 0.0, 0, 0
    classes = pairs[0][0].ndim >= 2 and pairs[0][0].shape[-1] > 1
    for one, other in pairs:
        first, second = (array.astype(np.float64).ravel() for array in (one, other))
        if first.shape != second.shape or not np.isfinite(second).all():
            return Agreement(name, -1.0, float("inf"), 0.0 if classes else None)
        length = float(np.linalg.norm(first) * np.linalg.norm(second))
        equal = np.array_equal(first, second)
        cosines.append(1.0 if equal else float(first @ second) / length if length else 0.0)
        largest = max(largest, float(np.abs(first - second).max(initial=0.0)))
        if classes:
            best = [array.reshape(-1, one.shape[-1]).argmax(axis=1) for array in (first, second)]
            rows += len(best[0])
            same += int((best[0] == best[1]).sum())
    return Agreement(name, min(cosines), largest, same / rows if rows and classes else None)

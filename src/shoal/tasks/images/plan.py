"""What a model has to do itself to classify photos: prepare them, run, and rank the scores."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.tasks.images.gpu_preparation import GpuPreparation
from shoal.tasks.images.rows import ImageRows
from shoal.tasks.ranking import Ranking

MOST_GPU_PIXELS = 24_000_000  # of one photo, so that it fits into the memory of an instance
_LABELS = 10  # of a photo, at least; a request for more is prepared on the CPU


@dataclass(frozen=True, slots=True)
class PhotoPlan:
    """From decoded photos to labels, by the settings of a task."""

    input: str
    output: str
    prepare: GpuPreparation
    scores: str  # as in Ranking
    labels: int  # how many of a photo

    @classmethod
    def of(cls, rows: ImageRows, ranking: Ranking) -> PhotoPlan | None:
        """The plan of a classifier; None if its photos have to be prepared on the CPU."""
        prepare = GpuPreparation.of(rows.prepare)
        if prepare is None or ranking.classes < 1:
            return None
        labels = min(ranking.classes, max(ranking.top, _LABELS))
        return cls(rows.input, ranking.output, prepare, ranking.scores, labels)

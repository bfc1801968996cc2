"""Divides the photos of a call into requests to the model, and allocates their rows.

5 photos, max_batch_size 4  -->  [4, 3, 224, 224] and [1, 3, 224, 224]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.core.signature import Signature
from shoal.errors import ConfigError
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.settings import TaskSettings

_UNBOUNDED = 1 << 30


@dataclass(frozen=True, slots=True)
class ImageRows:
    """The input of a model whose only input is photos."""

    input: str
    prepare: ImagePreparation
    batch_dim: bool  # whether the input has a batch dimension
    most: int  # images in one request

    @classmethod
    def of(
        cls, settings: TaskSettings, signature: Signature, declared_format: str = "FORMAT_NONE"
    ) -> ImageRows:
        """The rows of a model's input. Raises ConfigError."""
        inputs = [spec for spec in signature.inputs.values() if not spec.optional]
        if len(inputs) != 1:
            raise ConfigError(
                f"the model has {len(inputs)} inputs; an image classifier has one",
                file="config.pbtxt",
                field="input",
                fix="Wrap it in an ensemble or a Python model with one input",
            )
        spec = inputs[0]
        dims, most = spec.dims, signature.max_batch_size
        batch_dim = most > 0
        if not batch_dim:
            most = 1
            if len(dims) == 4:
                batch_dim = True
                most = _UNBOUNDED if dims[0] == -1 else 1
                if dims[0] not in (-1, 1):
                    raise ConfigError(
                        f"requires exactly {dims[0]} images in a request",
                        file="config.pbtxt",
                        field=f"input '{spec.name}'.dims",
                        fix="Write max_batch_size and leave out the first dimension",
                    )
                dims = dims[1:]
        preparation = ImagePreparation.of(settings, dims, spec.datatype, declared_format)
        return cls(spec.name, preparation, batch_dim, most)

    def requests(self, count: int) -> list[np.ndarray]:
        """Empty arrays for the rows of `count` photos, one array for each request."""
        shape, dtype = self.prepare.shape, self.prepare.table.dtype
        starts = range(0, count, self.most)
        return [np.empty((min(self.most, count - start), *shape), dtype) for start in starts]

    def tensor(self, rows: np.ndarray) -> np.ndarray:
        """The rows as the model's input."""
        return rows if self.batch_dim else rows[0]

"""What a model takes and gives: the tensors of its config, in the form validation needs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.dtypes import BYTES, DataType
from shoal.core.padding import Padding


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as configured. `dims` and `reshape` leave the batch dimension out."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False
    labels: tuple[str, ...] = ()

    @property
    def has_variable_dims(self) -> bool:
        """Whether requests may differ in this tensor's shape (beyond the batch dimension)."""
        return -1 in self.dims

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dims the model sees."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's inputs and outputs by name, in the order of its config."""

    model_name: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    # Outputs that the server keeps for the sequence's next request; clients see those that are
    # in `outputs` too.
    state_outputs: dict[str, TensorSpec] = field(default_factory=dict)
    padding: Padding | None = None  # how requests of different lengths share a batch, if they do
    required_inputs: int = field(init=False)
    shape_keyed: tuple[str, ...] = field(init=False)
    has_optional: bool = field(init=False)
    has_reshape: bool = field(init=False)
    # Rows and batch key of valid requests, by all that `validate` looks at; None where it must look
    # at the elements, or change the inputs. Any thread may add to it.
    validated: dict[Hashable, tuple[int, Any]] | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        inputs = self.inputs.values()
        required = sum(not spec.optional for spec in inputs)
        # Requests share a batch only if these inputs have equal shapes.
        padded = () if self.padding is None else self.padding.inputs
        keyed = tuple(
            s.name for s in inputs if s.has_variable_dims and not s.ragged and s.name not in padded
        )
        object.__setattr__(self, "required_inputs", required)
        object.__setattr__(self, "shape_keyed", keyed)
        object.__setattr__(self, "has_optional", any(spec.optional for spec in inputs))
        object.__setattr__(self, "has_reshape", any(s.reshape is not None for s in inputs))
        plain = all(s.reshape is None and s.datatype is not BYTES for s in inputs)
        object.__setattr__(self, "validated", {} if plain else None)

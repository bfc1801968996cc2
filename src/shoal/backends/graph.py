"""The inputs and outputs that a model file declares, in one form for all backends.

    model file --a backend reads--> Graph --graph_config--> a config completed, and checked

A backend that returns a Graph need not know the rules of `config.pbtxt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.core.dtypes import DataType


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output as the model file declares it; -1 is a dimension of any size.

    `dims` is () for a scalar, and also if the file declares no shape: not every runtime
    distinguishes the two. `datatype` is None for types that requests cannot contain: sequences,
    maps, sparse tensors, complex numbers.
    """

    name: str
    type_name: str  # the runtime's name of the type, for messages
    datatype: DataType | None
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """A model's inputs and outputs by name, in the order of its file."""

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]
    # Inputs that have a value in the file; they may be left out.
    defaults: Mapping[str, GraphTensor] = field(default_factory=dict)
    # The largest batch the model takes. 0: variable first dimensions are no batch. None: any size.
    largest_batch: int | None = None

    @classmethod
    def of(cls, inputs: Iterable[GraphTensor], outputs: Iterable[GraphTensor]) -> Graph:
        """A graph of these tensors."""
        return cls(
            {tensor.name: tensor for tensor in inputs},
            {tensor.name: tensor for tensor in outputs},
        )

    @property
    def required_inputs(self) -> frozenset[str]:
        """The inputs without which the model cannot run."""
        return frozenset(name for name, tensor in self.inputs.items() if not tensor.optional)

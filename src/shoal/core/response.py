"""The response to a request: outputs, or an error."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.tensor import Tensor
from shoal.errors import ShoalError

ParameterValue = str | int | bool | float


@dataclass(slots=True)
class Response:
    """One response to one request. A decoupled model sends several; the last one is `final`."""

    model_name: str
    model_version: int
    request_id: str = ""
    outputs: list[Tensor] = field(default_factory=list)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: ShoalError | None = None
    final: bool = True

    @property
    def is_end_only(self) -> bool:
        """Whether it only marks the end of the request."""
        return self.final and self.error is None and not self.outputs and not self.parameters

"""`pb_utils.InferenceResponse`: output tensors, or an error."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shoal.backends.python.api import parameters as parameter_rules
from shoal.backends.python.api.errors import TritonError, TritonModelException, from_shoal
from shoal.backends.python.api.tensor import Tensor
from shoal.core.response import ParameterValue, Response


class InferenceResponse:
    """One answer to one request."""

    __slots__ = ("__weakref__", "_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        """With `error` the tensors are ignored."""
        if not isinstance(output_tensors, (list, tuple)):
            raise TypeError(
                f"InferenceResponse needs a list of output tensors, not {type(output_tensors)}"
            )
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException(
                        "Output tensor for inference response should not be empty."
                    )
                raise TypeError(f"an output tensor must be a Tensor, not {type(tensor)}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(
                f"InferenceResponse needs its error as a TritonError, not {type(error)}"
            )
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = parameter_rules.checked(parameters)

    @classmethod
    def _from_core(cls, response: Response, *, shared: bool) -> InferenceResponse:
        """The response of another model; `shared` if its memory is used elsewhere too."""
        made: InferenceResponse = cls.__new__(cls)
        made._outputs = [Tensor._from_core(tensor, shared=shared) for tensor in response.outputs]
        made._error = None if response.error is None else from_shoal(response.error)
        made._parameters = response.parameters
        return made

    def output_tensors(self) -> list[Tensor]:
        """The tensors, in the order they were given."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether this is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if there is one."""
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON text."""
        return json.dumps(self._parameters)

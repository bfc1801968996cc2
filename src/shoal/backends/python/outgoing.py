"""From a model's responses to the server's: known outputs, in the client's shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.backends.base import PendingRequest
from shoal.backends.python.api.errors import to_shoal
from shoal.backends.python.api.response import InferenceResponse
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.response import ParameterValue
from shoal.core.signature import TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import format_dims, substitute
from shoal.errors import BackendFailure


class Outputs:
    """A model's outputs by its config. Outputs that the config does not list are never sent."""

    def __init__(self, config: ModelConfig) -> None:
        self.names = frozenset(tensor.name for tensor in config.output)
        if config.sequence_batching is not None:
            self.names |= {state.output_name for state in config.sequence_batching.state}
        self._batched = config.max_batch_size > 0
        self._reshaped: Mapping[str, TensorSpec] = {
            tensor.name: TensorSpec(
                tensor.name,
                dtypes.BY_CONFIG_NAME[tensor.data_type],
                tuple(tensor.dims),
                tuple(tensor.reshape.shape),
            )
            for tensor in config.output
            if tensor.reshape is not None
        }

    def send(
        self, pending: PendingRequest, response: InferenceResponse | None, *, final: bool
    ) -> None:
        """Send a model's response, or with none just the end. Internal after the end."""
        if response is None:
            pending.send(final=final)
            return
        error = response._error
        if error is not None:
            pending.send(error=to_shoal(error), final=final)
            return
        names = self.names
        tensors = [tensor._to_core() for tensor in response._outputs if tensor._name in names]
        self.send_core(pending, tensors, response._parameters, final=final)

    def send_core(
        self,
        pending: PendingRequest,
        tensors: Sequence[Tensor],
        parameters: Mapping[str, ParameterValue],
        *,
        final: bool,
    ) -> None:
        """Send tensors of the server's class."""
        if self._reshaped:
            try:
                tensors = [self._in_client_shape(tensor) for tensor in tensors]
            except BackendFailure as failure:
                pending.send(error=failure, final=final)
                return
        pending.send(tensors, parameters=parameters, final=final)

    def _in_client_shape(self, tensor: Tensor) -> Tensor:
        """The tensor in the `dims` of the config, if the model has another shape (`reshape`)."""
        spec = self._reshaped.get(tensor.name)
        if spec is None:
            return tensor
        assert spec.reshape is not None
        skip = 1 if self._batched else 0
        own = tensor.shape[skip:]
        fits = len(own) == len(spec.reshape) and all(
            want in (-1, got) for want, got in zip(spec.reshape, own, strict=True)
        )
        if not fits:
            raise BackendFailure(
                f"output '{spec.name}' has shape {format_dims(own)}, but its reshape in the model "
                f"configuration says {format_dims(spec.reshape)}"
            )
        return tensor.with_shape(tensor.shape[:skip] + substitute(spec.reshape, own, spec.dims))

"""`tritonserver.Model`: a model of a running server, by name and version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.inprocess.inference import submit
from shoal.inprocess.methods import when_loaded
from shoal.tritonserver.enums import ModelBatchFlag, ModelTxnPropertyFlag
from shoal.tritonserver.errors import UnsupportedError, triton_errors
from shoal.tritonserver.request import InferenceRequest
from shoal.tritonserver.response import AsyncResponseIterator, ResponseIterator

if TYPE_CHECKING:
    from shoal.inprocess.server import Server as ShoalServer
    from shoal.tritonserver.server import RunningServer


class Model:
    """One model. Whether it exists is found out when it is used."""

    def __init__(
        self,
        server: RunningServer,
        name: str,
        version: int = -1,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._server = server
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    @property
    def _shoal(self) -> ShoalServer:
        return self._server.server

    # ---- inference

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request for this model, with the fields of `InferenceRequest`."""
        return InferenceRequest(**{**kwargs, "model": self})

    def infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> ResponseIterator:
        """Submit a request, given as such or by its fields; returns an iterator over responses."""
        request = inference_request or self.create_request(**kwargs)
        responses = ResponseIterator(request, raise_on_error)
        self._submit(request, responses)
        return responses

    def async_infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,
        **kwargs: Any,
    ) -> AsyncResponseIterator:
        """As `infer`, for `async for`. Call it in a coroutine."""
        request = inference_request or self.create_request(**kwargs)
        responses = AsyncResponseIterator(request, raise_on_error)
        self._submit(request, responses)
        return responses

    def _submit(
        self, request: InferenceRequest, responses: ResponseIterator | AsyncResponseIterator
    ) -> None:
        core = request._to_core()
        core.model_name, core.model_version = self.name, self.version
        responses._request = core
        with triton_errors():
            submit(self._shoal.engine, core, responses)

    # ---- status

    def metadata(self) -> dict[str, Any]:
        """Versions, inputs and outputs."""
        with triton_errors():
            return self._shoal.metadata(self.name, self.version)

    def ready(self) -> bool:
        """Whether requests can be sent."""
        with triton_errors():
            return self._shoal.model_ready(self.name, self.version)

    def batch_properties(self) -> ModelBatchFlag:
        """Whether the first dimension of its tensors is that of batches."""
        with triton_errors():
            engine = self._shoal.engine
            signature = when_loaded(lambda: engine.signature(self.name, self.version))
        return ModelBatchFlag.FIRST_DIM if signature.max_batch_size else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Whether it sends exactly one response to a request."""
        with triton_errors():
            engine = self._shoal.engine
            decoupled = when_loaded(lambda: engine.is_decoupled(self.name, self.version))
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    def statistics(self) -> dict[str, Any]:
        """Its counters, under "model_stats"."""
        with triton_errors():
            return self._shoal.statistics(self.name, self.version)

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The config it runs with."""
        if config_version != 1:
            raise UnsupportedError(
                f"model configuration version {config_version} not supported, supported versions "
                f"are: 1"
            )
        with triton_errors():
            return self._shoal.config(self.name, self.version)

    def _answered_by(self, name: str, version: int) -> Model:
        """The model that sent a response."""
        return Model(self._server, name, version if version > 0 else self.version)

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

"""Test a Python model like any other class: without server, sockets or processes.

    with PythonModelRunner("model_repository/sentiment/1/model.py") as model:
        outputs = model.infer({"TEXT": np.array([b"what a day"], dtype=object)})
        assert outputs["LABEL"][0] == b"positive"

The model is initialised as the server would do it: with its config.pbtxt, where there is one, and
completed by its `auto_complete_config`. Functions stand in for the models that it calls. Requests
go to `execute` as they are; nothing checks them against the config, so a test can also send what a
server would have refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from shoal.backends.python import loading
from shoal.backends.python.api import host
from shoal.backends.python.api.config import ModelConfig
from shoal.backends.python.api.errors import ErrorCode, TritonError
from shoal.backends.python.api.host import Context, FamilyHandle, NoServer
from shoal.backends.python.api.request import InferenceRequest
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.sender import ResponseStream
from shoal.backends.python.api.tensor import Tensor
from shoal.backends.python.instance import ModelInstance
from shoal.config import codec, pbtxt
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Tensor as CoreTensor
from shoal.errors import BackendFailure, Internal, ShoalError
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.exposition import Exposition
from shoal.testing import WAIT_SECS

Arrays: TypeAlias = Mapping[str, np.ndarray]
# Stands in for another model: inputs to outputs, or for a decoupled one to several of them.
StandIn: TypeAlias = Callable[[dict[str, np.ndarray]], Arrays | Iterable[Arrays]]


class ModelFailed(Exception):
    """The model responded with an error."""

    def __init__(self, error: TritonError) -> None:
        super().__init__(error.message())
        self.code: ErrorCode = error.code()


class PythonModelRunner:
    """One instance of a Python model, driven by a test."""

    def __init__(
        self,
        model: str | Path | type,
        *,
        config: str | Path | dict[str, Any] | None = None,
        models: Mapping[str, StandIn] | None = None,
        arguments: Mapping[str, str] | None = None,
        version_folder: str | Path | None = None,
    ) -> None:
        """Import (unless `model` is the class itself) and initialise.

        `config` is a config.pbtxt's path or text, or a dict; without one the file in the folder
        above is taken, if there is one. `arguments` replace those given to `initialize`. For the
        model.py of a Python-based backend, `version_folder` is that of a model which it serves.
        Raises what the model raises.
        """
        self._module: loading.PrivateModule | None = None
        folder = Path.cwd()
        if isinstance(model, type):
            found = model
        else:
            file = Path(model).resolve()
            folder = file.parent if version_folder is None else Path(version_folder).resolve()
            self._module = loading.PrivateModule(file, loading.ModelSource(file, folder).folders)
            found = loading.model_class(self._module.module, file)
        self.config = self._complete(found, _read(config, folder))
        name = str(self.config["name"])
        self.metrics = CustomMetrics()
        self._context = Context(
            _TestHost(models or {}, self.metrics), name, f"{name}_0", str(folder)
        )
        policy = self.config.get("model_transaction_policy", {})
        self.decoupled = bool(policy.get("decoupled"))
        self._names = frozenset(str(tensor["name"]) for tensor in self.config.get("output", ()))
        given = {
            "model_config": json.dumps(self.config),
            "model_instance_kind": "CPU",
            "model_instance_name": f"{name}_0",
            "model_instance_device_id": "0",
            "model_repository": str(folder.parent),
            "model_version": folder.name if folder.name.isdecimal() else "1",
            "model_name": name,
            **(arguments or {}),
        }
        self._instance = ModelInstance(found, given, self._context, decoupled=self.decoupled)
        host.announce(self._context, self._module.package if self._module else "")

    @staticmethod
    def _complete(found: Any, config: dict[str, Any]) -> dict[str, Any]:
        if not hasattr(found, "auto_complete_config"):
            return config
        completed: ModelConfig = found.auto_complete_config(ModelConfig(json.dumps(config)))
        return completed.as_dict()

    def __enter__(self) -> PythonModelRunner:  # noqa: PYI034 - Self is younger than Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- calling the model

    def infer(self, inputs: Arrays, **options: Any) -> dict[str, np.ndarray]:
        """The outputs for one request; raises ModelFailed when the response is an error.

        `options` are those of `request`.
        """
        (outputs,) = self.batch([inputs], **options)
        return outputs

    def batch(self, batch: Sequence[Arrays], **options: Any) -> list[dict[str, np.ndarray]]:
        """The outputs for requests that are executed as one batch; each must have one response."""
        exchanges = [self.request(inputs, **options) for inputs in batch]
        self.execute(exchanges)
        results = []
        for exchange in exchanges:
            exchange.wait()
            (response,) = [r for r in exchange.responses if r.has_error() or r.output_tensors()]
            results.append(_arrays(response))
        return results

    def stream(self, inputs: Arrays, **options: Any) -> list[dict[str, np.ndarray]]:
        """All responses of a decoupled model to one request, once it has sent the last."""
        exchange = self.request(inputs, **options)
        self.execute([exchange])
        exchange.wait()
        return [_arrays(r) for r in exchange.responses if r.has_error() or r.output_tensors()]

    def request(
        self,
        inputs: Arrays,
        *,
        id: str = "",
        requested_outputs: Sequence[str] = (),
        parameters: dict[str, ParameterValue] | None = None,
        correlation_id: int | str = 0,
        flags: int = 0,
        timeout_us: int = 0,
    ) -> ModelExchange:
        """A request and its future responses, for `execute`."""
        core = Request(
            str(self.config["name"]),
            {name: Tensor(name, array)._to_core() for name, array in inputs.items()},
            DISCARD,  # the exchange gets the responses
            id=id,
            requested_outputs=tuple(requested_outputs),
            parameters=parameters,
            correlation_id=correlation_id,
            flags=flags,
            timeout_us=timeout_us,
        )
        return ModelExchange(core, self._names, decoupled=self.decoupled)

    def execute(self, exchanges: Sequence[ModelExchange]) -> None:
        """Have the model execute these as one batch. What it raises becomes their response."""
        requests = [exchange._take_request() for exchange in exchanges]
        self._instance.execute(requests)

    def ready(self) -> bool:
        """The result of the model's `is_ready`; true if it has none."""
        return self._instance.ready()

    def metrics_text(self) -> str:
        """The model's own metrics as Prometheus would scrape them."""
        text = Exposition()
        self.metrics.render(text)
        return text.encode().decode()

    def close(self) -> None:
        """Finalise the model and unload its modules."""
        self._instance.finalize()
        host.release(self._context, self._module.package if self._module else "")
        if self._module is not None:
            self._module.close()


class ModelExchange(ResponseStream):
    """One request to a model under test, and all its responses."""

    __slots__ = ("_core", "_done", "_names", "_request", "responses")

    def __init__(self, core: Request, names: frozenset[str], *, decoupled: bool) -> None:
        super().__init__(decoupled=decoupled)
        self._core = core
        self._names = names
        self._done = threading.Event()
        self._request: InferenceRequest | None = InferenceRequest._received(core, names, self)
        self.responses: list[InferenceResponse] = []

    def cancel(self) -> None:
        """Cancel the request, as a client that disconnects does."""
        self._core.cancelled = True

    def wait(self, timeout_secs: float = WAIT_SECS) -> list[InferenceResponse]:
        """The responses, once the last one has come."""
        if not self._done.wait(timeout_secs):
            raise TimeoutError("the model did not send the final response")
        return self.responses

    def cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self._core.cancelled

    def _take_request(self) -> InferenceRequest:
        """The request for the model, which then is the only one to hold it."""
        request, self._request = self._request, None
        if request is None:
            raise ValueError("this request was executed already: make another one")
        return request

    def _pass_on(
        self, response: InferenceResponse | None, *, final: bool, more: bool = False
    ) -> None:
        del more
        if response is not None:
            wanted = self._core.requested_outputs or self._names
            kept = [tensor for tensor in response._outputs if tensor.name() in wanted]
            response._outputs = kept
            self.responses.append(response)
        if final:
            self._done.set()


class _TestHost(NoServer):
    """The host of a model under test: functions stand in for other models."""

    def __init__(self, models: Mapping[str, StandIn], metrics: CustomMetrics) -> None:
        self._models = models
        self._metrics = metrics

    def infer(self, request: Request, *, decoupled: bool, waiting: Context | None) -> None:
        """Respond with what the function of that name returns."""
        stand_in = self._models.get(request.model_name)
        if stand_in is None:
            super().infer(request, decoupled=decoupled, waiting=waiting)
            return
        inputs = {name: tensor.array for name, tensor in request.inputs.items()}
        try:
            result = stand_in(inputs)
            several = [result] if isinstance(result, Mapping) else list(result)
        except ShoalError as refused:
            self._respond(request, error=refused)
            return
        except Exception as failure:  # noqa: BLE001 - as a model's would be
            text = f"{type(failure).__name__}: {failure}"
            self._respond(request, error=BackendFailure(text))
            return
        if len(several) != 1 and not decoupled:
            raise Internal(f"'{request.model_name}' is decoupled: use exec(decoupled=True)")
        for outputs in several:
            self._respond(request, outputs, final=not decoupled)
        if decoupled:
            self._respond(request)

    def _respond(
        self,
        request: Request,
        outputs: Arrays | None = None,
        error: ShoalError | None = None,
        *,
        final: bool = True,
    ) -> None:
        tensors = [CoreTensor.from_array(name, array) for name, array in (outputs or {}).items()]
        wanted = request.requested_outputs
        kept = [tensor for tensor in tensors if not wanted or tensor.name in wanted]
        request.reply.send(
            Response(request.model_name, 1, request.id, kept, error=error, final=final)
        )

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a function stands in for it."""
        del version
        return name in self._models

    def metric_family(self, name: str, description: str, kind: str) -> FamilyHandle:
        """Kept for the test to read."""
        return self._metrics.family(name, description, kind)


def _arrays(response: InferenceResponse) -> dict[str, np.ndarray]:
    error = response.error()
    if error is not None:
        raise ModelFailed(error)
    return {tensor.name(): _array(tensor) for tensor in response.output_tensors()}


def _array(tensor: Tensor) -> np.ndarray:
    return tensor._to_core().array


def _read(config: str | Path | dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    """A config as the server would hand it to the model, its name filled in."""
    if config is None:
        beside = folder.parent / "config.pbtxt"
        config = beside if beside.is_file() else {}
    if isinstance(config, dict):
        text, where = json.dumps(config), "config"
        parsed = codec.parse_json(text, where)
    else:
        is_text = isinstance(config, str) and ("{" in config or ":" in config)
        text = str(config) if is_text else Path(config).read_text(encoding="utf-8")
        parsed = pbtxt.parse_pbtxt(text, "config.pbtxt")
    completed = codec.to_dict(parsed)
    name = folder.parent.name if folder.name.isdecimal() else folder.name
    completed["name"] = completed.get("name") or name
    return completed


__all__ = ["ModelExchange", "ModelFailed", "PythonModelRunner"]

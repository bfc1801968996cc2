"""An engine without models: a test sets what it reports and responds to its requests by hand.

engine = ScriptedEngine()
...                             the frontend under test calls engine.infer
engine.answer(0, tensor)        the first request gets its response
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import NotFound, ShoalError
from tests.support.runtime_settings import RuntimeSettings

MODEL = "m"
DECOUPLED = "d"


class ScriptedModel:
    """Stands for a loaded version."""

    decoupled = False


class ScriptedEngine(RuntimeSettings):
    """Knows the models "m" and "d" (decoupled); keeps every request it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.planned: list[Request] = []  # those of them that came by `infer_group`
        self.model: ScriptedModel | None = None  # who accepts requests, where it matters
        self.validated: tuple[int, object] = (1, ())  # the rows and key that `infer` finds out
        self.refusal: Exception | None = None  # raised by `infer`
        self.is_ready = True
        self.is_exiting = False
        self.rows: list[dict[str, str]] = []
        self.loads: list[tuple[str, str | None, dict[str, bytes]]] = []
        self.unloads: list[tuple[str, bool]] = []
        self.control_error: Exception | None = None  # raised by index, load and unload
        self.labels = ("cat", "dog")

    # ---- what a test does

    def answer(
        self,
        index: int,
        *outputs: Tensor,
        final: bool = True,
        error: ShoalError | None = None,
        **parameters: ParameterValue,
    ) -> None:
        """Send a response to the request number `index`."""
        request = self.requests[index]
        request.reply.send(
            Response(
                request.model_name, 1, request.id, list(outputs), parameters, error, final=final
            )
        )

    # ---- what frontends call

    def infer(self, request: Request) -> None:
        """Keep the request, or refuse it."""
        self._find(request.model_name)
        request.rows, request.batch_key = self.validated
        self._take(request)

    def infer_group(self, requests: Sequence[Request], model: Any) -> Sequence[Request]:
        """Keep the requests, if `model` is the one that accepts now, or refuse them."""
        if model is not self.model:
            return requests
        for request in requests:
            try:
                self._take(request)
            except ShoalError as error:
                request.fail(error)
            else:
                self.planned.append(request)
        return ()

    def check_room(self, name: str, version: int = -1) -> None:
        """There is room."""

    def exiting(self) -> bool:
        """As the test sets it."""
        return self.is_exiting

    def ready(self) -> bool:
        """As the test sets it."""
        return self.is_ready and not self.is_exiting

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Nothing here has an opinion of its own."""
        del name, version
        return False

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Version 1 is ready, others are not."""
        self._find(name)
        return version in (-1, 1)

    def server_metadata(self) -> dict[str, Any]:
        """Something short."""
        return {"name": "scripted", "version": "1.2", "extensions": ["a", "b"]}

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """One input and one output."""
        self._find(name)
        tensor = {"name": "IN", "datatype": "FP32", "shape": [-1, 2]}
        return {
            "name": name,
            "versions": ["1"] if version == -1 else [str(version)],
            "platform": "p",
            "inputs": [tensor],
            "outputs": [{**tensor, "name": "OUT"}],
        }

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """Numbers, enums and nested messages as the real engine writes them."""
        del version
        self._find(name)
        return {
            "name": name,
            "max_batch_size": 8,
            "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
            "dynamic_batching": {"max_queue_delay_microseconds": 2**40},
        }

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Numbers beyond 32 bits, and every kind of field."""
        del version
        if name:
            self._find(name)
        duration = {"count": 3, "ns": 2**60}
        return [
            {
                "name": name or MODEL,
                "version": "1",
                "last_inference": 2**41,
                "inference_count": 3,
                "execution_count": 2,
                "inference_stats": {"success": duration, "queue": duration},
                "response_stats": {"0": {"success": duration}},
                "batch_stats": [{"batch_size": 2, "compute_infer": duration}],
                "memory_usage": [],
            }
        ]

    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """One model, and one change that would help it."""
        if name:
            self._find(name)
        explanation = {"summary": "It waits.", "advice": "Batch.", "change": "dynamic_batching { }"}
        return [{"name": name or MODEL, "version": str(max(1, version)), **explanation}]

    def signature(self, name: str, version: int = -1) -> Signature:
        """One output with labels, no batching."""
        del version
        self._find(name)
        spec = TensorSpec("OUT", dtypes.FP32, (2,), labels=self.labels)
        return Signature(name, 0, {}, {"OUT": spec})

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Only "d" is."""
        del version
        self._find(name)
        return name == DECOUPLED

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """The rows the test has set."""
        self._check_control()
        return [row for row in self.rows if not ready_only or row.get("state") == "READY"]

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Note it."""
        self._check_control()
        self.loads.append((name, config_json, dict(files)))

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Note it."""
        self._check_control()
        self.unloads.append((name, unload_dependents))

    def _take(self, request: Request) -> None:
        if self.refusal is not None:
            raise self.refusal
        request.served_by = self.model
        self.requests.append(request)

    def _check_control(self) -> None:
        if self.control_error is not None:
            raise self.control_error

    def _find(self, name: str) -> None:
        if name not in (MODEL, DECOUPLED):
            raise NotFound(f"Request for unknown model: '{name}' is not found")

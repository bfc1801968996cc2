"""Stand-ins for tests: a clock set by hand, a reply that collects, a backend held by events.

Tests wait on the events these offer instead of sleeping.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.backends.base import (
    Backend,
    Executor,
    LoadContext,
    LoadedModel,
    PendingRequest,
    Placement,
    RequestExecutor,
)
from shoal.backends.registry import BackendRegistry
from shoal.config.model import ModelConfig
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.testing import WAIT_SECS


class FakeClock:
    """A monotonic clock in nanoseconds that only moves when the test advances it."""

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        """The time."""
        return self.now_ns

    def advance(self, ns: int) -> None:
        """Move the clock forward."""
        self.now_ns += ns


class Collector:
    """A reply that keeps every response and lets a test wait for the final one."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.finals = 0
        self._done = threading.Event()

    def send(self, response: Response) -> None:
        """Keep the response."""
        self.responses.append(response)
        if response.final:
            self.finals += 1
            self._done.set()

    @property
    def answered(self) -> bool:
        """Whether the final response has come."""
        return self._done.is_set()

    def wait(self, timeout_secs: float = WAIT_SECS) -> Response:
        """The last response, once the final one has come."""
        if not self._done.wait(timeout_secs):
            raise TimeoutError("no final response came")
        return self.responses[-1]


def make_request(
    *tensors: Tensor, model: str = "m", rows: int | None = None, **options: object
) -> tuple[Request, Collector]:
    """A request with a collecting reply; with `rows`, as if validation had passed."""
    collector = Collector()
    inputs = {tensor.name: tensor for tensor in tensors}
    request = Request(model, inputs, collector, **options)
    if rows is not None:
        request.rows = rows
    return request, collector


class FakeExecutor(Executor):
    """Computes with a function of the test's and counts the batches it ran."""

    def __init__(self, owner: FakeBackend, placement: Placement) -> None:
        self.owner = owner
        self.placement = placement
        self.closed = False

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Wait for the gate, note the batch, compute."""
        self.owner.started.release()
        if not self.owner.gate.wait(WAIT_SECS):
            raise TimeoutError("the test never opened the gate")
        self.owner.batches.append(dict(inputs))
        return self.owner.compute(inputs, outputs)

    def close(self) -> None:
        """Note it."""
        self.closed = True
        self.owner.open_executors -= 1


class FakeLoadedModel(LoadedModel):
    """Makes fake executors."""

    def __init__(self, owner: FakeBackend) -> None:
        self.owner = owner

    def executor(self, placement: Placement) -> Executor:
        """A new instance."""
        self.owner.open_executors += 1
        return FakeExecutor(self.owner, placement)

    def close(self) -> None:
        """Note it."""
        self.owner.open_models -= 1


def echo(inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
    """Every output is the first input."""
    first = next(iter(inputs.values()))
    return [first for _ in outputs]


class _TestBackend(Backend):
    """Adds nothing to configs."""

    loads_in_parallel = True

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Nothing to add."""
        del model_folder, version_folder, settings
        return config

    def registry(self) -> BackendRegistry:
        """This backend alone, for `running_server(backends=...)`."""
        return BackendRegistry({self.name: lambda: self})


class RequestBackend(_TestBackend):
    """A backend whose executor hands the requests of each batch to a function of the test's."""

    name = "requests"

    def __init__(self, execute: Callable[[Sequence[PendingRequest]], None]) -> None:
        self.execute = execute

    def load(self, context: LoadContext) -> LoadedModel:
        """A model that passes its requests on."""
        del context
        return _RequestModel(self)


class _RequestModel(LoadedModel):
    def __init__(self, owner: RequestBackend) -> None:
        self._owner = owner

    def executor(self, placement: Placement) -> RequestExecutor:
        del placement
        return _RequestExecutor(self._owner)


class _RequestExecutor(RequestExecutor):
    def __init__(self, owner: RequestBackend) -> None:
        self._owner = owner

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        self._owner.execute(batch)


class FakeBackend(_TestBackend):
    """A backend whose executions a test can hold (`gate`), see (`batches`) and fail (`compute`)."""

    name = "fake"

    def __init__(
        self,
        compute: Callable[[Mapping[str, np.ndarray], Sequence[str]], Sequence[np.ndarray]] = echo,
        *,
        may_run_on_loop: bool = False,
    ) -> None:
        self.compute = compute
        self.may_run_on_loop = may_run_on_loop
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)  # released when an execution begins
        self.batches: list[dict[str, np.ndarray]] = []
        self.open_executors = 0
        self.open_models = 0
        self.loads: list[LoadContext] = []

    def load(self, context: LoadContext) -> LoadedModel:
        """Note the load."""
        self.loads.append(context)
        self.open_models += 1
        loaded = FakeLoadedModel(self)
        loaded.may_run_on_loop = self.may_run_on_loop
        return loaded


class HeldLoads(FakeBackend):
    """A fake backend whose loads a test can hold and fail."""

    def __init__(self) -> None:
        super().__init__()
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.loading = threading.Semaphore(0)  # released when a load begins
        self.failure: Exception | None = None

    def load(self, context: LoadContext) -> LoadedModel:
        """Wait for the gate, then load or fail."""
        self.loading.release()
        assert self.load_gate.wait(WAIT_SECS)
        if self.failure is not None:
            raise self.failure
        return super().load(context)

    @property
    def names(self) -> list[str]:
        """The models loaded so far."""
        return [context.config.name for context in self.loads]

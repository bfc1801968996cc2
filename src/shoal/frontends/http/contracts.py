"""The interfaces that the routes use: of the transport and of the engine.

    transport --Exchange--> Application --> Engine

Two small contracts, so that the routes can be tested with neither sockets nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from shoal.core.planned import PlannedRequest
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.frontends.http.message import Header
from shoal.statistics.trace_settings import Changes
from shoal.statistics.tracer import Tracer
from shoal.tasks.endpoint import TaskCall, TaskEndpoint


class HttpRequest(Protocol):
    """One complete request."""

    @property
    def method(self) -> str:
        """In upper case."""

    @property
    def path(self) -> str:
        """Still percent-encoded, without the query."""

    @property
    def query(self) -> str:
        """The part after the question mark, still encoded; empty without one."""

    @property
    def headers(self) -> Sequence[Header]:
        """All (name, value) pairs in order, names in lower case."""

    @property
    def body(self) -> bytes | memoryview:
        """The whole body, as received."""

    @property
    def plain_offset(self) -> int:
        """The offset of the tensors in a body without content coding; 0 without tensors."""

    @property
    def begun_ns(self) -> int:
        """When a large body began to arrive; 0 if the request came in one piece."""

    def header(self, name: bytes) -> bytes | None:
        """The value under a lower-case name."""


class Exchange(Protocol):
    """A request and its response. For the event loop's thread only."""

    on_disconnect: Callable[[], object] | None  # called at most once, before the response

    @property
    def request(self) -> HttpRequest:
        """The request."""

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once. Omits the body itself for HEAD."""

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client has read enough of the chunks, maybe at once."""


class Engine(Protocol):
    """The part of the engine that HTTP uses. Versions are numbers, -1 is the newest."""

    @property
    def tracer(self) -> Tracer:
        """Selects the requests that are traced."""

    def infer(self, request: Request) -> None:
        """Accept the request, or raise a ShoalError."""

    def infer_group(
        self, requests: Sequence[PlannedRequest], model: Any
    ) -> Sequence[PlannedRequest]:
        """Take over requests of one template; returns those whose model no longer serves."""

    def exiting(self) -> bool:
        """Whether the server is shutting down."""

    def live(self) -> bool:
        """Whether the server is alive."""

    def ready(self) -> bool:
        """Whether the server is ready for traffic."""

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready; NotFound for an unknown one. May block; see below."""

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` calls the model itself, which may be slow."""

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's inputs and outputs."""

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's config as a JSON document."""

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Counters, one element for each version."""

    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Why batches are as they are, of one version or of all models."""

    def signature(self, name: str, version: int = -1) -> Signature:
        """A model's tensors."""

    def find(self, name: str, version: int = -1) -> Any:
        """The loaded version that serves a name."""

    def newest_models(self) -> Sequence[Any]:
        """Every loaded model, each in its newest version."""

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses."""

    def task(self, operation: str, name: str = "", version: int = -1) -> TaskCall:
        """Begin a call of a task, or raise a ShoalError; `leave` must be called."""

    def tasks(self) -> Sequence[tuple[str, int, TaskEndpoint]]:
        """Every model that has a task: name, version and the task."""

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model and version with its state. Blocks."""

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model. Blocks."""

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model. Blocks."""

    def trace_settings(self, model: str = "") -> dict[str, list[str]]:
        """The trace settings of a model, or of all."""

    def update_trace_settings(self, model: str, changes: Changes) -> None:
        """Change the trace settings of a model, or of all, or raise a ShoalError."""

    def log_settings(self) -> dict[str, Any]:
        """The log settings."""

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """Change some log settings, whose values are already checked."""

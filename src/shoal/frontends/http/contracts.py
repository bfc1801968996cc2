"""What the routes need of the transport below them and of the engine behind them.

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
        """What follows the question mark, still encoded; empty without one."""

    @property
    def headers(self) -> Sequence[Header]:
        """All (name, value) pairs in order, names in lower case."""

    @property
    def body(self) -> bytes | memoryview:
        """The whole body, as it was sent."""

    @property
    def plain_offset(self) -> int:
        """Where the tensors begin, if there are any and nothing is to be encoded; else 0."""

    @property
    def begun_ns(self) -> int:
        """When a large body began to arrive; 0 where the request came in one piece."""

    def header(self, name: bytes) -> bytes | None:
        """The value under a lower-case name."""


class Exchange(Protocol):
    """A request and the way to answer it. Both are used on the event loop's thread only."""

    on_disconnect: Callable[[], object] | None  # called at most once, only before the answer

    @property
    def request(self) -> HttpRequest:
        """What was asked."""

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Answer, exactly once. Leaves the body out by itself where HTTP has none (HEAD)."""

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin an answer whose body follows in chunks."""

    def send_chunk(self, data: Buffer) -> None:
        """Send a piece of that body."""

    def end_stream(self) -> None:
        """Complete an answer that was begun with `start_stream`."""

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client keeps up with the chunks: at once, or when it has read."""


class Engine(Protocol):
    """The part of the engine that HTTP uses. Versions are numbers, -1 is the newest."""

    @property
    def tracer(self) -> Tracer:
        """Which requests are traced."""

    def infer(self, request: Request) -> None:
        """Take the request over, or raise a ShoalError."""

    def infer_group(
        self, requests: Sequence[PlannedRequest], model: Any
    ) -> Sequence[PlannedRequest]:
        """Take over requests of one template; returns those whose model no longer serves."""

    def exiting(self) -> bool:
        """Whether the server is on its way out."""

    def live(self) -> bool:
        """Whether the server works at all."""

    def ready(self) -> bool:
        """Whether traffic should come here."""

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model can be asked; NotFound for one nobody knows. May block; see below."""

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` asks the model itself, which may take a while."""

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's inputs and outputs."""

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        """A model's config, ready to be written as JSON."""

    def statistics(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Counters, one element for each version."""

    def explain(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Why batches are as they are, of one version or of all models."""

    def signature(self, name: str, version: int = -1) -> Signature:
        """A model's tensors."""

    def find(self, name: str, version: int = -1) -> Any:
        """The model that serves a name, for those who read what lies in its folder."""

    def newest_models(self) -> Sequence[Any]:
        """Every model that is loaded, each in the newest version that serves."""

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may answer any number of times."""

    def task(self, operation: str, name: str = "", version: int = -1) -> TaskCall:
        """Begin a call of a task, which must be left; or raise a ShoalError."""

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
        """What is logged and how."""

    def update_log_settings(self, changes: Mapping[str, Any]) -> None:
        """Change some log settings, to values known to be right."""

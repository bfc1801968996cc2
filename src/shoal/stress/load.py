"""The clients: perf's worker with a connection for each client, over plain TCP or HTTP.

ask(pool, clients, times) --> LevelMeasurement: latencies, failures, CPU time of the clients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from shoal.ask.question import Question, http_message, tcp_answer, tcp_message
from shoal.client.address import Address
from shoal.errors import ShoalError
from shoal.perf.connection import ConnectionSetup, Endpoint, LoadError, SlotConnection
from shoal.perf.http_connection import HttpLoadConnection
from shoal.perf.messages import LoadJob
from shoal.perf.requests import Replay, SequencePosition
from shoal.perf.sequences import SequencePlan
from shoal.perf.worker_pool import LevelMeasurement, LoadLevel, WorkerPool, pause

_POLL_SECS = 0.01


@dataclass(frozen=True, slots=True)
class QuestionTarget:
    """The server to ask, and the protocol."""

    protocol: str  # "tcp" or "http"
    host: str
    port: int
    model: str = ""  # empty lets the server choose
    prefix: str = ""
    api_key: str = field(default="", repr=False)

    @property
    def address(self) -> Address:
        """As the client library writes it."""
        return Address("http", self.host, self.port, encrypted=False, prefix=self.prefix)

    def pool(self, scripts: Sequence[Sequence[Question]], timeout_secs: float) -> WorkerPool:
        """A worker whose clients ask the questions of these scripts."""
        return WorkerPool(
            LoadJob(
                Endpoint(self.protocol, self.host, self.port, encrypted=False),
                [[_Message(self._message(question)) for question in each] for each in scripts],
                sequences=SequencePlan(),
                connection=TcpConnection if self.protocol == "tcp" else HttpLoadConnection,
                tolerant=True,
                timeout_secs=timeout_secs,
            )
        )

    def _message(self, question: Question) -> bytes:
        if self.protocol == "tcp":
            return tcp_message(self.model, question, self.api_key)
        return http_message(self.address, self.model, question, self.api_key)


def ask(
    pool: WorkerPool, clients: int, times: int, tick: Callable[[int], None]
) -> LevelMeasurement:
    """Have every client ask `times` questions; `tick` is called with the number done."""
    pool.end_window()
    pool.start(LoadLevel(concurrency=clients, each=times))
    idle = False
    while not idle:
        pause(_POLL_SECS)
        done, idle = pool.count()
        tick(done)
    end_ns = perf_counter_ns()
    sample = pool.end_window()
    sample.end_ns = end_ns if sample.failures else int(sample.ends.max())
    if len(sample.starts):  # the pool's clock begins once its workers know of the load
        sample.begin_ns = min(sample.begin_ns, int(sample.starts.min()))
    return sample


@dataclass(frozen=True, slots=True)
class _Message:
    """A question as bytes; see `perf.requests.Replay`."""

    message: bytes

    def filled(self, position: SequencePosition | None) -> bytes:  # noqa: ARG002 - always the same bytes
        return self.message


class TcpConnection(SlotConnection):
    """Questions over plain TCP: a line of JSON, then a line with the answer."""

    def __init__(self, setup: ConnectionSetup) -> None:
        super().__init__(setup)
        self._line = b""

    def start(self, replay: Replay, position: SequencePosition | None) -> None:
        """Send a question. Raises LoadError."""
        self.position = position
        self._line = b""
        self.waiting = True
        self.start_ns = perf_counter_ns()
        self.write(replay.filled(position))

    def on_readable(self) -> None:
        """Process what arrived. Raises LoadError."""
        data = self._read()
        if not data:
            return
        self._line += data
        if b"\n" not in data:
            return
        if not self.waiting or self._line.find(b"\n") != len(self._line) - 1:
            raise LoadError("the server sent more than one line for an answer")
        end_ns = perf_counter_ns()
        self.waiting = False
        try:
            tcp_answer(self._line[:-1])
        except ShoalError as error:
            self.owner.refused(self, error.message)
        else:
            self.owner.finished(self, end_ns)

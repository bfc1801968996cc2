"""One worker of a load: owns the sockets of its share and timestamps every request.

    commands --> [ LoadWorker ] --> HttpLoadConnection / GrpcSlot --> server
                 '--> WorkerReport: the timestamps since the last report, and the CPU time

It runs on a thread, or in a process when one thread is not enough, and does the same in both.
Commands and reports travel over a pipe, which is polled like a socket.
"""

from __future__ import annotations

import contextlib
import signal
import ssl
import time
from collections.abc import Iterator
from multiprocessing.connection import Client
from multiprocessing.connection import Connection as Pipe
from time import perf_counter_ns
from typing import Any

from shoal.errors import ShoalError
from shoal.perf import poller
from shoal.perf.connection import (
    ConnectionSetup,
    LoadError,
    RequestSlot,
    SlotConnection,
    tls_context,
)
from shoal.perf.grpc_connection import (
    SLOTS_PER_CONNECTION,
    GrpcConnection,
    GrpcSlot,
    call_headers,
)
from shoal.perf.messages import (
    Count,
    CountCommand,
    DrainCommand,
    Load,
    LoadJob,
    ReportCommand,
    WorkerReport,
)
from shoal.perf.poller import Watched
from shoal.perf.requests import Replay, SequencePosition
from shoal.perf.sequences import RunningSequence, Sequences

MOST_SLOTS = 1024  # of a load by schedule, where slow responses make requests accumulate
PipeEnd = Pipe | tuple[Any, bytes]  # or the address and secret of a listener
LATE_NS = 1_000_000  # a request sent later than this was delayed
_LONGEST_CHECK_SECS = 1.0
_SCHEDSTAT = "/proc/thread-self/schedstat"


class LoadWorker:
    """One share of the load."""

    def __init__(self, job: LoadJob, pipe: Pipe) -> None:
        self._job = job
        self._pipe = pipe
        self._poller = poller.make()
        self._tls: ssl.SSLContext | None = None
        self._connections: list[SlotConnection | GrpcConnection] = []
        self._slots: list[RequestSlot] = []
        self._idle: list[RequestSlot] = []
        self._load = Load()
        self._replays = [replay for stream in job.streams for replay in stream]
        self._cursor = 0
        self._sequences: Sequences | None = None
        self._running: set[RequestSlot] = set()
        self._closing: set[RequestSlot] = set()  # ending their sequences; not counted
        self._left: int | None = None
        self._sequences_left: int | None = None
        # When to look for requests that take too long.
        self._check_ns = perf_counter_ns() if job.timeout_secs else None
        self._due: Iterator[int] = iter(())
        self._next_due_ns: int | None = None
        self._draining = False
        self._stopped = False
        self._report = WorkerReport()
        self._cpu_ns = 0
        self._starved_ns = 0
        # Sums that the slots add to.
        self.send_ns = 0
        self.receive_ns = 0

    def run(self) -> None:
        """Run until a StopCommand arrives or the pipe is closed."""
        self._poller.watch(self._pipe.fileno(), self)
        watched, writable = self._poller.watched, self._poller.writable
        self._cpu_ns, self._starved_ns = time.thread_time_ns(), processor_wait_ns()
        try:
            while not self._stopped:
                for file, mask in self._poller.wait(self._timeout_secs()):
                    connection = watched.get(file)
                    if connection is None:
                        continue
                    try:
                        if mask & writable:
                            connection.on_writable()
                        if mask != writable:
                            connection.on_readable()
                    except ShoalError as error:
                        self._broken(connection, error.message)
                if self._next_due_ns is not None:
                    self._dispatch()
                if self._check_ns is not None and perf_counter_ns() >= self._check_ns:
                    self._expire()
        finally:
            self._close()

    # ---- commands

    def on_readable(self) -> None:
        """A command has arrived."""
        try:
            command = self._pipe.recv()
        except (EOFError, OSError):
            self._stopped = True
            return
        if isinstance(command, Load):
            self._begin(command)
        elif isinstance(command, ReportCommand):
            self._respond(self._take_report())
        elif isinstance(command, CountCommand):
            idle = not self._running
            finished = len(self._report.ends) + self._report.failures.total()
            self._respond(Count(finished, idle, self._report.problem))
        elif isinstance(command, DrainCommand):
            self._drain()
        else:
            self._stopped = True

    def on_writable(self) -> None:
        """Nothing is queued for the pipe."""

    def _respond(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError:  # the other end is closed
            self._stopped = True

    def _begin(self, load: Load) -> None:
        """Change to another load; requests in flight continue."""
        self._draining = False
        if (load.share, load.shares) != (self._load.share, self._load.shares):
            self._sequences = None  # other workers use some of its ids now
        self._load = load
        self._left = load.limit
        self._sequences_left = None if load.each is None else load.concurrency
        plan = self._job.sequences
        if plan is not None and self._sequences is None:
            steps = [len(stream) for stream in self._job.streams]
            self._sequences = Sequences(plan, steps, load.share, load.shares)
        self._cursor = load.share % len(self._replays)
        try:
            if load.schedule is None:
                self._next_due_ns = None
                while (
                    len(self._running) < load.concurrency
                    and self._left != 0
                    and self._sequences_left != 0
                ):
                    self._issue(self._free_slot())
            else:
                if plan is not None:
                    while len(self._slots) < self._job.slots_for_sequences:
                        self._idle.append(self._new_slot())
                self._due = load.schedule.offsets()
                self._next_due_ns = load.origin_ns + next(self._due)
        except ShoalError as error:
            self._fail(error.message)

    def _drain(self) -> None:
        self._draining = True
        self._next_due_ns = None
        if self._sequences is not None:
            # With a schedule, some sequences may have no request in flight.
            for slot in list(self._idle):
                self._end_sequence(slot)
        self._load = Load(share=self._load.share, shares=self._load.shares)
        self._report_if_idle()

    def _report_if_idle(self) -> None:
        if self._draining and not self._running:
            self._draining = False
            self._respond(self._take_report())

    # ---- requests

    def _issue(self, slot: RequestSlot) -> None:
        """Send the slot's next request."""
        if self._left is not None:
            self._left -= 1
        self._report.sent += 1
        if self._sequences is None:
            replays = self._replays
            cursor = self._cursor
            self._cursor = cursor + 1 if cursor + 1 < len(replays) else 0
            self._running.add(slot)
            slot.start(replays[cursor], None)
            return
        sequence = slot.sequence
        if sequence is None or sequence.ended:
            sequence = slot.sequence = self._sequences.begin(self._load.each)
            if self._sequences_left is not None:
                self._sequences_left -= 1
        position, step = sequence.next()
        self._running.add(slot)
        if self._job.tolerant:
            self._try(slot, sequence, self._job.streams[sequence.stream][step], position)
        else:
            slot.start(self._job.streams[sequence.stream][step], position)

    def _try(
        self,
        slot: RequestSlot,
        sequence: RunningSequence,
        replay: Replay,
        position: SequencePosition,
    ) -> None:
        """Send a request and count it as failed where that is impossible."""
        assert isinstance(slot, SlotConnection)
        try:
            if not slot.opened:
                slot.open()
        except ShoalError as error:
            # Connecting again for each of the slot's requests would only take time.
            self._report.failures[error.message] += 1 + sequence.left
            slot.sequence = None
            self._running.discard(slot)
            self._idle.append(slot)
            return
        try:
            slot.start(replay, position)
        except ShoalError as error:
            self._broken(slot, error.message)

    def finished(self, slot: RequestSlot, end_ns: int) -> None:
        """A request was answered: record it, and send the next one if there is one."""
        position = slot.position
        if slot in self._closing:
            self._closing.discard(slot)
        else:
            report = self._report
            report.starts.append(slot.start_ns)
            report.ends.append(end_ns)
            if position is not None and position.end:
                report.sequence_ends.append(end_ns)
            if self._job.decoupled:
                report.responses.append(len(slot.moments))
            if self._job.keep_details:
                report.sequence_ids.append(0 if position is None else position.sequence_id)
                if slot.moments:
                    report.moments[slot.start_ns] = slot.moments
        self._next(slot)

    def refused(self, slot: RequestSlot, reason: str, status: str = "") -> None:
        """The server refused a request: count that, or end the load with LoadError."""
        if not self._job.tolerant:
            raise LoadError(f"the server refused a request{status}: {reason}")
        self._report.failures[reason] += 1
        self._next(slot)

    def _next(self, slot: RequestSlot) -> None:
        """The slot is free: send its next request if there is to be one."""
        load = self._load
        if (
            load.schedule is None
            and len(self._running) <= load.concurrency
            and self._left != 0
            and (self._sequences_left != 0 or (slot.sequence and not slot.sequence.ended))
        ):
            self._issue(slot)
            return
        if load.schedule is not None:
            self._running.discard(slot)
            self._idle.append(slot)
            return
        self._running.discard(slot)
        self._idle.append(slot)
        self._end_sequence(slot)
        self._report_if_idle()

    def _end_sequence(self, slot: RequestSlot) -> None:
        """Send the last request of the slot's sequence, if it is not ended yet."""
        sequence = slot.sequence
        if sequence is None or not sequence.begun:
            return
        self._idle.remove(slot)
        self._running.add(slot)
        self._closing.add(slot)
        position, step = sequence.next(last=True)
        slot.start(self._job.streams[sequence.stream][step], position)

    def _dispatch(self) -> None:
        """Send the requests that are due.

        Their latency counts from when they were due: one that had to wait for a free slot, because
        the server stalled, waited for the server (correction of coordinated omission).
        """
        try:
            while self._next_due_ns is not None:
                now_ns = perf_counter_ns()
                if self._next_due_ns > now_ns:
                    return
                if not self._idle and (
                    self._sequences is not None or len(self._slots) >= MOST_SLOTS
                ):
                    return
                if now_ns - self._next_due_ns > LATE_NS:
                    self._report.delayed += 1
                slot = self._free_slot()
                self._issue(slot)
                slot.start_ns = self._next_due_ns
                self._next_due_ns = self._load.origin_ns + next(self._due)
                if self._left == 0:
                    self._next_due_ns = None
        except ShoalError as error:
            self._fail(error.message)

    def _timeout_secs(self) -> float | None:
        if self._check_ns is not None:
            return max(0, self._check_ns - perf_counter_ns()) / 1e9
        if self._next_due_ns is None:
            return None
        if not self._idle and (self._sequences is not None or len(self._slots) >= MOST_SLOTS):
            return None
        # 0: poll without waiting.
        return max(0, self._next_due_ns - perf_counter_ns()) / 1e9

    def _expire(self) -> None:
        """Give up requests that take longer than the time-out."""
        secs = self._job.timeout_secs
        now_ns = perf_counter_ns()
        self._check_ns = now_ns + int(min(secs / 4, _LONGEST_CHECK_SECS) * 1e9)
        for slot in [slot for slot in self._running if now_ns - slot.start_ns > secs * 1e9]:
            assert isinstance(slot, SlotConnection)
            self._broken(slot, f"no answer within {secs:g} s")

    def _broken(self, connection: Watched, reason: str) -> None:
        """A connection is unusable: count its request as failed, or end the load."""
        if not self._job.tolerant or not isinstance(connection, SlotConnection):
            self._fail(reason)
            return
        connection.close()
        if connection in self._running:
            self.refused(connection, reason)

    def _fail(self, why: str) -> None:
        """End the load; the next response to a command reports why."""
        self._report.problem = self._report.problem or why
        self._next_due_ns = None
        self._load = Load(share=self._load.share, shares=self._load.shares)
        self._running.clear()
        self._idle.clear()
        self._slots.clear()
        self._closing.clear()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._report_if_idle()

    # ---- slots

    def _free_slot(self) -> RequestSlot:
        """An idle slot, or a new one. Raises LoadError."""
        return self._idle.pop() if self._idle else self._new_slot()

    def _new_slot(self) -> RequestSlot:
        job = self._job
        endpoint = job.endpoint
        if endpoint.tls is not None and self._tls is None:
            self._tls = tls_context(endpoint.tls, h2=endpoint.protocol == "grpc")
        setup = ConnectionSetup(endpoint, self._tls, self._poller, self)
        slot: RequestSlot
        if endpoint.protocol != "grpc":
            made = job.connection(setup)
            self._connections.append(made)
            if not job.tolerant:
                made.open()
            slot = made
        else:
            last = self._connections[-1] if self._connections else None
            if not isinstance(last, GrpcConnection) or last.slots >= SLOTS_PER_CONNECTION:
                headers = call_headers(
                    endpoint,
                    streaming=job.streaming,
                    more=job.metadata,
                    compression=job.compression,
                )
                last = GrpcConnection(setup, headers)
                last.open()
                self._connections.append(last)
            last.slots += 1
            slot = GrpcSlot(last, job.streaming, job.decoupled)
        self._slots.append(slot)
        return slot

    # ---- reports

    def _take_report(self) -> WorkerReport:
        report, self._report = self._report, WorkerReport()
        cpu_ns, starved_ns = time.thread_time_ns(), processor_wait_ns()
        report.cpu_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        report.starved_ns, self._starved_ns = starved_ns - self._starved_ns, starved_ns
        report.send_ns, self.send_ns = self.send_ns, 0
        report.receive_ns, self.receive_ns = self.receive_ns, 0
        self._report.problem = report.problem
        return report

    def _close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.close()
        self._poller.close()
        self._pipe.close()


def run(job: LoadJob, end: PipeEnd) -> None:
    """The body of a worker's thread."""
    pipe = Client(end[0], authkey=end[1]) if isinstance(end, tuple) else end
    LoadWorker(job, pipe).run()


def run_process(job: LoadJob, end: PipeEnd) -> None:
    """The body of a worker's process. Ctrl-C is handled by the parent, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(job, end)


def processor_wait_ns() -> int:
    """How long this thread has waited for a CPU; 0 where the system does not report it."""
    try:
        with open(_SCHEDSTAT, encoding="ascii") as file:  # noqa: PTH123 - short and often
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0

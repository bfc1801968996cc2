"""The model's side of the link: a process with one model of any backend, and instances of it.

    complete --> completed --> end
    load --> started --> instance --> started --> (run | execute | cancel)* --> stop --> end

The main thread loads the model and runs it. While it is idle it also reads the link. For executors
that take requests another thread reads, so that a cancellation arrives during an execution. Several
executors, which take tensors or photos, have as many threads; any of them takes any batch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from shoal.backends.base import Backend, Executor, LoadContext, LoadedModel, RequestExecutor
from shoal.backends.isolation.metrics import RemoteMetrics
from shoal.backends.request_entry import Entry, request_of
from shoal.config import codec
from shoal.core.named_frame import named_frame
from shoal.core.photos import unpacked_frames
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Tensor
from shoal.errors import Internal, ShoalError
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.child import WorkReader, serve_link
from shoal.link.link import Link

logger = logging.getLogger(__name__)

_MOST_THREADS = 256
_COUNTERS_SECS = 0.1
_MOST_BACKLOG_BYTES = 1 << 20  # of messages that the server has still to read


def main(connection: str) -> NoReturn:
    """Serve the model that the server sends on `connection`, until the link is closed."""
    faulthandler.enable()
    serve_link(connection, lambda link: _Child(link).run())


class _LogSender(logging.Handler):
    """Sends log records to the server's log."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "pathname": record.pathname,
            "filename": record.filename,
            "lineno": record.lineno,
            "msg": record.getMessage(),
            "created": record.created,
        }
        if record.exc_info:
            fields["exc_text"] = self._formatter.formatException(record.exc_info)
        try:
            self._link.send("log", fields)
        except ChannelClosed:  # the server is gone
            return


class _Child:
    """The process. `run` is its main thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._name = ""
        self._version = 0
        self._decoupled = False
        self._executor: Executor | RequestExecutor  # the last one that was made
        self._count = 0
        self._idle: queue.SimpleQueue[Executor | RequestExecutor] = queue.SimpleQueue()
        self._model: LoadedModel
        self._counts = False  # whether the model has counters
        self._worked = threading.Event()  # since the counters were sent
        self._threads: ThreadPoolExecutor | None = None  # of a model that is reentrant
        self._running: dict[int, Request] = {}  # for cancellation; each change is atomic
        handlers: dict[str, Callable[..., None]] = {
            "complete": lambda *body: self._work.put((self._complete, body)),
            "load": lambda *body: self._work.put((self._load, body)),
            "classify_photos": lambda *body: self._work.put((self._classify_photos, body)),
            "instance": lambda *body: self._work.put((self._make_instance, body)),
            "close_instance": lambda: self._work.put((self._close_instance, ())),
            "run": lambda *body: self._work.put((self._run, body)),
            "classify": lambda *body: self._work.put((self._classify, body)),
            "execute": self._on_execute,
            "cancel": self._on_cancel,
            "read": self._on_read,
            "stop": lambda: self._work.put((self._stop, ())),
        }
        self._work = WorkReader(link, handlers)
        self._serving = True

    def run(self) -> None:
        """Work until the server needs the process no more."""
        while self._serving:
            function, body = self._work.next()
            batches = (self._run, self._classify, self._execute)
            if self._threads is not None and function in batches:
                self._threads.submit(function, *body)
            else:
                function(*body)
            del function, body  # an idle process must not keep the last tensors

    def _complete(self, paths: list[str], content: bytes) -> None:
        self._serving = False
        sys.path[:] = paths
        try:
            # Written by the server, which has started this process.
            backend, config, *rest = pickle.loads(content)  # noqa: S301  # nosec B301
            completed = backend.complete(config, *rest)
            answer = json.dumps(codec.to_dict(completed))
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._link.send("failed", failure.pack(error))
        else:
            self._link.send("completed", answer)

    # ---- loading

    def _load(self, paths: list[str], content: bytes, counts: bool, log_level: int) -> None:
        sys.path[:] = paths
        logging.getLogger().addHandler(_LogSender(self._link))
        logging.getLogger("shoal").setLevel(log_level)
        try:
            context: LoadContext
            backend: Backend
            backend, context = pickle.loads(content)  # noqa: S301  # nosec B301
            if counts:
                context = replace(context, metrics=RemoteMetrics(self._link))
            self._name, self._version = context.config.name, context.version
            policy = context.config.model_transaction_policy
            self._decoupled = policy is not None and policy.decoupled
            self._model = backend.load(context)
            axes = {name: tuple(names) for name, names in self._model.axis_names.items()}
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._fail(error)
            return
        self._counts = type(self._model).counters is not LoadedModel.counters
        if self._counts:
            self._worked.set()  # the counters as they begin
            threading.Thread(target=self._send_counters, name="shoal-counters", daemon=True).start()
        if self._model.reentrant:
            self._threads = ThreadPoolExecutor(_MOST_THREADS, "shoal-instance")
        interface = self._model.interface
        plain = None if interface is None else interface.to_plain()
        self._link.send("started", axes, self._model.reentrant, plain)

    def _classify_photos(self, content: bytes) -> None:
        try:
            plan = pickle.loads(content)  # noqa: S301  # nosec B301
            self._link.send("started", self._model.classify_photos(plan))
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._fail(error)

    def _make_instance(self, content: bytes) -> None:
        try:
            self._executor = self._model.executor(pickle.loads(content))  # noqa: S301  # nosec B301
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._fail(error)
            return
        self._count += 1
        self._idle.put(self._executor)
        if self._count > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(_MOST_THREADS, "shoal-instance")
        # If native code crashes, the traceback has a line with the model's name.
        running = f"model '{self._name}' version {self._version} was running"
        self._run = named_frame(_Child._run, running).__get__(self)  # type: ignore[method-assign]
        self._execute = named_frame(_Child._execute, running).__get__(self)  # type: ignore[method-assign]
        takes_requests = isinstance(self._executor, RequestExecutor)
        later = isinstance(self._executor, RequestExecutor) and self._executor.answers_later
        if takes_requests:
            self._work.listen()
        self._link.send("started", takes_requests, later)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, ShoalError):
            logger.error("model '%s' failed to load: %s", self._name, error, exc_info=error)
        self._link.send("failed", failure.pack(error))
        self._serving = False

    # ---- executors that take tensors

    def _run(
        self, number: int, names: list[str], packed: list[Any], outputs: Sequence[str]
    ) -> None:
        # No reference to an input is kept: the answer reports their memory as unused.
        self._answer(
            number,
            lambda executor: executor.run(
                dict(zip(names, self._link.unpack_arrays(packed), strict=True)), outputs
            ),
        )

    def _classify(self, number: int, packed: list[Any], frames: bytes) -> None:
        """As `_run`, for photos."""
        self._answer(
            number,
            lambda executor: executor.classify(
                self._link.unpack_buffers(packed), unpacked_frames(frames)
            ),
        )

    def _answer(self, number: int, run: Callable[[Any], Sequence[np.ndarray]]) -> None:
        """Run a batch on an executor that is idle, or on the one that is reentrant."""
        results: list[Any] = []
        error = None
        executor = self._executor if self._model.reentrant else self._idle.get()
        try:
            results = self._link.pack_arrays(run(executor))
        except BaseException as raised:  # noqa: BLE001 - a model's sys.exit() is an error, too
            error = self._described(raised)
        if not self._model.reentrant:
            self._idle.put(executor)
        self._link.send("done", number, results, error)
        if self._counts:
            self._worked.set()

    def _close_instance(self) -> None:
        """Close one of several, as soon as it is idle."""
        self._count -= 1
        try:
            self._idle.get().close()
        except Exception:  # there are others
            logger.exception("closing an instance of model '%s' failed", self._name)

    def _described(self, raised: BaseException) -> failure.PackedError:
        """The error for the server; the traceback of an unexpected one goes to the log."""
        if not isinstance(raised, ShoalError):
            name, version = self._name, self._version
            logger.error("model '%s' version %d failed: %s", name, version, raised, exc_info=raised)
        return failure.pack_execution(raised)

    # ---- executors that take requests

    def _on_execute(self, work: list[tuple[int, list[Entry]]]) -> None:
        for number, entries in work:
            batch = []
            for entry in entries:
                request = request_of(entry, self._name, self._link)
                self._running[entry[0]] = request
                batch.append(_ChildPendingRequest(self, entry[0], request))
            self._work.put((self._execute, (number, batch)))

    def _on_read(self, key: int, count: int) -> None:
        request = self._running.get(key)
        if request is not None:
            request.client_has_read(count)

    def _on_cancel(self, key: int) -> None:
        request = self._running.get(key)
        if request is not None:
            request.cancel()

    def _execute(self, number: int, batch: list[_ChildPendingRequest]) -> None:
        assert isinstance(self._executor, RequestExecutor)
        error = None
        start_ns = time.monotonic_ns()
        try:
            self._executor.execute(batch)
        except BaseException as raised:  # noqa: BLE001 - as above
            error = self._described(raised)
        took_ns = time.monotonic_ns() - start_ns
        open_ones = [one for one in batch if not one.closed and not one.deferred]
        # The server fails the others; those of decoupled models may follow later.
        unanswered = [one.key for one in open_ones] if error or not self._decoupled else []
        for key in unanswered:
            self._running.pop(key, None)
        again = [one.key for one in batch if one.rescheduled]
        self._link.send("done", number, unanswered, again, error, took_ns)
        self._worked.set()

    def respond(
        self,
        key: int,
        outputs: Sequence[Tensor],
        error: ShoalError | None,
        parameters: Mapping[str, ParameterValue] | None,
        *,
        final: bool,
    ) -> None:
        """Send one response to the server."""
        if final:
            self._running.pop(key, None)
        packed_error = None if error is None else failure.pack(error)
        packed = self._link.pack(outputs)
        self._link.send("response", key, final, packed_error, dict(parameters or {}), packed)
        self._link.wait_for_room(_MOST_BACKLOG_BYTES)
        self._worked.set()

    def rescheduled(self, key: int) -> None:
        """The request runs again, with another number."""
        self._running.pop(key, None)

    # ---- the rest

    def _send_counters(self) -> None:
        """Send the model's counters a moment after it has worked, on a thread of its own."""
        with contextlib.suppress(ChannelClosed):  # the process ends
            while self._worked.wait():
                time.sleep(_COUNTERS_SECS)
                self._worked.clear()
                self._link.send("counters", dict(self._model.counters()))

    def _stop(self) -> None:
        self._serving = False
        try:
            for _ in range(self._count):
                self._idle.get().close()
            self._model.close()
        except Exception:  # it ends all the same
            logger.exception("closing model '%s' failed", self._name)
        self._link.send("stopped")


class _ChildPendingRequest:
    """One request being executed; see `shoal.backends.base.PendingRequest`."""

    def __init__(self, child: _Child, key: int, request: Request) -> None:
        self._child = child
        self._lock = threading.Lock()  # guards `closed` and the order of responses
        self.key = key
        self.request = request
        self.closed = False
        self.deferred = False
        self.rescheduled = False

    def defer(self) -> None:
        """Announce a response that comes after `execute` has returned."""
        self.deferred = True

    def send(
        self,
        outputs: Sequence[Tensor] = (),
        *,
        error: ShoalError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        final: bool = True,
    ) -> None:
        """Send one response; Internal when the final one has been sent already."""
        with self._lock:
            self._check_open("sent")
            self.closed = final
            self._child.respond(self.key, outputs, error, parameters, final=final)

    def reschedule(self) -> None:
        """Run the request again. The server answers it if its sequences are not iterative."""
        with self._lock:
            self._check_open("rescheduled")
            self.closed = self.rescheduled = True
            self._child.rescheduled(self.key)

    def _check_open(self, what: str) -> None:
        if self.closed:
            name = self.request.model_name
            raise Internal(f"a response for model '{name}' was {what} after the final one")

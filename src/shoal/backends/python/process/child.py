"""The model's side of the link: a process with one instance of one model in it.

start --> initialize --> (execute | cancel | …)* --> stop --> finalize --> end

The main thread runs the model. Another one reads, so that a model that waits for another model, or
checks whether its request was cancelled, receives that. When the server closes the link the
process ends.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from shoal import errors
from shoal.backends.python import failure, loading, numpy_names
from shoal.backends.python.api import host
from shoal.backends.python.api.config import ModelConfig
from shoal.backends.python.api.errors import TritonModelException
from shoal.backends.python.api.host import Context
from shoal.backends.python.api.request import REQUEST_RELEASE_RESCHEDULE, InferenceRequest
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.sender import ResponseStream
from shoal.backends.python.instance import ModelInstance
from shoal.backends.python.loading import ModelSource
from shoal.backends.python.process.remote_host import (
    MOST_BACKLOG_BYTES,
    RemoteHost,
    RemoteTrace,
)
from shoal.backends.request_entry import Entry, request_of
from shoal.core.request import Request
from shoal.link.channel import ChannelClosed
from shoal.link.child import WorkReader, serve_link
from shoal.link.link import Link

_LONGEST_HOLD_NS = 200_000  # for responses of fast models, which are sent together


def main(connection: str) -> NoReturn:
    """Serve the model that the server sends on `connection`, until the link is closed."""
    numpy_names.install()
    serve_link(connection, lambda link: Child(link).run())


class Child:
    """The process. `run` is its main thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._host = RemoteHost(link, self.listen)
        self._instance: ModelInstance | None = None
        self._names: frozenset[str] = frozenset()
        self._decoupled = False
        self._model_name = ""
        self._told_ns = 0  # when responses were last sent
        self._holding = threading.Event()
        self._flusher: threading.Thread | None = None
        self._running: dict[int, Request] = {}  # for cancellation; each change is atomic
        handlers: dict[str, Callable[..., None]] = {
            "execute": self._on_execute,
            "cancel": self._on_cancel,
            "ready": self._on_ready,
            "stop": lambda: self._work.put(None),
            "answer": self._host.answered,
            "result": self._host.returned,
        }
        # Batches of requests, and None at the end.
        self._work = WorkReader(link, handlers)

    def run(self) -> None:
        """Wait for the server's first message: complete a config, or serve."""
        heard: list[tuple[str, tuple[Any, ...]]] = []
        while not heard:  # a long config arrives in pieces
            heard += self._link.receive()
        kind, body = heard[0]
        if kind == "complete":
            self._complete(*body)
            return
        self._serve(*body)

    # ---- completing a config

    def _complete(self, file: str, model_folder: str, config: str) -> None:
        source = ModelSource(Path(file), Path(model_folder))
        context = Context(self._host, model_folder=model_folder)
        context.serving = False
        host.announce(context)
        try:
            module = loading.import_alone(source)
            found: Any = loading.model_class(module, source.file)
            completed: Any = ModelConfig(config)
            if hasattr(found, "auto_complete_config"):
                completed = found.auto_complete_config(completed)
            if not isinstance(completed, ModelConfig):
                raise TritonModelException(
                    f"auto_complete_config function in model '{json.loads(config)['name']}' must "
                    f"return a valid pb.ModelConfig object."
                )
            self._link.send("completed", json.dumps(completed.as_dict()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._link.send("failed", failure.describe(error))

    # ---- serving

    def _serve(
        self,
        file: str,
        model_folder: str,
        arguments: dict[str, str],
        names: list[str],
        decoupled: bool,
    ) -> None:
        source = ModelSource(Path(file), Path(model_folder))
        self._names = frozenset(names)
        self._decoupled = decoupled
        self._model_name = arguments["model_name"]
        context = Context(
            self._host, arguments["model_name"], arguments["model_instance_name"], model_folder
        )
        host.announce(context)  # for every thread: there is no other model here
        try:
            module = loading.import_alone(source)
            found = loading.model_class(module, source.file)
            instance = ModelInstance(found, arguments, context, decoupled=decoupled)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes the reason
            self._link.send("failed", failure.describe(error))
            return
        self._instance = instance
        if instance.has_is_ready:  # it may be called during an execution
            self.listen()
        self._link.send("started", instance.has_is_ready)
        while (work := self._work.next()) is not None:
            self._execute(instance, *work)
            del work  # an idle process must not keep the last requests' tensors
        instance.finalize()
        self._link.send("stopped")

    def _execute(
        self, instance: ModelInstance, batch: int, requests: list[InferenceRequest]
    ) -> None:
        start_ns = time.monotonic_ns()
        instance.execute(requests)
        now_ns = time.monotonic_ns()
        again = []
        for request in requests:
            answer = request._stream
            assert isinstance(answer, ProcessResponseStream)
            if request._release_flags == REQUEST_RELEASE_RESCHEDULE and not answer.over:
                again.append(answer.key)
                answer.release()
                self._running.pop(answer.key, None)
        # While there is more work, responses wait to be sent together, but never for long.
        waits = self._work.has_more and now_ns - self._told_ns < _LONGEST_HOLD_NS
        self._link.send("done", batch, again, now_ns - start_ns, more=waits)
        if waits:
            self._hold()  # not before: the flusher might have checked already
        else:
            self._told_ns = now_ns

    def _hold(self) -> None:
        """Responses wait for those that follow: make sure they are sent soon."""
        if self._holding.is_set():
            return
        self._holding.set()
        if self._flusher is None:
            self._flusher = threading.Thread(
                target=self._flush_late, name="shoal-flusher", daemon=True
            )
            self._flusher.start()

    def _flush_late(self) -> None:
        with contextlib.suppress(ChannelClosed):
            while self._holding.wait():
                time.sleep(_LONGEST_HOLD_NS * 5 / 1e9)
                self._holding.clear()
                self._link.flush()

    # ---- messages of the server

    def listen(self) -> None:
        """Read messages also while the model executes, from now on."""
        self._work.listen()

    def _on_execute(self, work: list[tuple[int, list[Entry]]]) -> None:
        for batch, entries in work:
            self._work.put((batch, self._requests(entries)))

    def _requests(self, entries: list[Entry]) -> list[InferenceRequest]:
        requests = []
        for entry in entries:
            key, traced = entry[0], entry[-1]
            answer = ProcessResponseStream(self, key, decoupled=self._decoupled)
            core = request_of(entry, self._model_name, self._link)
            if traced is not None:
                core.trace = RemoteTrace(key, *traced)
            answer.request = core
            self._running[key] = core
            requests.append(InferenceRequest._received(core, self._names, answer))
        return requests

    def _on_cancel(self, key: int) -> None:
        request = self._running.get(key)
        if request is not None:
            request.cancelled = True

    def _on_ready(self, call: int, timeout_secs: float) -> None:
        instance = self._instance
        assert instance is not None

        def ask() -> None:
            self._link.send("readiness", call, instance.ready(timeout_secs))

        threading.Thread(target=ask, name="shoal-is-ready", daemon=True).start()

    # ---- what requests send

    def send(
        self, key: int, response: InferenceResponse | None, *, final: bool, more: bool
    ) -> None:
        """Pass a response on, or just the end."""
        if final:
            self._running.pop(key, None)
        try:
            if response is None:
                self._link.send("response", key, final, None, {}, [])
            elif response._error is not None:
                error = (int(response._error.code()), response._error.message())
                self._link.send("response", key, final, error, {}, [])
            else:
                outputs = [
                    tensor._to_core(keep=True)
                    for tensor in response._outputs
                    if tensor._name in self._names
                ]
                packed = self._link.pack(outputs)
                parameters = response._parameters
                self._link.send("response", key, final, None, parameters, packed, more=more)
                self._link.wait_for_room(MOST_BACKLOG_BYTES)
        except ChannelClosed:
            raise errors.Unavailable("the server is gone") from None


class ProcessResponseStream(ResponseStream):
    """The responses to a request of the server."""

    __slots__ = ("_child", "key", "request")
    request: Request

    def __init__(self, child: Child, key: int, *, decoupled: bool) -> None:
        super().__init__(decoupled=decoupled)
        self._child = child
        self.key = key

    def _pass_on(
        self, response: InferenceResponse | None, *, final: bool, more: bool = False
    ) -> None:
        self._child.send(self.key, response, final=final, more=more)

    def cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        self._child.listen()
        return self.request.cancelled

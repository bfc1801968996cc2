"""An ASGI application beside the functions of a file: FastAPI's, Starlette's or any other.

    request (JSON), body --> scope, receive --application--> send --> head (JSON), body, body, …

It is a decoupled model, so that it works wherever models do: with front-end processes, isolated,
and with statistics, traces and keys. Its requests run concurrently on an event loop of its own, on
which its lifespan runs, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from shoal.backends.base import (
    Backend,
    LoadContext,
    LoadedModel,
    PendingRequest,
    Placement,
    RequestExecutor,
)
from shoal.backends.function.execution import AsyncLoop
from shoal.backends.function.reader import SourceLocation
from shoal.config.model import (
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelTransactionPolicy,
)
from shoal.core.dtypes import BYTES
from shoal.core.interface import FunctionInterface
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Cancelled, Internal, ShoalError

if TYPE_CHECKING:
    from shoal.backends.function.code import CodeFile

logger = logging.getLogger(__name__)

BACKEND = "function"
REQUEST, BODY, HEAD = "request", "body", "head"
_ARGUMENTS = ["scope", "receive", "send"]
_MOST_AHEAD_BYTES = 1 << 20  # that a client has not read, before the application has to wait
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NOT_IN_VALUES = re.compile(r"[\r\n\0]")
_ASGI = {"version": "3.0", "spec_version": "2.4"}

Application = Callable[..., Awaitable[None]]
Message = MutableMapping[str, Any]


def is_application(value: Any) -> bool:
    """Whether an object is an ASGI application."""
    if isinstance(value, type) or not callable(value):
        return False
    function = value if inspect.isroutine(value) else type(value).__call__
    if not inspect.iscoroutinefunction(function):
        return False
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return names[-3:] == _ARGUMENTS and len(names) <= 4


class ApplicationDeclaration:
    """An application that was found in a file; see `Declaration`."""

    def __init__(self, application: Application, name: str, file: Path) -> None:
        self.application = application
        self.name = name
        self.place = SourceLocation(str(file), name, str(file.absolute()))
        self.folder = file.absolute().parent
        self.interface = FunctionInterface(is_application=True)

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return ModelConfig(
            name=self.name,
            backend=BACKEND,
            input=tuple(
                ModelInput(name=name, data_type=BYTES.config_name, dims=(1,))
                for name in (REQUEST, BODY)
            ),
            output=tuple(
                ModelOutput(name=name, data_type=BYTES.config_name, dims=(1,))
                for name in (HEAD, BODY)
            ),
            instance_group=(ModelInstanceGroup(kind="KIND_CPU", count=1),),
            model_transaction_policy=ModelTransactionPolicy(decoupled=True),
        )


class ApplicationBackend(Backend):
    """Serves one application."""

    name = BACKEND
    uses_gpus = False

    def __init__(self, declaration: ApplicationDeclaration, code: CodeFile) -> None:
        self._declaration = declaration
        self._code = code

    def __reduce__(self) -> tuple[Callable[..., Backend], tuple[Any, ...]]:
        """For another process: the file is imported again there."""
        from shoal.backends.function.backend import from_file

        return from_file, (self._code.file.absolute(), self._declaration.name)

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """The config of the declaration is complete."""
        del model_folder, version_folder, settings
        return config if config.input else self._declaration.config

    def load(self, context: LoadContext) -> LoadedModel:
        """Start the application. Raises Internal if that fails."""
        self._code.hold()
        try:
            return ApplicationModel(context.config.name, self._declaration, self._code)
        except BaseException:
            self._code.release()
            raise


class ApplicationModel(LoadedModel):
    """An application that is being served."""

    reentrant = True

    def __init__(self, name: str, declaration: ApplicationDeclaration, code: CodeFile) -> None:
        self.interface = declaration.interface
        self._code = code
        self._application = declaration.application
        self._loop = AsyncLoop(f"{name}-asgi")
        self._lifespan = _Lifespan(declaration.application)
        self._changed = threading.Condition()  # guards _running
        self._running = 0
        try:
            self._loop.run(self._lifespan.start())
        except ShoalError:
            self._loop.stop()
            raise

    def executor(self, placement: Placement) -> RequestExecutor:
        """An instance; one is enough."""
        del placement
        return _ApplicationExecutor(self)

    def start(self, pending: PendingRequest) -> None:
        """Serve a request; does not wait for its end."""
        with self._changed:
            self._running += 1
        call = _ApplicationCall(self._application, pending, self._lifespan.state, self._loop)
        self._loop.start(call.serve()).add_done_callback(self._ended)

    def _ended(self, _future: Future[Any]) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def owed(self) -> int:
        """How many requests have no final response."""
        return self._running

    def finish(self) -> None:
        """Wait for the requests under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0)

    def close(self) -> None:
        """End the application, then release the file's modules."""
        self._loop.run(self._lifespan.stop())
        self._loop.stop()
        self._code.release()


class _ApplicationExecutor(RequestExecutor):
    """Passes requests on to the application."""

    answers_later = True

    def __init__(self, model: ApplicationModel) -> None:
        self._model = model

    def execute(self, batch: Sequence[PendingRequest]) -> None:
        """Begin requests."""
        for pending in batch:
            self._model.start(pending)

    def close(self) -> None:
        """Wait for the requests under way."""
        self._model.finish()


class _ApplicationCall:
    """One request of an application. Its methods run on the application's event loop."""

    def __init__(
        self,
        application: Application,
        pending: PendingRequest,
        state: Mapping[str, Any],
        loop: AsyncLoop,
    ) -> None:
        self._application = application
        self._pending = pending
        self._state = state
        self._loop = loop
        self._head: bytes | None = None  # of the response, until its first part is sent
        self._begun = self._complete = False
        self._body: bytes | None = None
        self._disconnected = asyncio.Event()
        self._waits = False  # for slow clients
        self._ahead_bytes = 0
        self._read = asyncio.Event()

    async def serve(self) -> None:
        """Call the application and complete the response."""
        request = self._pending.request
        request.on_cancel = lambda: self._loop.post(self._disconnect)
        request.on_read = lambda count: self._loop.post(partial(self._take_read, count))
        inputs = request.inputs
        try:
            sent = orjson.loads(inputs[REQUEST].array.item())
            self._body = bytes(inputs[BODY].array.item())
            self._waits = bool(sent.get("reports_reading"))
            await self._application(self._scope(sent), self._receive, self._send)
            if not self._complete:
                raise RuntimeError("the application sent no complete response")
        except Exception as error:  # noqa: BLE001 - becomes the response
            if not self._complete:
                left = Cancelled(f"{request.log_prefix()}the client has disconnected")
                self._fail(left if request.cancelled else error)
        except BaseException:
            if not self._complete:
                self._fail(Internal("the application is being unloaded"))
            raise

    def _scope(self, sent: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": dict(_ASGI),
            "http_version": sent["http_version"],
            "method": sent["method"],
            "scheme": sent["scheme"],
            "path": sent["path"],
            "raw_path": sent["raw_path"].encode("latin-1"),
            "query_string": sent["query_string"].encode("latin-1"),
            "root_path": "",
            "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in sent["headers"]],
            "client": tuple(sent["client"]) if sent["client"] else None,
            "server": tuple(sent["server"]) if sent["server"] else None,
            "state": dict(self._state),
            "extensions": {},
        }

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._complete:
            if self._pending.request.cancelled:
                self._disconnected.set()
            await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            if self._head is not None or self._begun:
                raise RuntimeError("the application began its response twice")
            self._head = _checked_head(message)
            return
        if kind != "http.response.body":
            raise RuntimeError(f"the application sent a message of type '{kind}'")
        if self._complete or (self._head is None and not self._begun):
            raise RuntimeError("the application sent a part of a body outside its response")
        outputs = [element(BODY, bytes(message.get("body", b"")))]
        if self._head is not None:
            outputs.insert(0, element(HEAD, self._head))
            self._head, self._begun = None, True
        if self._pending.request.cancelled:
            raise OSError("the client has disconnected")
        self._complete = not message.get("more_body", False)
        self._pending.send(outputs, final=self._complete)
        if not self._complete:
            self._ahead_bytes += len(message.get("body", b""))
            await asyncio.sleep(0)  # others have their turn
            while self._waits and self._ahead_bytes > _MOST_AHEAD_BYTES:
                if self._pending.request.cancelled:  # which may have set the event before
                    raise OSError("the client has disconnected")
                self._read.clear()
                await self._read.wait()

    def _take_read(self, count: int) -> None:
        self._ahead_bytes -= count
        self._read.set()

    def _disconnect(self) -> None:
        self._disconnected.set()
        self._read.set()

    def _fail(self, error: Exception) -> None:
        self._complete = True
        if not isinstance(error, ShoalError):
            prefix = self._pending.request.log_prefix()
            logger.error("%sthe application failed: %s", prefix, error, exc_info=error)
            error = BackendFailure(f"{type(error).__name__}: {error}")
        with contextlib.suppress(Internal):  # it was answered this very moment
            self._pending.send(error=error)


def _checked_head(message: Message) -> bytes:
    """The head of a response. RuntimeError, without the values, if it cannot be one: a client
    would take a line break for the end of a header."""
    status = message["status"]
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise RuntimeError(f"the application sent the status {status!r}")
    headers: list[tuple[str, str]] = []
    for name, value in message.get("headers", ()):
        shown, text = bytes(name).decode("latin-1"), bytes(value).decode("latin-1")
        if not _HEADER_NAME.fullmatch(shown) or _NOT_IN_VALUES.search(text):
            raise RuntimeError(f"the application sent the header {shown!r} with a forbidden sign")
        headers.append((shown, text))
    return orjson.dumps({"status": int(status), "headers": headers})


class _Lifespan:
    """The start and the end of an application. Its methods run on the application's loop."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self.state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[dict[str, Any]] | None = None
        self._answers: asyncio.Queue[Message] | None = None

    async def start(self) -> None:
        """Let the application start. Raises Internal with its reason if it does not."""
        messages = self._messages = asyncio.Queue()
        answers = self._answers = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": dict(_ASGI), "state": self.state}
        messages.put_nowait({"type": "lifespan.startup"})
        run = self._application(scope, messages.get, answers.put)
        self._task = asyncio.ensure_future(run)
        await self._answer()
        if self._task is not None and self._task.done():
            self._task.exception()  # an application without a lifespan raises one
            self._task = None

    async def stop(self) -> None:
        """Let the application end."""
        if self._task is None or self._messages is None:
            return
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        try:
            await self._answer()
            await self._task
        except Exception:  # it ends all the same
            logger.exception("the application failed when it was to end")

    async def _answer(self) -> None:
        """Wait for what the application says to a message, or for its end."""
        assert self._answers is not None
        assert self._task is not None
        answer = asyncio.ensure_future(self._answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            return
        message = answer.result()
        if message["type"].endswith(".failed"):
            raise Internal(
                f"the application did not start: {message.get('message') or 'no reason given'}"
            )


def element(name: str, content: bytes) -> Tensor:
    """A tensor of one element."""
    array = np.empty(1, dtype=object)
    array[0] = content
    return Tensor(name, BYTES, (1,), array=array)

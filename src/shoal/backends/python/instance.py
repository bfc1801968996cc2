"""One instance of a Python model: a TritonPythonModel object and the calls of its methods.

    initialize --> execute, execute, ... --> finalize        is_ready on request

The same code runs in the server and in a model's process; each request's ResponseStream sends its
responses to the right place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from shoal.backends.python import failure
from shoal.backends.python.api import host
from shoal.backends.python.api.errors import TritonError, TritonModelException
from shoal.backends.python.api.host import Context
from shoal.backends.python.api.request import (
    REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
from shoal.backends.python.api.response import InferenceResponse

READY_SECS = 5.0  # for `is_ready`


class ModelInstance:
    """Runs one model object. `execute` is called by one thread at a time."""

    def __init__(
        self, model_class: type, arguments: dict[str, str], context: Context, *, decoupled: bool
    ) -> None:
        """Create the object and initialise it. Raises the model's exceptions."""
        self._context = context
        self._decoupled = decoupled
        self._loop = _EventLoopThread(context)
        self._readiness: Future[bool] | None = None
        self._asking = threading.Lock()  # guards _readiness
        context.serving = False
        token = host.enter(context)
        try:
            self._model = model_class()
            if hasattr(self._model, "initialize"):
                self._model.initialize(arguments)
        finally:
            host.leave(token)
        self.has_is_ready = callable(getattr(self._model, "is_ready", None))
        context.serving = True

    @property
    def name(self) -> str:
        """The instance's name, as Triton makes it: <model>_<group>_<index>."""
        return self._context.instance_name

    # ---- requests

    def execute(self, requests: list[InferenceRequest]) -> None:
        """Run a batch. Never raises.

        On return each request has its response, will be executed again, or is kept by the model. A
        request that the model drops without a response gets an error.
        """
        token = host.enter(self._context)
        try:
            returned = self._model.execute(requests)
            if type(returned) is not list and isinstance(returned, Coroutine):
                if self._decoupled:
                    self._run_in_background(returned, requests)
                    return
                returned = self._loop.start(returned).result()
            if returned is not None:
                self._send(requests, returned)
        except BaseException as error:  # noqa: BLE001 - whatever a model raises is its answer
            self._fail(requests, error)
        finally:
            host.leave(token)

    def _send(self, requests: Sequence[InferenceRequest], returned: object) -> None:
        """Send the responses that `execute` returned; all are checked before any is sent."""
        if self._decoupled:
            raise TritonModelException(
                f"Python model '{self.name}' is using the decoupled mode and the execute function "
                f"must return None."
            )
        if not isinstance(returned, list):
            raise TritonModelException(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != len(requests):
            raise TritonModelException(
                f"Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(returned)}\n"
            )
        for request, response in zip(requests, returned, strict=True):
            if response is None:
                continue
            if request._release_flags == REQUEST_RELEASE_RESCHEDULE:
                raise TritonModelException(
                    f"Expected a None object in the execute function return list for reschduled "
                    f"request, found type '{type(response)}'."
                )
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(
                    f"Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
        for index, request in enumerate(requests):
            # Taken out of the list: no other reference to the tensors may exist when they are sent.
            response, returned[index] = returned[index], None
            if response is not None:
                assert request._stream is not None
                request._stream.finish(response)

    def _fail(self, requests: Sequence[InferenceRequest], error: BaseException) -> None:
        """Fail requests without a response with the exception, and log it."""
        text = f"Failed to process the request(s) for model '{self.name}', message: "
        text += failure.describe(error)
        self._context.host.log(logging.ERROR, text, *failure.place(error))
        for request in requests:
            assert request._stream is not None
            request._release_flags = 0
            request._stream.end(InferenceResponse(error=TritonError(text)))

    def _run_in_background(
        self, coroutine: Coroutine[Any, Any, Any], requests: Sequence[InferenceRequest]
    ) -> None:
        """Let a decoupled model's coroutine continue; it keeps its requests."""
        for request in requests:
            assert request._stream is not None
            request._stream.promised = True
        kept = list(requests)

        def done(future: Future[Any]) -> None:
            token = host.enter(self._context)
            try:
                error = future.exception()
                if error is None and future.result() is not None:
                    error = TritonModelException(
                        f"Python model '{self.name}' is using the decoupled mode and the execute "
                        f"function must return None."
                    )
                if error is not None:
                    self._fail(kept, error)
            except BaseException as cancelled:  # noqa: BLE001 - the loop was stopped
                self._fail(kept, cancelled)
            finally:
                kept.clear()
                host.leave(token)

        self._loop.start(coroutine).add_done_callback(done)

    # ---- readiness

    def ready(self, timeout_secs: float = READY_SECS) -> bool:
        """Call the model's `is_ready`, if it has one. An exception or a time-out means false.

        Calls during an earlier call get the result of that one.
        """
        if not self.has_is_ready:
            return True
        with self._asking:
            future = self._readiness
            if future is None:
                future = self._readiness = Future()
                threading.Thread(
                    target=self._ask, args=(future,), name=f"{self.name}-is-ready", daemon=True
                ).start()
        try:
            return future.result(timeout_secs)
        except Exception as error:  # noqa: BLE001 - the model's own, or a timeout
            if not future.done():
                text = f"is_ready of '{self.name}' took longer than {timeout_secs:g} s"
            else:
                text = f"is_ready of '{self.name}' failed: {failure.describe(error)}"
            self._context.host.log(logging.ERROR, text, *failure.place(error))
            return False

    def _ask(self, future: Future[bool]) -> None:
        token = host.enter(self._context)
        try:
            answer = self._model.is_ready()
            if isinstance(answer, Coroutine):
                answer = self._loop.start(answer).result()
            if not isinstance(answer, bool):
                raise TypeError(f"is_ready must return a bool, not {type(answer)}")
            self._forget(future)
            future.set_result(answer)
        except BaseException as error:  # noqa: BLE001 - becomes the answer
            self._forget(future)
            future.set_exception(error)
        finally:
            host.leave(token)

    def _forget(self, future: Future[bool]) -> None:
        with self._asking:
            if self._readiness is future:
                self._readiness = None

    # ---- the end

    def finalize(self) -> None:
        """Stop its event loop and call the model's `finalize`; exceptions are logged."""
        self._context.serving = False
        self._loop.stop()
        token = host.enter(self._context)
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:  # noqa: BLE001 - it has to go all the same
            text = f"finalize of '{self.name}' failed: {failure.describe(error)}"
            self._context.host.log(logging.ERROR, text, *failure.place(error))
        finally:
            host.leave(token)
        del self._model


class _EventLoopThread:
    """An event loop in its own thread, started with the first coroutine."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._making = threading.Lock()  # guards _loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on the loop."""
        with self._making:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, name=f"{self._context.instance_name}-asyncio", daemon=True
                )
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        assert self._loop is not None
        host.enter(self._context)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def stop(self) -> None:
        """End the loop and cancel its tasks."""
        with self._making:
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop = None

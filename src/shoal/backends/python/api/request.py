"""`pb_utils.InferenceRequest`: a client's request, or one from this model to another."""

from __future__ import annotations

import enum
import json
from collections.abc import Awaitable, Collection, Sequence
from typing import Any

import numpy as np

from shoal.backends.python.api import arguments, calls
from shoal.backends.python.api import parameters as parameter_rules
from shoal.backends.python.api.errors import TritonError, TritonModelException
from shoal.backends.python.api.response import InferenceResponse
from shoal.backends.python.api.sender import InferenceResponseSender, ResponseStream
from shoal.backends.python.api.tensor import Tensor
from shoal.core.reply import DISCARD, Reply
from shoal.core.request import Request, RequestTrace
from shoal.core.response import ParameterValue

REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2


class MemoryType(enum.IntEnum):
    """Where tensors may be."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """The memory in which a model prefers the outputs of another model."""

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._memory_type = MemoryType(preferred_memory_type)
        self._device_id = arguments.integer("preferred_device_id", preferred_device_id)


class InferenceTrace:
    """The trace a request belongs to."""

    __slots__ = ("_core",)

    def __init__(self, core: RequestTrace | None = None) -> None:
        self._core = core

    def get_context(self) -> str | None:
        """The trace's context as JSON text; None for a request that is not traced, or not in
        spans."""
        return None if self._core is None else self._core.context()


class InferenceRequest:
    """One request: received from a client, or created here for another model."""

    __slots__ = (
        "__weakref__",
        "_by_name",
        "_core",
        "_inputs",
        "_output_names",
        "_release_flags",
        "_stream",
        "_trace",
    )

    def __init__(  # noqa: PLR0917 - Triton's order
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Collection[str | bytes] | None = None,
        model_name: str | bytes | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        """A request to another model. `inputs`, `requested_output_names` and `model_name` must
        be given; `timeout` is in microseconds. Tensors always come back in the CPU's memory."""
        request_id = arguments.text("request_id", request_id)
        model_name = arguments.text("model_name", model_name)
        if not isinstance(inputs, (list, tuple)):
            raise TypeError(f"inputs must be a list of tensors, not {type(inputs)}")
        if not isinstance(requested_output_names, (list, tuple, set, frozenset, np.ndarray)):
            raise TypeError(
                f"requested_output_names must be a list of names, not "
                f"{type(requested_output_names)}"
            )
        where = f"request with id '{request_id}' and model name '{model_name}'"
        for tensor in inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor for {where} should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"an input must be a Tensor, not {type(tensor)}")
        names = [arguments.text("a requested output name", one) for one in requested_output_names]
        if "" in names:
            raise TritonModelException(f"Requested output name for {where} should not be empty.")
        if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
            raise TypeError(f"preferred_memory must be a PreferredMemory, not {preferred_memory!r}")
        self._core = Request(
            model_name,
            {},
            DISCARD,
            model_version=arguments.integer("model_version", model_version),
            id=request_id,
            requested_outputs=tuple(names),
            parameters=parameter_rules.checked(parameters),
            timeout_us=arguments.integer("timeout", timeout),
            correlation_id=_correlation_id(correlation_id),
            flags=arguments.integer("flags", flags),
        )
        self._inputs: list[Tensor] | None = list(inputs)
        self._by_name: dict[str, Tensor] = {tensor.name(): tensor for tensor in inputs}
        self._output_names: frozenset[str] = frozenset(names)
        self._stream: ResponseStream | None = None
        self._release_flags = REQUEST_RELEASE_ALL
        self._trace = trace

    @classmethod
    def _received(
        cls, core: Request, output_names: frozenset[str], answer: ResponseStream
    ) -> InferenceRequest:
        """Wrap a client's request; its tensors are decoded when the model reads them."""
        request: InferenceRequest = cls.__new__(cls)
        request._core = core
        request._inputs = None
        request._by_name = {}
        request._output_names = output_names
        request._stream = answer
        request._release_flags = REQUEST_RELEASE_ALL
        request._trace = None
        return request

    # ---- what was asked

    def inputs(self) -> list[Tensor]:
        """The input tensors."""
        if self._inputs is None:
            cores = self._core.inputs
            tensors = [self._by_name.get(name) or self._wrap(name) for name in cores]
            self._inputs = tensors
        return self._inputs

    def _input(self, name: str) -> Tensor | None:
        """The input called `name`, without decoding the others."""
        tensor = self._by_name.get(name)
        if tensor is None and name in self._core.inputs:
            return self._wrap(name)
        return tensor

    def _wrap(self, name: str) -> Tensor:
        tensor = self._by_name[name] = Tensor._from_core(self._core.inputs[name])
        return tensor

    def request_id(self) -> str:
        """The id the client gave."""
        return self._core.id

    def correlation_id(self) -> int | str:
        """The sequence this request belongs to; 0 for none."""
        return self._core.correlation_id

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._core.flags

    def set_flags(self, flags: int) -> None:
        """Set the flags, before the request is executed."""
        self._core.flags = arguments.integer("flags", flags)

    def timeout(self) -> int:
        """The client's time-out in microseconds; 0 for none."""
        return self._core.timeout_us

    def parameters(self) -> str:
        """The parameters as JSON text."""
        return json.dumps(self._core.parameters)

    def requested_output_names(self) -> set[str]:
        """The requested outputs: the client's choice, or all of them."""
        return set(self._core.requested_outputs or self._output_names)

    def preferred_memory(self) -> PreferredMemory:
        """Where the tensors will be: in the CPU's memory."""
        return PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)

    def trace(self) -> InferenceTrace:
        """The trace this request belongs to."""
        return self._trace or InferenceTrace(self._core.trace)

    # ---- responding to a client's request

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._core.cancelled if self._stream is None else self._stream.cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender of responses, also after `execute` has returned."""
        answer = self._stream
        if answer is None:
            raise TritonModelException(
                "Unable to send response. A request that this model makes itself is answered by "
                "the model it goes to: call exec() or async_exec()."
            )
        answer.promised = True
        return InferenceResponseSender(answer, self)

    def set_release_flags(self, flags: int) -> None:
        """With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE the request is executed again later."""
        flags = arguments.integer("release flags", flags)
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"Unsupported release flags {flags}: use TRITONSERVER_REQUEST_RELEASE_ALL or "
                f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE."
            )
        self._release_flags = flags

    # ---- calling another model

    def exec(self, decoupled: bool = False) -> InferenceResponse | calls.ResponseIterator:
        """Run it on the other model, and wait for its response.

        Returns the response, or with `decoupled` an iterator over all. Errors are in the response.
        """
        return calls.run(self, decoupled=decoupled)

    def async_exec(
        self, decoupled: bool = False
    ) -> Awaitable[InferenceResponse | calls.ResponseIterator]:
        """`exec` for `async def execute`: await it. Must be called on a running event loop."""
        return calls.run_async(self, decoupled=decoupled)

    def _outgoing(self, reply: Reply, *, waits: bool) -> Request:
        """A request for the server, a new one for each execution.

        Unless the model `waits` for the response, it may change its arrays meanwhile.
        """
        core = self._core
        request = Request(
            core.model_name,
            {tensor.name(): tensor._to_core(keep=waits) for tensor in self.inputs()},
            reply,
            model_version=core.model_version,
            id=core.id,
            requested_outputs=core.requested_outputs,
            parameters=dict(core.parameters),
            priority=core.priority,
            timeout_us=core.timeout_us,
            correlation_id=core.correlation_id,
            flags=core.flags,
        )
        if self._trace is not None and self._trace._core is not None:
            self._trace._core.attach(request)
        return request

    def __del__(self) -> None:
        # The model has dropped the request and its sender: it can no longer be answered.
        answer: ResponseStream | None = getattr(self, "_stream", None)
        if answer is not None and not answer.over:
            _abandon(answer, self._core)


def _abandon(answer: ResponseStream, core: Request) -> None:
    if answer.sent:  # the model has sent responses, but not the final flag
        answer.end(None)
    else:
        text = (
            f"Python model '{core.model_name}' neither returned a response for the request nor "
            f"kept it to answer it later"
        )
        answer.end(InferenceResponse(error=TritonError(text)))


def _correlation_id(value: Any) -> int | str:
    if value is None or isinstance(value, bool):
        raise TypeError(f"correlation_id must be an int or a str, not {value!r}")
    if not isinstance(value, (int, str)):
        raise TritonModelException("Correlation ID must be integer or string")
    return value

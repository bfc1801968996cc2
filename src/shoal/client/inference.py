"""Inference, for both protocols and both clients.

def infer(session, model, inputs, …) -> Steps[Result]     its docstring is the method's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from shoal.client import steps
from shoal.client.codec import (
    CallOptions,
    Headers,
    InferenceCall,
    Parameter,
    PreparedCall,
    RawResponse,
)
from shoal.client.errors import ClientError, InvalidInput, ServerError
from shoal.client.http_codec import HttpCodec
from shoal.client.inputs import InputTensor, needs_spec, tensor
from shoal.client.region import Place
from shoal.client.result import Result
from shoal.client.steps import ClientSession, Steps, Version, send_with_retries
from shoal.core import dtypes

P = ParamSpec("P")
T = TypeVar("T")

_CACHED_MODELS = 64
_LARGEST_EXAMPLE_BYTES = 16 << 20
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """An encoded inference: `client.send(prepared)` sends it any number of times."""

    call: PreparedCall[Result]
    options: CallOptions
    infer_call: InferenceCall


def described(
    session: ClientSession,
    model: str,
    inputs: Mapping[str, Any],
    *,
    outputs: Sequence[str] | Mapping[str, Place | None] = (),
    version: Version = "",
    id: str = "",
    parameters: Mapping[str, Parameter] | None = None,
    classes: Mapping[str, int] | None = None,
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    priority: int = 0,
    server_timeout_us: int = 0,
    timeout: float | None = None,
    headers: Headers | None = None,
    binary: bool = True,
) -> Steps[tuple[InferenceCall, CallOptions]]:
    """The inference that the arguments of `infer` describe. Raises InvalidInput."""
    if type(inputs) is not dict and not isinstance(inputs, Mapping):
        raise InvalidInput(
            f"inputs are a mapping from name to value, as in {{'data': array}}; found "
            f"{type(inputs).__name__}"
        )
    if not model:
        raise InvalidInput("name the model")
    specs = yield from _input_types(session, model, str(version), inputs, headers)
    if specs is None:
        tensors = [tensor(name, value) for name, value in inputs.items()]
    else:
        tensors = [tensor(name, value, specs.get(name, "")) for name, value in inputs.items()]
    infer_call = InferenceCall(model, str(version), tensors, id=id, binary=binary)
    if isinstance(outputs, str):
        raise InvalidInput(f"outputs is a list of names, as in [{outputs!r}]")
    if outputs or classes:
        infer_call.outputs = tuple(outputs)
        if isinstance(outputs, Mapping):
            infer_call.places = {
                name: place for name, place in outputs.items() if place is not None
            }
        if classes:
            _classify(infer_call, classes)
    given: dict[str, Parameter] = dict(parameters) if parameters else {}
    if sequence_id:
        given["sequence_id"] = sequence_id
        given["sequence_start"] = sequence_start
        given["sequence_end"] = sequence_end
    elif sequence_start or sequence_end:
        raise InvalidInput("sequence_start and sequence_end belong to a sequence_id")
    if priority:
        given["priority"] = priority
    if server_timeout_us:
        given["timeout"] = server_timeout_us
    if given:
        infer_call.parameters = given
    return infer_call, session.options(timeout, headers)


def _with_arguments_of(source: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function that passes its arguments on the signature of `source`."""

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        function.__wrapped__ = source  # type: ignore[attr-defined]
        return function

    return decorate


@_with_arguments_of(described)
def infer(session: ClientSession, *args: Any, **kwargs: Any) -> Steps[Result]:
    """Run an inference; `result["name"]` is an output as a numpy array.

    `inputs` are arrays, or lists, which are converted to the model's datatypes; see also `Input`
    and `shared_memory`. Without `outputs` all of them are returned; a mapping says which are
    written to a `Place` in shared memory. `classes={"prob": 3}` requests a classification.
    `timeout` is in seconds and includes retries (None: the client's; math.inf: no limit);
    `server_timeout_us` limits the time in the server's queue. With `binary` false tensors are sent
    as JSON, for servers without the binary extension.

    Raises InvalidInput before anything is sent, ServerError with the server's message,
    ConnectionFailed and Timeout.
    """
    prepared = yield from prepare(session, *args, **kwargs)
    try:
        result = yield from send_with_retries(session, prepared.call, prepared.options)
    except ServerError as error:
        if error.status in ("INVALID_ARGUMENT", "NOT_FOUND"):  # the model may have changed
            session.specs.pop((prepared.infer_call.model, prepared.infer_call.version), None)
        raise
    _keep_example(session, prepared.infer_call, result)
    return result


@_with_arguments_of(described)
def prepare(session: ClientSession, *args: Any, **kwargs: Any) -> Steps[Prepared]:
    """Encode an inference without sending it; `send` sends it any number of times."""
    infer_call, options = yield from described(session, *args, **kwargs)
    return Prepared(session.codec.infer(infer_call, options), options, infer_call)


def send(session: ClientSession, prepared: Prepared) -> Steps[Result]:
    """Send what `prepare` made. Raises as `infer` does."""
    return (yield from send_with_retries(session, prepared.call, prepared.options))


def labels(session: ClientSession, result: Result, output: str) -> Steps[Sequence[str]]:
    """The names of a model's classes for `output`, for `result.top_k`; empty where it has none.

    Servers return names only with a classification, so the first inputs that this client sent to
    the model are sent again.
    """
    key = (result.model_name, result.model_version, output)
    known = session.labels.get(key)
    example = session.examples.get(result.model_name)
    if known is not None or example is None:
        return known or ()
    count = min(_MOST_CLASSES, math.prod(result.outputs[output].shape))
    infer_call = InferenceCall(
        example.model, example.version, example.tensors, (output,), classes={output: count}
    )
    found: dict[int, str] = {}
    try:
        options = session.options()
        response = yield from steps.send_once(session.codec.infer(infer_call, options), options)
        for row in response.top_k(output, count):
            found.update((label.index, label.name) for label in row)
    except ClientError:  # e.g. an unloaded model: no names
        found = {}
    names = [found.get(index, "") for index in range(max(found, default=-1) + 1)]
    session.labels[key] = names if any(names) else ()
    return session.labels[key]


def generate(
    session: ClientSession,
    model: str,
    inputs: Mapping[str, Any],
    *,
    parameters: Mapping[str, Parameter] | None = None,
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """Run a model with plain JSON: `generate("llm", {"text_input": "hi", "max_tokens": 20})`.

    Names that are no inputs are parameters. Needs HTTP, and a model with exactly one response; for
    others use `generate_stream`. Raises as `infer` does.
    """
    options = session.options(timeout, headers)
    document = _generate_document(inputs, parameters)
    call = _plain(session).generate(model, str(version), document, options, stream=False)
    return (yield from send_with_retries(session, call, options))


def _plain(session: ClientSession) -> HttpCodec:
    if not isinstance(session.codec, HttpCodec):
        raise InvalidInput(
            "generate needs HTTP: use a client of the server's HTTP port, as in "
            "Client('localhost:8000'); over gRPC there is stream()"
        )
    return session.codec


def _generate_document(
    inputs: Mapping[str, Any], parameters: Mapping[str, Parameter] | None
) -> dict[str, Any]:
    """The JSON of a generate request."""
    document = {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in inputs.items()
    }
    if parameters:
        document["parameters"] = dict(parameters)
    return document


class Events:
    """A generate request with server-sent events: `data: {…}` lines in one response."""

    def __init__(
        self,
        session: ClientSession,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None,
        version: str,
        timeout: float | None,
        headers: Headers | None,
    ) -> None:
        options = session.options(timeout, headers)
        document = _generate_document(inputs, parameters)
        call = _plain(session).generate(model, version, document, options, stream=True)
        self.request = call.request
        self.timeout_secs = options.timeout_secs
        self._read = call.read
        self._pending = b""

    def feed(self, response: RawResponse) -> Iterator[dict[str, Any]]:
        """The events in a piece of the response. Raises ServerError."""
        if response.status != 200:
            self._read(response)
        *whole, self._pending = (self._pending + bytes(response.body)).split(b"\n\n")
        for event in whole:
            lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
            if lines:
                yield self._read(RawResponse(200, response.headers, b"\n".join(lines).strip()))


def _classify(infer_call: InferenceCall, classes: Mapping[str, int]) -> None:
    for name, count in classes.items():
        if not isinstance(count, int) or count < 1:
            raise InvalidInput(f"classes={{{name!r}: …}} is a number of classes, found {count!r}")
        if name in infer_call.places:
            raise InvalidInput(f"output '{name}' is classified, so it cannot be in shared memory")
    infer_call.classes = classes
    infer_call.outputs = (
        *infer_call.outputs,
        *(name for name in classes if name not in infer_call.outputs),
    )


def _input_types(
    session: ClientSession,
    model: str,
    version: str,
    inputs: Mapping[str, Any],
    headers: Headers | None,
) -> Steps[Mapping[str, str] | None]:
    """The datatypes of the model's inputs if `inputs` need them; else None."""
    for value in inputs.values():
        if needs_spec(value):
            break
    else:
        return None
    specs = session.specs.get((model, version))
    if specs is None:
        options = session.options(None, headers)
        call = session.codec.metadata(model, version, options)
        found = yield from steps.send_once(call, options)
        specs = {
            entry["name"]: entry["datatype"]
            for entry in found.get("inputs", ())
            if entry.get("datatype") in dtypes.BY_NAME
        }
        if len(session.specs) >= _CACHED_MODELS:
            session.specs.clear()
        session.specs[model, version] = specs
    return specs


def _keep_example(session: ClientSession, infer_call: InferenceCall, result: Result) -> None:
    """Keep these inputs for a later request of labels."""
    result._labels = session.labeller()
    if infer_call.model in session.examples or "sequence_id" in infer_call.parameters:
        return
    small = sum(each.nbytes for each in infer_call.tensors) <= _LARGEST_EXAMPLE_BYTES
    if small and len(session.examples) < _CACHED_MODELS:
        tensors = [_copied(each) for each in infer_call.tensors if each.placed is None]
        if len(tensors) == len(infer_call.tensors):
            session.examples[infer_call.model] = InferenceCall(
                infer_call.model, infer_call.version, tensors
            )


def _copied(given: InputTensor) -> InputTensor:
    """A copy, so that the caller may change the array."""
    return InputTensor(given.name, given.datatype, given.shape, bytes(given.raw), given.nbytes)

"""Inference, once for both protocols and both kinds of client.

def infer(session, model, inputs, …) -> Steps[Result]     its docstring is the method's
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.client import steps
from shoal.client.codec import Answer, Ask, Call, Headers, Parameter, Terms
from shoal.client.errors import ClientError, InvalidInput, ServerError
from shoal.client.http_codec import HttpCodec
from shoal.client.inputs import InputTensor, needs_spec, tensor
from shoal.client.region import Place
from shoal.client.result import Result
from shoal.client.steps import Session, Steps, Version, patiently
from shoal.core import dtypes

_REMEMBERED_MODELS = 64
_LARGEST_EXAMPLE_BYTES = 16 << 20
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """An inference whose bytes are made: `client.send(prepared)` as often as you like."""

    call: Call[Result]
    terms: Terms
    ask: Ask


def infer(
    session: Session,
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
) -> Steps[Result]:
    """Ask a model; `result["name"]` is an output as a numpy array.

    `inputs` are arrays, or lists, which become what the model takes; see also `Input` and
    `shared_memory`. Without `outputs` all of them come; a mapping says which go to a `Place` in
    shared memory. `classes={"prob": 3}` has the server classify. `timeout` is the time this may
    take in seconds, retries included (None: the client's; math.inf: no limit);
    `server_timeout_us` is how long it may wait in the server's queue. With `binary` false tensors
    travel as JSON, for servers that know nothing else.

    Raises InvalidInput before anything is sent, ServerError with the server's own words,
    ConnectionFailed and Timeout.
    """
    prepared = yield from prepare(
        session,
        model,
        inputs,
        outputs=outputs,
        version=version,
        id=id,
        parameters=parameters,
        classes=classes,
        sequence_id=sequence_id,
        sequence_start=sequence_start,
        sequence_end=sequence_end,
        priority=priority,
        server_timeout_us=server_timeout_us,
        timeout=timeout,
        headers=headers,
        binary=binary,
    )
    try:
        result = yield from patiently(session, prepared.call, prepared.terms)
    except ServerError as error:
        if error.status in ("INVALID_ARGUMENT", "NOT_FOUND"):
            session.specs.pop((model, prepared.ask.version), None)  # the model may have changed
        raise
    _remember(session, prepared.ask, result)
    return result


def prepare(
    session: Session,
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
) -> Steps[Prepared]:
    """The same as `infer`, but only the bytes are made: `send` sends them, again and again."""
    ask = yield from asked(
        session,
        model,
        inputs,
        outputs=outputs,
        version=version,
        id=id,
        parameters=parameters,
        classes=classes,
        sequence_id=sequence_id,
        sequence_start=sequence_start,
        sequence_end=sequence_end,
        priority=priority,
        server_timeout_us=server_timeout_us,
        binary=binary,
        headers=headers,
    )
    terms = session.terms(timeout, headers)
    return Prepared(session.codec.infer(ask, terms), terms, ask)


def send(session: Session, prepared: Prepared) -> Steps[Result]:
    """Send what `prepare` made. Raises as `infer` does."""
    return (yield from patiently(session, prepared.call, prepared.terms))


def labels(session: Session, result: Result, output: str) -> Steps[Sequence[str]]:
    """The names of a model's classes for `output`, for `result.top_k`; empty where it has none.

    Servers tell them only with a classification, so the first inputs that this client sent to
    the model are sent once more.
    """
    key = (result.model_name, result.model_version, output)
    known = session.labels.get(key)
    example = session.examples.get(result.model_name)
    if known is not None or example is None:
        return known or ()
    count = min(_MOST_CLASSES, math.prod(result.outputs[output].shape))
    ask = Ask(example.model, example.version, example.tensors, (output,), classes={output: count})
    found: dict[int, str] = {}
    try:
        terms = session.terms()
        answer = yield from steps.ask(session.codec.infer(ask, terms), terms)
        for row in answer.top_k(output, count):
            found.update((label.index, label.name) for label in row)
    except ClientError:  # a datatype that cannot be classified, an unloaded model: no names
        found = {}
    names = [found.get(index, "") for index in range(max(found, default=-1) + 1)]
    session.labels[key] = names if any(names) else ()
    return session.labels[key]


def generate(
    session: Session,
    model: str,
    inputs: Mapping[str, Any],
    *,
    parameters: Mapping[str, Parameter] | None = None,
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """Ask a model with plain JSON: `generate("llm", {"text_input": "hi", "max_tokens": 20})`.

    What names no input is a parameter. Needs HTTP, and a model that answers exactly once; for
    others there is `generate_stream`. Raises as `infer` does.
    """
    terms = session.terms(timeout, headers)
    document = _generate_document(inputs, parameters)
    call = _plain(session).generate(model, str(version), document, terms, stream=False)
    return (yield from patiently(session, call, terms))


def _plain(session: Session) -> HttpCodec:
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
    """A generate request whose answers come one by one: `data: {…}` lines in one response."""

    def __init__(
        self,
        session: Session,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Parameter] | None,
        version: str,
        timeout: float | None,
        headers: Headers | None,
    ) -> None:
        terms = session.terms(timeout, headers)
        document = _generate_document(inputs, parameters)
        call = _plain(session).generate(model, version, document, terms, stream=True)
        self.request = call.request
        self.timeout_secs = terms.timeout_secs
        self._read = call.read
        self._pending = b""

    def feed(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """The answers in a piece of the response. ServerError for what the server refused."""
        if answer.status != 200:
            self._read(answer)
        *whole, self._pending = (self._pending + bytes(answer.body)).split(b"\n\n")
        for event in whole:
            lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
            if lines:
                yield self._read(Answer(200, answer.headers, b"\n".join(lines).strip()))


def asked(
    session: Session,
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
    binary: bool = True,
    headers: Headers | None = None,
) -> Steps[Ask]:
    """The inference these arguments of `infer` ask for. InvalidInput where they make no sense."""
    if type(inputs) is not dict and not isinstance(inputs, Mapping):
        raise InvalidInput(
            f"inputs are a mapping from name to value, as in {{'data': array}}; found "
            f"{type(inputs).__name__}"
        )
    if not model:
        raise InvalidInput("name the model to ask")
    specs = yield from _input_types(session, model, str(version), inputs, headers)
    if specs is None:
        tensors = [tensor(name, value) for name, value in inputs.items()]
    else:
        tensors = [tensor(name, value, specs.get(name, "")) for name, value in inputs.items()]
    ask = Ask(model, str(version), tensors, id=id, binary=binary)
    if isinstance(outputs, str):
        raise InvalidInput(f"outputs is a list of names, as in [{outputs!r}]")
    if outputs or classes:
        ask.outputs = tuple(outputs)
        if isinstance(outputs, Mapping):
            ask.places = {name: place for name, place in outputs.items() if place is not None}
        if classes:
            _classify(ask, classes)
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
        ask.parameters = given
    return ask


def _classify(ask: Ask, classes: Mapping[str, int]) -> None:
    for name, count in classes.items():
        if not isinstance(count, int) or count < 1:
            raise InvalidInput(f"classes={{{name!r}: …}} is how many classes, found {count!r}")
        if name in ask.places:
            raise InvalidInput(f"output '{name}' is classified, so it cannot go to shared memory")
    ask.classes = classes
    ask.outputs = (*ask.outputs, *(name for name in classes if name not in ask.outputs))


def _input_types(
    session: Session,
    model: str,
    version: str,
    inputs: Mapping[str, Any],
    headers: Headers | None,
) -> Steps[Mapping[str, str] | None]:
    """The datatypes of the model's inputs where `inputs` cannot do without; else None."""
    for value in inputs.values():
        if needs_spec(value):
            break
    else:
        return None
    specs = session.specs.get((model, version))
    if specs is None:
        terms = session.terms(None, headers)
        call = session.codec.metadata(model, version, terms)
        found = yield from steps.ask(call, terms)
        specs = {
            entry["name"]: entry["datatype"]
            for entry in found.get("inputs", ())
            if entry.get("datatype") in dtypes.BY_NAME
        }
        if len(session.specs) >= _REMEMBERED_MODELS:
            session.specs.clear()
        session.specs[model, version] = specs
    return specs


def _remember(session: Session, ask: Ask, result: Result) -> None:
    """Have labels looked up with these inputs, should they be asked for."""
    result._labels = session.labeller()
    if ask.model in session.examples or "sequence_id" in ask.parameters:
        return
    small = sum(each.nbytes for each in ask.tensors) <= _LARGEST_EXAMPLE_BYTES
    if small and len(session.examples) < _REMEMBERED_MODELS:
        tensors = [_kept(each) for each in ask.tensors if each.placed is None]
        if len(tensors) == len(ask.tensors):
            session.examples[ask.model] = Ask(ask.model, ask.version, tensors)


def _kept(given: InputTensor) -> InputTensor:
    """A tensor that stays as it is when the caller changes their array."""
    return InputTensor(given.name, given.datatype, given.shape, bytes(given.raw), given.nbytes)

"""Plans: what was learnt from a request, for the next one that looks the same.

    header bytes --without ids--> TemplateCache --> InferPlan: inputs, outputs, rows, batch key

Clients repeat themselves: around the tensors, a request is byte for byte the one before, but for
its id and the id of its sequence. A plan is found by those bytes (compared, not only hashed), so a
hit is the same request but for the ids and the tensors, and parsing and validation can be skipped.
Anything unusual has no plan and takes the full path; a plan is only ever a shortcut to the same
answer.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.core.request import Request
from shoal.core.tensor import Tensor

Plan = TypeVar("Plan")

MOST_PLANS = 1024
MOST_BYTES = 4 * 1024 * 1024  # of keys, in all plans together
LONGEST_KEY = 16 * 1024  # a longer header is rarely repeated and would push others out
_MOST_ANSWERS = 16  # remembered per plan

# An id that needs no escaping, at the place where clients write it: first.
_JSON_ID = re.compile(rb'\{"id": ?"([ !#-\[\]-~]*)", ?')
_PLAIN_ID = re.compile(rb"[ !#-\[\]-~]*")
# A sequence's id: a number that JSON allows, or a text that needs no escaping; never "no sequence".
_SEQUENCE_KEY = b'"sequence_id"'
_JSON_SEQUENCE = re.compile(
    rb'"sequence_id": ?(?:([1-9][0-9]{0,17})(?![0-9.eE+-])|"([ !#-\[\]-~]{1,128})")'
)


class TemplateCache(Generic[Plan]):
    """Plans by the bytes they were made from; the oldest go when there are too many."""

    def __init__(self, most_plans: int = MOST_PLANS, most_bytes: int = MOST_BYTES) -> None:
        self._plans: dict[Hashable, Plan] = {}
        self._key_bytes: dict[Hashable, int] = {}
        self._most_plans = most_plans
        self._most_bytes = most_bytes
        self.bytes = 0
        self.get = self._plans.get  # the plan made from exactly these bytes, or None

    def __len__(self) -> int:
        return len(self._plans)

    def put(self, key: Hashable, plan: Plan, key_bytes: int) -> None:
        """Keep a plan, unless its key is very long; what is oldest makes room."""
        if key_bytes > LONGEST_KEY:
            return
        self.drop(key)
        self._plans[key] = plan
        self._key_bytes[key] = key_bytes
        self.bytes += key_bytes
        while len(self._plans) > self._most_plans or self.bytes > self._most_bytes:
            self.drop(next(iter(self._plans)))

    def drop(self, key: Hashable) -> None:
        """Forget a plan that no longer holds, e.g. because its model was reloaded."""
        if self._plans.pop(key, None) is not None:
            self.bytes -= self._key_bytes.pop(key)


@dataclass(slots=True)
class InferPlan:
    """A request that was understood and accepted, less its id and its tensors' bytes."""

    model: weakref.ref[Any]  # the version that accepted it; plans do not keep it alive
    inputs: tuple[tuple[str, DataType, tuple[int, ...], int, int], ...]  # …, start, end
    total_bytes: int  # of all inputs together
    requested_outputs: tuple[str, ...]
    rows: int
    batch_key: Any
    model_version: int
    priority: int
    timeout_us: int
    flags: int  # of its sequence
    alone: bool = False  # whether such requests have to be handed over one by one
    known: Any = None  # what a frontend remembers of such requests
    answers: dict[Hashable, Any] = field(default_factory=dict)  # by `form_of` the outputs

    def tensors(self, body: bytes | memoryview, offset: int) -> dict[str, Tensor]:
        """The inputs of a request whose tensors fill `body` from `offset` on."""
        # Slices of bytes are copies: for a small body they cost less than views do.
        return {
            name: Tensor(name, datatype, shape, raw=body[offset + start : offset + end])
            for name, datatype, shape, start, end in self.inputs
        }

    def remember_answer(self, form: Hashable, answer: Any) -> None:
        """Keep what an answer with outputs of this form looks like."""
        if len(self.answers) < _MOST_ANSWERS:
            self.answers[form] = answer


def form_of(outputs: Sequence[Tensor]) -> Hashable:
    """All that an answer says of its outputs, but for their elements."""
    return tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in outputs])


def learn(request: Request, sizes: dict[str, int]) -> InferPlan | None:
    """A plan from a request that the engine has accepted; None when it is not plain enough.

    `sizes` are the bytes of each input, in the order they were sent. Plain means: nothing but
    fixed-size tensors, no parameters for the model.
    """
    if request.parameters or request.served_by is None:
        return None
    inputs = []
    position = 0
    for name, size in sizes.items():
        tensor = request.inputs[name]
        if tensor.datatype is dtypes.BYTES:  # its elements have to be checked every time
            return None
        inputs.append((name, tensor.datatype, tensor.shape, position, position + size))
        position += size
    return InferPlan(
        model=weakref.ref(request.served_by),
        inputs=tuple(inputs),
        total_bytes=position,
        requested_outputs=request.requested_outputs,
        rows=request.rows,
        batch_key=request.batch_key,
        model_version=request.model_version,
        priority=request.priority,
        timeout_us=request.timeout_us,
        flags=request.flags,
    )


def split_json_id(header: bytes) -> tuple[bytes | None, bytes]:
    """A JSON header's id, and the header without it; the id is None where none stands first.

    Only an id that needs no escaping is taken out. Whether one was must be part of the key: a
    header that lost its id is another text than an equal one that never had any.
    """
    match = _JSON_ID.match(header)
    if match is None:
        return None, header
    return match[1], header[match.end() :]


def is_plain_id(request_id: bytes) -> bool:
    """Whether `split_json_id` would take it out."""
    return _PLAIN_ID.fullmatch(request_id) is not None


def split_json_sequence(rest: bytes) -> tuple[int | str, tuple[bytes, bytes]] | None:
    """The id of the sequence in a header whose own id was taken out, and what is before and after
    it; None where there is none, or not exactly one that is sure to be read like this."""
    if _SEQUENCE_KEY not in rest:
        return None
    match = _JSON_SEQUENCE.search(rest)
    if match is None or rest.count(_SEQUENCE_KEY) > 1:
        return None
    number, text = match.groups()
    # What is before it ends with the quote of a text, so a number and a text differ there.
    around = rest[: match.start(match.lastindex or 0)], rest[match.end(match.lastindex or 0) :]
    return int(number) if number else text.decode("ascii"), around


def is_plain_json(header: bytes, rest: bytes) -> bool:
    """Whether `rest`, the header without its id, may be a key: it means the same after any id.

    So it must hold no second id, however that is spelt, and the whole must be JSON to the strict
    reader: what only the lenient one takes, it takes because of a token that may be in the id.
    """
    if b'"id"' in rest or b"\\" in rest:
        return False
    try:
        orjson.loads(header)
    except orjson.JSONDecodeError:
        return False
    return True

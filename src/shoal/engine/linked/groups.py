"""Template hits of all front ends: equal templates are one, and groups of one run as one batch.

group message --> add --> run, after all front ends were read --> LocalEngine.run_block
                                                  '-- one by one --> Frontend.submit
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from shoal.core import dtypes
from shoal.core.photos import photo_template
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Buffer, Tensor
from shoal.core.validate import validate
from shoal.engine.linked import messages
from shoal.engine.local import LocalEngine
from shoal.errors import QueueRejected, ShoalError
from shoal.link.link import INLINE_BYTES

if TYPE_CHECKING:
    from shoal.engine.linked.frontend import Frontend

_start = attrgetter("start_ns")
_TYPES = {kind.number: kind for kind in dtypes.ALL}
_MOST_TEMPLATES = 4096
_LEAST_IN_BLOCK = 2  # a single request has a quicker way


class ReplyTo:
    """Where the responses to one request of a front end go."""

    __slots__ = ("frontend", "number")

    def __init__(self, frontend: Frontend, number: int) -> None:
        self.frontend = frontend
        self.number = number

    def send(self, response: Response) -> None:
        """Send one response."""
        self.frontend.respond(self.number, response)


class _Replies:
    """Answers batches of requests that were made from one template, of any front ends."""

    reply_types: tuple[type, ...] = (ReplyTo,)

    def send_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        replies: Any = [request.reply for request in requests]
        layout, contents = responses.layout, responses.contents
        parts: list[tuple[Frontend, list[int]]] = []  # with their places in the batch
        last: dict[Frontend, list[int]] = {}
        copied = sum(layout.sizes) <= INLINE_BYTES  # that takes less time than more messages
        for place, reply in enumerate(replies):
            places = last.get(reply.frontend)
            if places is None or not (copied or places[-1] == place - 1):
                places = last[reply.frontend] = []
                parts.append((reply.frontend, places))
            places.append(place)
        for frontend, places in parts:
            numbers = [replies[place].number for place in places]
            part = contents
            if len(places) < len(replies):
                part = [
                    _rows_at(places, content, size)
                    for content, size in zip(contents, layout.sizes, strict=True)
                ]
            frontend.send_results(layout, numbers, part)

    def refuse_all(self, error: QueueRejected, requests: Sequence[PlannedRequest]) -> None:
        """See `BatchReplies`."""
        by_frontend: dict[Frontend, list[int]] = {}
        for request in requests:
            reply: Any = request.reply
            by_frontend.setdefault(reply.frontend, []).append(reply.number)
        for frontend, numbers in by_frontend.items():
            frontend.send_refusals(error, numbers)


def _rows_at(places: Sequence[int], content: Buffer, size: int) -> Buffer:
    """The rows of `size` bytes at some places of a batch, one behind the other."""
    view = memoryview(content)
    first, count = places[0], len(places)
    if places[-1] - first < count:  # there are no others between them
        return view[first * size : (first + count) * size]
    return b"".join([view[place * size : (place + 1) * size] for place in places])


class KnownTemplate:
    """A template of a front end, and where the inputs of each request of a group are."""

    __slots__ = ("_columns", "_places", "is_large", "most_in_block", "packed", "template")

    def __init__(self, template: RequestTemplate | None, packed: tuple[Any, ...]) -> None:
        self.template = template
        self.packed = packed
        sizes: tuple[int, ...] = packed[3]
        self.is_large = max(sizes, default=0) > INLINE_BYTES
        self.most_in_block = 0  # requests that may run as one batch
        model = None if template is None else template.live_model()
        if template is not None and model is not None and not self.is_large:
            self.most_in_block = model.config.max_batch_size // template.rows
        self._columns: dict[int, list[slice]] = {}
        self._places: dict[int, list[tuple[slice, ...]]] = {}

    def columns(self, count: int) -> list[slice]:
        """Where each input of all requests is, in the contents of a group of `count`."""
        known = self._columns.get(count)
        if known is None:
            known, at = [], 0
            for size in self.packed[3]:
                known.append(slice(at, at + size * count))
                at += size * count
            self._columns[count] = known
        return known

    def places(self, count: int) -> list[tuple[slice, ...]]:
        """Where the inputs of each request are, in the contents of a group of `count`."""
        known = self._places.get(count)
        if known is None:
            columns = list(zip(self.columns(count), self.packed[3], strict=True))
            known = self._places[count] = [
                tuple(
                    slice(column.start + index * size, column.start + (index + 1) * size)
                    for column, size in columns
                )
                for index in range(count)
            ]
        return known


class Group(NamedTuple):
    """Requests of one template that a front end has sent in one message."""

    frontend: Frontend
    known: KnownTemplate
    first: int
    size: int  # how many they are
    ids: Sequence[str] | None
    start_ns: int
    contents: Any


class Groups:
    """The groups that wait to be run, and the templates of all front ends. For the loop's thread,
    unless a method says otherwise."""

    def __init__(
        self, engine: LocalEngine, after_reading: Callable[[Callable[[], None]], object]
    ) -> None:
        """`after_reading` has the loop call its argument once all front ends have been read."""
        self._engine = engine
        self._after_reading = after_reading
        self._replies = _Replies()
        self._waiting: dict[RequestTemplate | None, list[Group]] = {}
        self._templates: dict[Any, RequestTemplate] = {}
        self._photo_templates: WeakKeyDictionary[Any, RequestTemplate] = WeakKeyDictionary()
        self._numbering = threading.Lock()  # guards _layout_numbers
        self._layout_numbers: dict[Any, int] = {}

    def add(self, group: Group) -> None:
        """Requests have arrived; they run after those of other front ends have been read, too."""
        template = group.known.template
        groups = self._waiting.get(template)
        if groups is None:
            groups = self._waiting[template] = []
            if len(self._waiting) == 1:
                self._after_reading(self.run)
        groups.append(group)

    def run(self) -> None:
        """Run what has arrived: groups of one template as one batch where that is possible."""
        waiting, self._waiting = self._waiting, {}
        for template, groups in waiting.items():
            if template is None:
                for group in groups:
                    group.frontend.submit(group)
                continue
            block: list[Group] = []
            rows = 0
            for group in groups:
                if rows + group.size > group.known.most_in_block and block:
                    self._run_block(template, block)
                    block, rows = [], 0
                block.append(group)
                rows += group.size
            self._run_block(template, block)

    def _run_block(self, template: RequestTemplate, block: Sequence[Group]) -> None:
        responses = self._responses(template, block)
        if responses is None:
            for group in block:
                group.frontend.submit(group)
            return
        layout, contents = responses.layout, responses.contents
        start = 0
        for group in block:
            end = start + group.size
            part = contents
            if len(block) > 1:
                part = [
                    content[start * size : end * size]
                    for content, size in zip(contents, layout.sizes, strict=True)
                ]
            group.frontend.send_results(layout, range(group.first, group.first + group.size), part)
            start = end

    def _responses(
        self, template: RequestTemplate, block: Sequence[Group]
    ) -> PlannedResponses | None:
        """The responses to all requests of a block, if they can run at once."""
        model = template.live_model()
        total = sum([group.size for group in block])
        if model is None or total > block[0].known.most_in_block or total < _LEAST_IN_BLOCK:
            return None
        columns: list[Buffer]
        if len(block) == 1:
            (group,) = block
            columns = [group.contents[column] for column in group.known.columns(total)]
        else:
            columns = [
                b"".join([g.contents[g.known.columns(g.size)[index]] for g in block])
                for index in range(len(template.sizes))
            ]
        started: list[int] = []
        for group in sorted(block, key=_start) if len(block) > 1 else block:
            started += [group.start_ns] * group.size
        return self._engine.run_block(model, template, columns, started)

    # ---- templates

    def template(self, packed: tuple[Any, ...]) -> RequestTemplate | None:
        """A template for such requests, the same for all front ends. None if they have to be
        checked one by one."""
        name, version, inputs, sizes, outputs, parameters, priority, timeout_us = packed
        key = (name, version, inputs, outputs, tuple(parameters.items()), priority, timeout_us)
        known = self._templates.get(key)
        if known is not None and known.live_model() is not None:
            return known
        sent = {
            tensor: Tensor(tensor, _TYPES[kind], shape, raw=np.zeros(size, np.uint8).data)
            for (tensor, kind, shape), size in zip(inputs, sizes, strict=True)
        }
        request = Request(
            name,
            dict(sent),
            DISCARD,
            model_version=version,
            requested_outputs=outputs,
            parameters=parameters,
            priority=priority,
            timeout_us=timeout_us,
        )
        try:
            model = self._engine.find(name, version)
            if model.decoupled:
                return None
            validate(request, model.signature)
        except ShoalError:
            return None  # each of them gets this error
        request.served_by = model
        template = RequestTemplate.of(request, sent, self._replies)
        if template is not None:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return template

    def photo_template(self, model: Any) -> RequestTemplate:
        """The template of a model's photos, the same for all front ends."""
        known = self._photo_templates.get(model)
        if known is None:
            known = photo_template(model.name, model.version, self._replies, model)
            self._photo_templates[model] = known
        return known

    def layout_number(self, layout: ResponseLayout) -> int:
        """The number by which front ends know a layout; the same for equal ones. Any thread."""
        number: int | None = layout.encoded
        if number is None:
            with self._numbering:
                numbers = self._layout_numbers
                number = numbers.setdefault(messages.pack_layout(layout), len(numbers) + 1)
            layout.encoded = number
        return number

"""A front end's side of one link to the engine: requests and calls that wait for their answers.

    infer, infer_group, call --> messages, sent once per loop iteration --> engine
    replies, results of calls <-- on the loop, in the order of the messages <--'

When the engine process ends, everything that waits is answered with Unavailable. While calls wait,
it is asked every second whether it runs: if it does not answer for ten seconds, it is stopped, and
the calls get Unavailable, too. A call of an engine that runs may take any time, as a load does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.core.inbox import LoopInbox
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.request import DONE, Request
from shoal.core.tensor import Tensor
from shoal.engine.linked import messages
from shoal.errors import QueueRejected, ShoalError, Unavailable
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.link import INLINE_BYTES, Link
from shoal.link.loop_link import LoopLink

logger = logging.getLogger(__name__)

_FIRST_HIT = 1 << 40  # numbers of requests in groups; those of others are below
_MOST_BACKLOG_BYTES = 64 << 20  # that the engine has not read, before requests are refused
_RETRY_SECS = 1
_BEAT_SECS = 1.0  # between questions whether the engine runs
_MOST_SILENT_BEATS = 10  # counted, not timed, because this process may have been stopped itself

Settled = Callable[[Any, "ShoalError | None"], None]


def engine_gone() -> Unavailable:
    """The error for requests while there is no engine process."""
    error = Unavailable("the engine process is being restarted; try again in a moment")
    error.retry_secs = _RETRY_SECS
    return error


def engine_silent() -> Unavailable:
    """The error for calls while the engine process is stopped."""
    return Unavailable("the engine process does not answer; try again later")


class _LinkedTemplate:
    """The layouts of responses to requests of a template."""

    __slots__ = ("connection", "layouts")

    def __init__(self, connection: EngineConnection) -> None:
        self.connection = connection
        self.layouts: dict[int, ResponseLayout] = {}


class _NumberedTemplate(_LinkedTemplate):
    """A template that the engine knows by number."""

    __slots__ = ("_forget", "is_large", "number")

    def __init__(
        self, connection: EngineConnection, number: int, is_large: bool, forget: deque[int]
    ) -> None:
        super().__init__(connection)
        self.number = number
        self.is_large = is_large  # so that its inputs travel through shared memory
        self._forget = forget

    def __del__(self) -> None:
        self._forget.append(self.number)  # no lock: this may run inside the garbage collector


class EngineConnection:
    """One link, until the engine process ends. Methods may be called from any thread, unless they
    say otherwise."""

    def __init__(
        self,
        link: Link,
        inbox: LoopInbox,
        changed: Callable[[str], None],
        lost: Callable[[EngineConnection], None],
        settings: Callable[[EngineConnection, bool, Mapping[str, Any]], None],
        retire: Callable[[EngineConnection, int], None],
        report: Callable[[], Any],
    ) -> None:
        """Call it on the loop's thread. `changed` gets names of models that are to be looked up
        again, "" for all of them; `lost` is called once, on the loop, when the link has ended;
        `settings` gets whether requests may be sampled, and the settings of the log; `retire` gets
        the keys of models whose tasks are to end, and tells the engine `retired`;
        `report` returns plain values for the engine, when it asks."""
        self.link = link
        self._changed = changed
        self._lost = lost
        self._settings = settings
        self._retire = retire
        self._numbers = itertools.count(1)
        self._next_hit = _FIRST_HIT
        self._requests: dict[int, Request] = {}
        self._calls: dict[int, Settled] = {}
        self._loop = asyncio.get_running_loop()
        self._beating = False  # while calls wait
        self._asked = False  # whether the engine runs, and it has not answered yet
        self._silent_beats = 0  # since then
        self._template_numbers = itertools.count(1)
        self._forgotten: deque[int] = deque()
        self._layouts: dict[int, tuple[Any, ...]] = {}
        self._after_batches = inbox.after_batches
        self._counted: dict[tuple[int, str], tuple[int, int]] = {}  # by model and kind
        handlers: dict[str, Callable[..., None]] = {
            "response": self._take_response,
            "layout": self._layouts.__setitem__,
            "results": self._take_results,
            "refused": self._take_refusals,
            "returned": self._take_result,
            "raised": self._take_error,
            "changed": self._take_change,
            "settings": self._take_settings,
            "retire": self._take_retirement,
            "question": lambda number: self._answer(number, report()),
            "pong": self._take_pong,
        }
        self._loop_link = LoopLink(link, inbox.after_batches, handlers, self.close)

    @property
    def closed(self) -> bool:
        """Whether the engine is gone."""
        return self._loop_link.closed

    @property
    def in_flight(self) -> int:
        """Requests that wait for a response."""
        return len(self._requests)

    # ---- to the engine

    def _send(self, kind: str, *body: Any) -> None:
        """Send a message; those of one loop iteration together. Unavailable if the engine is gone,
        or does not read what it is sent."""
        if self._counted and self._loop_link.here:
            self._send_counts()  # they were before it
        try:
            self._loop_link.send(kind, *body)
        except ChannelClosed:
            raise engine_gone() from None

    def _check_room(self) -> None:
        if self.closed:
            raise engine_gone()
        if self.link.backlog_bytes > _MOST_BACKLOG_BYTES:
            error = Unavailable("the engine process does not take requests at the moment")
            error.retry_secs = _RETRY_SECS
            raise error

    def infer(self, request: Request, inputs: Mapping[str, Tensor], model: int = 0) -> None:
        """Send a full request; `inputs` are as they were received. `model` is the key of the one
        to use even if another one has replaced it. Raises Unavailable."""
        self._check_room()
        number = next(self._numbers)
        self._requests[number] = request
        request.on_cancel = lambda: self._cancel(number)
        try:
            self._send("infer", number, messages.pack_request(self.link, request, inputs), model)
        except BaseException:
            if self._requests.pop(number, None) is None:
                return  # the link has ended, and the request was answered for that reason
            raise
        if self.closed and self._requests.pop(number, None) is not None:
            raise engine_gone()

    def client_has_read(self, request: Request, count: int) -> None:
        """Tell the engine how much a client has read. On the loop's thread."""
        number = next((each for each, one in self._requests.items() if one is request), None)
        if number is not None:
            with contextlib.suppress(Unavailable):  # it is answered for that reason
                self._send("read", number, count)

    def infer_group(self, requests: Sequence[PlannedRequest]) -> None:
        """Send requests of one template. On the loop's thread. Raises Unavailable, with none of
        them sent."""
        self._check_room()
        template = requests[0].template
        assert template is not None
        linked: _NumberedTemplate | None = template.linked
        if linked is None or linked.connection is not self:
            linked = self._register(template)
        if linked.is_large:
            contents: Any = self.link.pack_buffers(
                [request.message[place] for request in requests for place in request.places]
            )
        else:
            contents = b"".join(
                [
                    request.message[request.places[index]]
                    for index in range(len(template.sizes))
                    for request in requests
                ]
            )
        ids = [request.id for request in requests]
        first, count = self._next_hit, len(requests)
        self._send(
            "group",
            linked.number,
            first,
            count,
            ids if any(ids) else None,
            requests[0].start_ns,
            contents,
        )
        self._await_results(requests)

    def infer_photos(self, requests: Sequence[PlannedRequest], model: int) -> None:
        """Send photos to the model with that key. On the loop's thread. Raises Unavailable, with
        none of them sent."""
        self._check_room()
        template = requests[0].template
        assert template is not None
        if template.linked is None or template.linked.connection is not self:
            template.linked = _LinkedTemplate(self)
        contents = self.link.pack_buffers([part for one in requests for part in one.message])
        start_ns = requests[0].start_ns
        self._send("photos", model, self._next_hit, len(requests), start_ns, contents)
        self.link.flush()  # they are all of an iteration
        self._await_results(requests)

    def _await_results(self, requests: Sequence[PlannedRequest]) -> None:
        """Expect the results of requests that were sent with the next numbers."""
        numbers = range(self._next_hit, self._next_hit + len(requests))
        self._next_hit = numbers.stop
        self._requests.update(zip(numbers, requests, strict=True))
        cancel = lambda: self._cancel_of(numbers)  # noqa: E731
        for request in requests:
            request.on_cancel = cancel

    def _register(self, template: RequestTemplate) -> _NumberedTemplate:
        """Tell the engine about a template, and which ones are no longer used."""
        while self._forgotten:
            self._send("forget", self._forgotten.popleft())
        number = next(self._template_numbers)
        self._send("template", number, messages.pack_template(template))
        is_large = max(template.sizes, default=0) > INLINE_BYTES
        linked = _NumberedTemplate(self, number, is_large, self._forgotten)
        template.linked = linked
        return linked

    def _cancel(self, number: int) -> None:
        if number in self._requests:
            try:
                self._send("cancel", number)
            except Unavailable:
                return  # it is answered for that reason

    def _cancel_of(self, numbers: range) -> None:
        """Cancel those of a group whose clients have left."""
        for number in numbers:
            request = self._requests.get(number)
            if request is not None and request.cancelled:
                self._cancel(number)

    def call(self, method: str, *arguments: Any, settled: Settled) -> int:
        """Call a method of the engine; `settled` gets the value or the error, exactly once, from
        any thread. Returns the number of the call."""
        number = next(self._numbers)
        self._calls[number] = settled
        try:
            if self.closed:
                raise engine_gone()
            self._send("call", number, method, arguments)
            if not self._beating:
                self._loop.call_soon_threadsafe(self._start_beating)
        except Unavailable as error:
            if self._calls.pop(number, None) is not None:
                settled(None, error)
        return number

    def _start_beating(self) -> None:
        if not self._beating:
            self._beating = True
            self._loop.call_later(_BEAT_SECS, self._beat)

    def _beat(self) -> None:
        """Ask whether the engine runs, for the calls that wait. On the loop's thread."""
        self._beating = False
        if self.closed or not self._calls:
            return
        if self._asked:
            self._silent_beats += 1
        else:
            self._asked = True
            self.tell("ping")
        if self._silent_beats >= _MOST_SILENT_BEATS:
            calls, self._calls = self._calls, {}
            for settled in calls.values():
                settled(None, engine_silent())
        self._start_beating()

    def _take_pong(self) -> None:
        self._asked = False
        self._silent_beats = 0

    def leave(self, number: int) -> None:
        """Have a model not loaded for this caller; the call has no result then."""
        if self._calls.pop(number, None) is not None:
            self.tell("leave", number)

    def next_number(self) -> int:
        """A number that nothing else on this link has."""
        return next(self._numbers)

    def tell(self, kind: str, *body: Any) -> None:
        """Send a message without an answer; it is dropped if the engine is gone."""
        if not self.closed:
            with contextlib.suppress(Unavailable):
                self._send(kind, *body)

    def poll(self) -> bool:
        """Handle what the engine has sent; false, with nothing done, elsewhere than on the loop's
        thread."""
        if self.closed or not self._loop_link.here:
            return False
        self._loop_link.poll()
        return True

    def send_replica(self, model: int, report: Any) -> None:
        """Report what the replica of a model has done; None: it is closed."""
        self.tell("replica", model, report)

    def count_task(self, model: int, kind: str, count: int, elapsed_ns: int) -> None:
        """Count what a model's task did here; the counts of a loop iteration are sent together."""
        if not self._loop_link.here:
            self.tell("task", model, kind, count, elapsed_ns)
            return
        if not self._counted:
            self._after_batches(self._send_counts)
        counts, total_ns = self._counted.get((model, kind), (0, 0))
        self._counted[model, kind] = counts + count, total_ns + elapsed_ns

    def _send_counts(self) -> None:
        counted, self._counted = self._counted, {}
        for (model, kind), (count, elapsed_ns) in counted.items():
            self.tell("task", model, kind, count, elapsed_ns)

    # ---- from the engine, on the loop

    def close(self) -> None:
        """The engine is gone: answer everything that waits. On the loop's thread."""
        if not self._loop_link.close():
            return
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.on_cancel = None
            request.state = DONE
            request.fail(engine_gone())
        calls, self._calls = self._calls, {}
        for settled in calls.values():
            settled(None, engine_gone())
        self._lost(self)

    def _take_response(self, number: int, packed: tuple[Any, ...]) -> None:
        request = self._requests.get(number)
        try:
            response = messages.unpack_response(self.link, packed)
        except ShoalError as error:  # no memory for the outputs
            if request is not None and self._requests.pop(number, None) is not None:
                request.on_cancel = None
                request.fail(error)
                self._cancel(number)
            return
        if request is None:
            return
        if response.final:
            del self._requests[number]
            request.on_cancel = None
            request.state = DONE
            if isinstance(response.error, QueueRejected):
                _note_refusal(request)
        request.reply.send(response)

    def _take_results(self, number: int, numbers: Any, places: Sequence[Any]) -> None:
        """Answer requests of a batch that were made from one template, or from alike ones. Their
        numbers are a list, or the first one and how many there are."""
        take = self._requests.pop
        if isinstance(numbers, tuple):
            first, count = numbers
            numbers = range(first, first + count)
        requests: Any = [take(one, None) for one in numbers]
        try:
            contents = self.link.unpack_buffers(places)
        except ShoalError as error:  # no memory for the outputs
            for request in requests:
                request.fail(error)
            return
        for request in requests:
            request.on_cancel = None
        start = 0
        while start < len(requests):
            template = requests[start].template
            end = start + 1
            while end < len(requests) and requests[end].template is template:
                end += 1
            layout = self._layout(number, template)
            if end - start < len(requests):
                part: Sequence[Any] = [
                    content[start * size : end * size]
                    for content, size in zip(contents, layout.sizes, strict=True)
                ]
            else:
                part = contents
            template.replies.send_all(PlannedResponses(layout, part), requests[start:end])
            start = end

    def _layout(self, number: int, template: RequestTemplate) -> ResponseLayout:
        layouts: dict[int, ResponseLayout] = template.linked.layouts
        layout = layouts.get(number)
        if layout is None:
            layout = layouts[number] = messages.unpack_layout(self._layouts[number])
        return layout

    def _take_refusals(self, packed: Any, numbers: Sequence[int]) -> None:
        error = failure.unpack(packed)
        assert isinstance(error, QueueRejected)
        requests: Any = [self._requests.pop(number) for number in numbers]
        for request in requests:
            request.on_cancel = None
            request.state = DONE
        _note_refusal(requests[0])
        requests[0].template.replies.refuse_all(error, requests)

    def _take_result(self, number: int, value: Any) -> None:
        settled = self._calls.pop(number, None)
        if settled is not None:
            settled(value, None)

    def _take_error(self, number: int, packed: Any) -> None:
        settled = self._calls.pop(number, None)
        if settled is not None:
            settled(None, failure.unpack(packed))

    def _answer(self, number: int, report: Any) -> None:
        try:
            self._send("report", number, report)
        except Unavailable:
            return

    def _take_change(self, change: int, name: str) -> None:
        self._changed(name)
        self.tell("seen", change)

    def _take_retirement(self, change: int, key: int) -> None:
        self.tell("seen", change)
        self._retire(self, key)

    def _take_settings(self, change: int, tracing: bool, log: Mapping[str, Any]) -> None:
        self._settings(self, tracing, log)
        self.tell("seen", change)


def _note_refusal(request: Request) -> None:
    """The engine had no room for a request: see `LinkedEngine.check_room`."""
    model: Any = request.served_by
    if model is not None:
        model.refuses = True

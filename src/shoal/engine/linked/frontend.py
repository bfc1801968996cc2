"""One front-end process, as the engine sees it: its messages, and the answers to them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.core import dtypes
from shoal.core.model_loading import ModelLoading
from shoal.core.planned import (
    PlannedRequest,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.request import DONE, Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.engine.linked import messages
from shoal.engine.linked.groups import Group, KnownTemplate, ReplyTo
from shoal.engine.linked.tracing import FrontendTraces
from shoal.errors import Internal, QueueRejected, ShoalError, Unavailable
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.link import Link
from shoal.link.loop_link import LoopLink

if TYPE_CHECKING:
    from shoal.engine.linked.service import EngineService

logger = logging.getLogger(__name__)

_TYPES = {kind.number: kind for kind in dtypes.ALL}
_MOST_BACKLOG_BYTES = 16 << 20  # that a front end has not read, before models are slowed down
_SLOW_DOWN_SECS = 0.001
_SILENT_SECS = 2.0  # in which a front end reads nothing of such a backlog: it is stopped


class Frontend:
    """One front-end process, as the engine sees it."""

    def __init__(self, service: EngineService, link: Link) -> None:
        self._service = service
        self._link = link
        self.seen = 0
        self.reported = 0  # the number of the last question
        self.on_report: Callable[[Any], None] = lambda _: None
        self.on_end: Callable[[], None] = lambda: None
        self.retired: set[int] = set()  # keys of models whose tasks have ended; for the service
        self._requests: dict[int, Request] = {}
        self._templates: dict[int, KnownTemplate] = {}
        self._layouts: set[int] = set()
        self._is_cut_off = False  # because it does not read
        self._telling = threading.Lock()  # so that a layout is announced before it is used
        self._loads: dict[int, Callable[[], None]] = {}  # what ends the waiting for each
        self._replicas: set[int] = set()  # keys of the models that it runs itself
        self._traces = FrontendTraces(service.engine.tracer)
        handlers: dict[str, Callable[..., None]] = {
            "infer": self._infer,
            "template": self._take_template,
            "forget": self._forget_template,
            "group": self._take_group,
            "photos": self._take_photos,
            "cancel": self._cancel,
            "read": self._take_read,
            "call": self._call,
            "ping": lambda: self._send("pong"),
            "seen": self._take_seen,
            "report": self._take_report,
            "task": self._count_task,
            "leave": self._leave,
            "retired": self._take_retirement,
            "replica": self._take_replica,
            "trace": self._traces.start,
            "trace_call": self._traces.start_call,
            "trace_end": self._traces.end,
        }
        self._loop_link = LoopLink(link, service.after_batches, handlers, self.close)

    @property
    def closed(self) -> bool:
        """Whether the process has ended."""
        return self._loop_link.closed

    # ---- from the front end, on the loop

    def close(self) -> None:
        """The front end has ended: no client waits for its requests."""
        if not self._loop_link.close():
            return
        for request in list(self._requests.values()):
            request.cancel()
        self._requests.clear()
        for number in list(self._loads):
            self._leave(number)
        self._traces.close()
        for key in list(self._replicas):
            self._take_replica(key, None)
        self._service.leave(self)
        self.on_end()

    def _infer(self, number: int, packed: tuple[Any, ...], key: int) -> None:
        self._service.groups.run()  # which arrived before
        reply = ReplyTo(self, number)
        try:
            request = messages.unpack_request(self._link, packed, reply)
        except ShoalError as error:  # no memory for its tensors
            reply.send(Response(packed[0], packed[1], packed[2], error=error))
            return
        self._traces.attach(request, packed[messages.TRACE])
        model = self._service.served(key) if key else None
        self._submit(number, request, None if model is None else model.accept)

    def _submit(
        self, number: int, request: Request, accept: Callable[[Request], None] | None = None
    ) -> None:
        """Have the engine take a request over, or answer it with the error."""
        self._requests[number] = request
        try:
            (accept or self._service.engine.infer)(request)
        except ShoalError as error:
            self._refuse(number, request, error)
        except Exception as error:
            logger.exception("a request of a front end failed")
            self._refuse(number, request, Internal(f"{type(error).__name__}: {error}"))

    def _refuse(self, number: int, request: Request, error: ShoalError) -> None:
        """Answer a request that the engine has not taken over: for its trace, it did not run."""
        request.state = DONE
        self.respond(number, Response(request.model_name, -1, request.id, error=error))

    def _take_template(self, number: int, packed: tuple[Any, ...]) -> None:
        self._templates[number] = KnownTemplate(self._service.groups.template(packed), packed)

    def _forget_template(self, number: int) -> None:
        del self._templates[number]

    def _take_group(
        self,
        template_number: int,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        contents: Any,
    ) -> None:
        known = self._templates[template_number]
        self._service.groups.add(Group(self, known, first, count, ids, start_ns, contents))

    def submit(self, group: Group) -> None:
        """Queue the requests of a group, or answer them with the error."""
        _, known, first, count, ids, start_ns, contents = group
        template = known.template
        model = None if template is None else template.live_model()
        if known.is_large:
            try:
                contents = self._link.unpack_buffers(contents)
            except ShoalError as error:  # no memory for their tensors
                name, version = known.packed[:2]
                for number, one in enumerate(ids or [""] * count, first):
                    self.respond(number, Response(name, version, one, error=error))
                return
        if template is None or model is None:
            self._check_each(known, first, count, ids, start_ns, contents)
            return
        engine = self._service.engine
        if known.is_large:
            requests = self._large_requests(template, model, first, count, ids, start_ns, contents)
        else:
            places = known.places(count)
            requests = [
                PlannedRequest(
                    template,
                    contents,
                    places[index],
                    "" if ids is None else ids[index],
                    ReplyTo(self, first + index),
                    model,
                    start_ns,
                )
                for index in range(count)
            ]
        self._requests.update(zip(range(first, first + count), requests, strict=True))
        try:
            rest = engine.infer_group(requests, model)
        except Exception as error:
            logger.exception("a group of requests failed")
            for request in requests:
                request.fail(Internal(f"{type(error).__name__}: {error}"))
            return
        for request in rest:
            template.expired = True
            request.leave_template()
            reply: Any = request.reply
            self._submit(reply.number, request)

    def _large_requests(
        self,
        template: RequestTemplate,
        model: Any,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        buffers: Sequence[Any],
    ) -> list[PlannedRequest]:
        """Requests whose inputs are in shared memory, each input at a place of its own."""
        width = len(template.sizes)
        requests = []
        for index in range(count):
            request = PlannedRequest(
                template,
                buffers[index * width : (index + 1) * width],
                tuple(range(width)),
                "" if ids is None else ids[index],
                ReplyTo(self, first + index),
                model,
                start_ns,
            )
            requests.append(request)
        return requests

    def _check_each(
        self,
        known: KnownTemplate,
        first: int,
        count: int,
        ids: Sequence[str] | None,
        start_ns: int,
        contents: Any,
    ) -> None:
        """Serve requests whose template no longer holds as full ones."""
        name, version, inputs, sizes, outputs, parameters, priority, timeout_us = known.packed
        width = len(sizes)
        buffers: Sequence[Any]
        if known.is_large:
            buffers = contents
        else:
            buffers = [contents[place] for row in known.places(count) for place in row]
        for index in range(count):
            row = buffers[index * width : (index + 1) * width]
            request = Request(
                name,
                {
                    tensor: Tensor(tensor, _TYPES[kind], shape, raw=raw)
                    for (tensor, kind, shape), raw in zip(inputs, row, strict=True)
                },
                ReplyTo(self, first + index),
                model_version=version,
                id="" if ids is None else ids[index],
                requested_outputs=outputs,
                parameters=dict(parameters),
                priority=priority,
                timeout_us=timeout_us,
            )
            request.start_ns = start_ns
            self._submit(first + index, request)

    def _take_photos(
        self, key: int, first: int, count: int, start_ns: int, contents: Sequence[Any]
    ) -> None:
        """Have the model with that key classify photos, each with its frame."""
        self._service.groups.run()  # which arrived before
        numbers = range(first, first + count)
        model = self._service.served(key)
        try:
            if model is None:
                raise Unavailable("the model has been unloaded; try again")
            buffers = self._link.unpack_buffers(contents)
            template = self._service.groups.photo_template(model)
            args = (template, model, first, count, None, start_ns, buffers)
            requests = self._large_requests(*args)
            self._requests.update(zip(numbers, requests, strict=True))
            model.accept_photos(requests)
        except ShoalError as error:
            for number in numbers:
                self.respond(number, Response("", -1, "", error=error))

    def _cancel(self, number: int) -> None:
        self._service.groups.run()  # it may be one of them
        request = self._requests.get(number)
        if request is not None:
            request.cancel()

    def _take_read(self, number: int, count: int) -> None:
        request = self._requests.get(number)
        if request is not None:
            request.client_has_read(count)

    def _take_seen(self, change: int) -> None:
        self.seen = change
        self._service.seen()

    def _take_report(self, asked: int, report: Any) -> None:
        self.on_report(report)
        self.reported = asked
        self._service.seen()

    def _take_retirement(self, key: int) -> None:
        self.retired.add(key)
        self._service.seen()

    def _take_replica(self, key: int, report: Any) -> None:
        """Count what the front end's replica of a model has done; None: it is closed."""
        self._replicas.add(key)
        if report is None:
            self._replicas.discard(key)
        model = self._service.served(key)
        if model is not None:
            model.take_report(self, report)

    def _count_task(self, key: int, kind: str, count: int, elapsed_ns: int) -> None:
        model = self._service.served(key)
        if model is not None and model.task is not None:
            model.task.statistics.add(kind, count, elapsed_ns)

    def _call(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "load_on_demand":
            self._load_on_demand(number, *arguments)
        elif method == "check_room":
            self._run(number, self._service.engine.check_room, arguments)
        else:
            work = self._service.methods[method]
            self._service.start_call(method, self._run, number, work, arguments)

    def _run(self, number: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run a call, on a thread if it may block."""
        try:
            value = work(*arguments)
        except Exception as error:  # noqa: BLE001 - becomes the result
            self._send("raised", number, failure.pack(error))
        else:
            self._send("returned", number, value)

    def _load_on_demand(self, number: int, name: str, version: int) -> None:
        def settled(error: ShoalError | None) -> None:
            self._loads.pop(number, None)
            if error is None:
                self._send("returned", number, None)
            else:
                self._send("raised", number, failure.pack(error))

        try:
            self._service.engine.find(name, version)
        except ModelLoading as pending:
            self._loads[number] = lambda: None  # `settled` may be called before `then` returns
            leave = pending.then(settled)
            if number in self._loads:
                self._loads[number] = leave
        except ShoalError as error:
            settled(error)
        else:
            settled(None)

    def _leave(self, number: int) -> None:
        """No client waits for a load any more."""
        leave = self._loads.pop(number, None)
        if leave is not None:
            leave()

    # ---- to the front end, from any thread

    def _send(self, kind: str, *body: Any) -> None:
        """Send a message; on the loop, those of one iteration together."""
        if self._link.backlog_bytes > _MOST_BACKLOG_BYTES:
            self._limit_backlog()
        with contextlib.suppress(ChannelClosed):  # the loop sees the end, too
            self._loop_link.send(kind, *body)

    def _limit_backlog(self) -> None:
        """Slow a model down whose responses wait to be read. If the front end reads none at all,
        end the link: its requests are cancelled, and it gets another one when it runs again."""
        if self._link.silent_secs > _SILENT_SECS:
            if not self._is_cut_off:
                self._is_cut_off = True
                logger.error("a front end reads no responses: its requests are cancelled")
            self._link.hang_up()
        elif not self._loop_link.here:
            time.sleep(_SLOW_DOWN_SECS)  # and no longer: others may need this thread

    def respond(self, number: int, response: Response) -> None:
        """Send one of a request's responses."""
        if self._link.lent_bytes > self._service.max_unread_bytes and response.outputs:
            response = self._without_room(number, response)
        if response.final:
            self._requests.pop(number, None)
        if self.closed:
            return
        try:
            packed = messages.pack_response(self._link, response)
        except Exception as error:
            logger.exception("a response could not be sent to its front end")
            failed = Response(
                response.model_name,
                response.model_version,
                response.request_id,
                error=Internal(f"{type(error).__name__}: {error}"),
            )
            packed = messages.pack_response(self._link, failed)
        self._send("response", number, packed)

    def _without_room(self, number: int, response: Response) -> Response:
        """The last response to a request whose clients, or their front end, do not read."""
        request = self._requests.pop(number, None)
        if request is not None:
            request.cancel()
        error = Unavailable(
            f"responses that were not read take {self._service.max_unread_bytes} bytes, as much as "
            f"they may; read them faster, or raise the limit with --max-buffered-bytes"
        )
        return Response(
            response.model_name, response.model_version, response.request_id, error=error
        )

    def send_results(
        self, layout: ResponseLayout, numbers: Sequence[int], contents: Sequence[Any]
    ) -> None:
        """Send the only responses of requests of one template."""
        requests = self._requests
        if requests:
            for one in numbers:
                requests.pop(one, None)
        if self.closed:
            return
        number = self._service.groups.layout_number(layout)
        if number not in self._layouts:
            with self._telling:
                if number not in self._layouts:
                    self._send("layout", number, messages.pack_layout(layout))
                    self._layouts.add(number)
        span = (numbers.start, len(numbers)) if isinstance(numbers, range) else numbers
        self._send("results", number, span, self._link.pack_buffers(contents))

    def send_refusals(self, error: QueueRejected, numbers: list[int]) -> None:
        """Send the error of requests of one template that found no room."""
        for number in numbers:
            self._requests.pop(number, None)
        self._send("refused", failure.pack(error), numbers)

    def send_change(self, change: int, name: str) -> None:
        """Other versions of a model serve now."""
        self._send("changed", change, name)

    def send_retirement(self, change: int, key: int) -> None:
        """A model is about to be unloaded: calls of its task are to end."""
        self._send("retire", change, key)

    def send_question(self, number: int) -> None:
        """Ask for a report."""
        self._send("question", number)

    def send_settings(self, change: int, tracing: bool, log: Mapping[str, Any]) -> None:
        """Whether requests may be sampled, and the settings of the log."""
        self._send("settings", change, tracing, log)

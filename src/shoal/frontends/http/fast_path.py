"""The short way of inference: requests like others before them, begun and answered many at a time.

    connection --take--> call, PlannedRequest --submit, once per loop iteration--> engine
    connection <--one write per call-- send_all, once per batch <----------------------'

A client's requests are alike but for their ids and their tensors. On this way they are compared
with one that was understood before, head and all, and a call is one object where the usual way has
five. Whatever is not plain about one (it cannot be queued with the others, the model failed, the
server is about to close) sends it back to the usual way, from its bytes or from its response, so
that there is one place for each special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from shoal.core.inbox import LoopInbox
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.response import Response
from shoal.frontends.coalescer import Coalescer
from shoal.frontends.http.contracts import Engine
from shoal.frontends.http.errors import as_shoal_error
from shoal.frontends.http.exchange import Exchange
from shoal.frontends.http.message import Head, HttpRequest
from shoal.frontends.http.planned import HEAD_LINES, PlannedInference, PlannedReply
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.http.routes import resolve
from shoal.wire import template as plans
from shoal.wire.template import InferPlan

_MOST_FORMS = 8  # kept for one plan: ids of other lengths, other head bytes
_MOST_ANSWER_BYTES = 16 * 1024  # larger ones are sent from where they are
_WITH_ID = b'\r\n{"id":"'
_WITHOUT_ID = b"\r\n{"


class Known:
    """What the requests that follow one plan have in common."""

    __slots__ = ("after", "forms", "lane", "plan", "shared")

    def __init__(self, lane: HttpFastPath, found: InferPlan, model_name: str) -> None:
        self.lane = lane
        self.plan = found
        self.after = b""  # of its last form: mostly that of all, and long
        self.forms: dict[tuple[bytes, int], Form] = {}
        self.shared = RequestTemplate(
            model_name,
            found.model_version,
            tuple([(name, datatype, shape) for name, datatype, shape, _, _ in found.inputs]),
            found.requested_outputs,
            {},
            found.priority,
            found.timeout_us,
            found.rows,
            found.batch_key,
            lane,
        )


class Form:
    """What a request that came in one piece looked like, less its id and its tensors."""

    __slots__ = (
        "_after",
        "_after_at",
        "_before",
        "_id_at",
        "_length",
        "body_at",
        "head",
        "known",
        "places",
    )

    def __init__(
        self, known: Known, head: Head, before: bytes, after: bytes, id_bytes: int
    ) -> None:
        """`before` is all up to the id, `after` what follows it up to the tensors."""
        self.known = known
        self.head = head
        self.body_at = before.index(b"\r\n\r\n") + 4
        self._before = before
        self._after = after
        self._after_at = len(before) + id_bytes
        self._id_at = slice(len(before), self._after_at) if id_bytes else None
        start = self._after_at + len(after)
        self._length = start + known.plan.total_bytes
        self.places = tuple(
            [slice(start + begin, start + end) for *_, begin, end in known.plan.inputs]
        )

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """Start a call with `data`, all that came; None, with nothing done, if it is not alike."""
        if (
            len(data) != self._length
            or not data.startswith(self._after, self._after_at)
            or not data.startswith(self._before)
        ):
            return None
        request_id = b""
        if self._id_at is not None:
            request_id = data[self._id_at]
            if not request_id.isalnum() and not plans.is_plain_id(request_id):
                return None
        known = self.known
        lane = known.lane
        if lane.plan is not known.plan and not lane.turn_to(known.plan):
            return None
        call = HttpFastPathCall(connection, self, request_id)
        call.request = request = PlannedRequest(
            known.shared,
            data,
            self.places,
            request_id.decode("ascii") if request_id else "",
            call,
            lane.model,
            lane.now_ns,
        )
        lane.requests.append(request)
        return call


class AnswerHeads:
    """What stands before and after the id in answers of one form, all up to the tensors."""

    __slots__ = ("_made", "_template", "_tensor_bytes")

    def __init__(self, template: bytes, tensor_bytes: int) -> None:
        """`template` is the JSON after its id."""
        self._template = template
        self._tensor_bytes = tensor_bytes
        self._made = (-1, b"", b"", b"")  # for the last length of an id, and the last second

    def around(self, id_bytes: int, date_line: bytes) -> tuple[bytes, bytes]:
        """The two parts, for an id of so many bytes and the current Date header."""
        made_for, date, front, after = self._made
        if made_for != id_bytes or date is not date_line:
            after = b'",' + self._template if id_bytes else self._template
            opening = _WITH_ID if id_bytes else _WITHOUT_ID
            json_bytes = len(opening) - 2 + id_bytes + len(after)
            length = b"Content-Length: %d\r\n" % (json_bytes + self._tensor_bytes)
            front = b"".join((HEAD_LINES % json_bytes, length, date_line, opening))
            self._made = (id_bytes, date_line, front, after)
        return front, after


class HttpFastPath(Coalescer):
    """The short way of one listener. Its methods belong to the loop, but for `send_all`."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        planned: PlannedInference,
    ) -> None:
        super().__init__(engine, inbox, HttpFastPathCall, as_shoal_error)
        self._tracer = engine.tracer
        self._planned = planned

    # ---- in

    def recognise(self, data: bytes, head: Head, body_at: int) -> Form | None:
        """What to expect of requests like `data`, which is one with `head` and nothing else; None
        if there is no plan for it."""
        if (
            head.method != "POST"
            or not head.keep_alive
            or head.version != "1.1"
            or not head.plain_offset
            or head.body_length != len(data) - body_at
        ):
            return None
        target = resolve(head.path)
        if target is None or target.route.name != "infer":
            return None
        found = self._planned.plan_of(target, data[body_at : body_at + head.plain_offset])
        if found is None:
            return None
        plan, id_at, id_bytes = found
        model = plan.model()
        if plan.flags or plan.timeout_us or plan.alone or not (model and model.takes_groups):
            return None
        known = plan.known
        if not isinstance(known, Known) or known.lane is not self:
            known = plan.known = Known(self, plan, target.model)
        before = data[: body_at + id_at]
        key = (before, id_bytes)
        form = known.forms.get(key)
        if form is None:
            after = data[len(before) + id_bytes : body_at + head.plain_offset]
            if after != known.after:
                known.after = after
            form = Form(known, head, before, known.after, id_bytes)
            if len(known.forms) < _MOST_FORMS:
                known.forms[key] = form
        return form

    def turn_to(self, plan: InferPlan) -> bool:
        """Have the next `requests` follow `plan`; false if that no longer holds."""
        self.hand_over()
        model = plan.model()
        if model is None or plan.alone or self._tracer.active:
            return False
        self.begin(plan, model)
        self.hand_over_later()
        return True

    # ---- out

    def write_all(self, answer: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """One write per call; see `Coalescer`."""
        layout = answer.layout
        heads: AnswerHeads | None = layout.encoded
        if heads is None:
            known = cast("HttpFastPathCall", requests[0].reply).form.known
            template = known.plan.answers.get(layout.outputs)
            if template is None or layout.total_bytes > _MOST_ANSWER_BYTES:
                self.write_one_by_one(answer, requests)
                return
            heads = layout.encoded = AnswerHeads(template, layout.total_bytes)
        id_bytes = -1
        front = after = b""
        rows = zip(*answer.columns(), strict=True)
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            call: Any = request.reply  # an HttpFastPathCall; a `cast` takes 5 % of this loop
            request_id = call.request_id
            if len(request_id) != id_bytes:
                id_bytes = len(request_id)
                front, after = heads.around(id_bytes, call.connection.date_line)
            whole = b"".join((front, request_id, after, *row))
            if call.connection.finish_with(call, whole):
                call.request = None  # which knows this call in turn: it is freed at once
            else:
                call.deliver(answer.response(index, request.id))


class HttpFastPathCall:
    """A request that came in one piece: what its connection is busy with, and its reply."""

    __slots__ = ("connection", "form", "request", "request_id")

    def __init__(self, connection: HttpConnection, form: Form, request_id: bytes) -> None:
        self.connection = connection
        self.form = form
        self.request_id = request_id
        self.request: PlannedRequest | None = None

    @property
    def gone(self) -> bool:
        """Whether it was answered, or its client has left."""
        return self.request is None

    # ---- what the engine answers (Reply)

    def send(self, response: Response) -> None:
        """Take a response from whichever thread made it."""
        self.form.known.lane.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer, on the loop, the usual way; nothing happens if the client has left."""
        request, self.request = self.request, None
        if request is None:
            return
        exchange = Exchange(self._received(request), self.connection)
        exchange.on_disconnect = request.cancel
        if self.connection.go_on_with(self, exchange):
            PlannedReply(
                self.form.known.lane.inbox, exchange, self.form.known.plan, self.request_id
            ).deliver(response)

    def begin_again(self) -> None:
        """Start anew, as a request that nobody knows."""
        request, self.request = self.request, None
        if request is not None:
            self.connection.begin_again(self, self._received(request))

    def _received(self, request: PlannedRequest) -> HttpRequest:
        return HttpRequest(self.form.head, request.message[self.form.body_at :])

    # ---- what the connection tells (Asked)

    def client_left(self) -> None:
        """The connection is gone."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()

    def client_reads(self) -> None:
        """Nothing waits for that: an answer is written at once."""

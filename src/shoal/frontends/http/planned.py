"""The short way through inference, for requests that look like one that was served before.

    exchange --header bytes--> plan --> Request --> engine --> template + tensors --> answer

Everything a plan does not cover, and every doubt, goes to the full path in `infer`, which also
teaches the plans. See `shoal.wire.template` for why the answers are the same.
"""

from __future__ import annotations

from collections.abc import Hashable

from shoal.core.dtypes import BYTES
from shoal.core.inbox import LoopInbox
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.message import Header, response_lines
from shoal.frontends.http.routes import Target
from shoal.wire import http_body
from shoal.wire import template as plan
from shoal.wire.http_body import InferBody
from shoal.wire.template import InferPlan, TemplateCache

_ID_KEY = b'{"id":'
_LENGTH_NAME = http_body.LENGTH_HEADER.encode()
HEAD_LINES = response_lines(200, [(b"Content-Type", http_body.BINARY_TYPE), (_LENGTH_NAME, b"%d")])


class PlannedInference:
    """Serves what it has a plan for."""

    def __init__(self, engine: Engine, inbox: LoopInbox, most_header_bytes: int) -> None:
        """Headers beyond `most_header_bytes` are the full path's to refuse."""
        self.engine = engine
        self.inbox = inbox
        self._most_header_bytes = min(most_header_bytes, plan.LONGEST_KEY)
        self._plans: TemplateCache[InferPlan] = TemplateCache()

    def infer(self, exchange: Exchange, target: Target) -> bool:
        """Take the exchange over if there is a plan for it; false leaves it to the full path.

        Raises a ShoalError when the request is refused; then it has not been answered.
        """
        request = exchange.request
        offset = request.plain_offset
        if not 0 < offset <= self._most_header_bytes:
            return False
        body = request.body
        request_id, rest = plan.split_json_id(bytes(body[:offset]))
        sequence_id: int | str = 0
        key: Hashable = (target.model, target.version, request_id is None, rest)
        found = self._plans.get(key)
        if found is None:
            sequence = plan.split_json_sequence(rest)
            if sequence is None:
                return False
            sequence_id, around = sequence
            key = (target.model, target.version, request_id is None, around)
            found = self._plans.get(key)
        if found is None or len(body) != offset + found.total_bytes:
            return False
        planned = Request(
            target.model,
            found.tensors(body, offset),
            PlannedReply(self.inbox, exchange, found, request_id),
            model_version=found.model_version,
            id=request_id.decode("ascii") if request_id else "",
            requested_outputs=found.requested_outputs,
            priority=found.priority,
            timeout_us=found.timeout_us,
            correlation_id=sequence_id,
            flags=found.flags,
        )
        planned.rows = found.rows
        planned.batch_key = found.batch_key
        exchange.on_disconnect = planned.cancel
        model = found.model()
        if model is not None and self.engine.infer_planned(planned, model):
            return True
        self._plans.drop(key)  # another version serves now: it has to look for itself
        exchange.on_disconnect = None
        return False

    def plan_of(self, target: Target, header: bytes) -> tuple[InferPlan, int, int] | None:
        """The plan for a request with this JSON header that is of no sequence, and where the id is
        in it: start and length."""
        if len(header) > self._most_header_bytes:
            return None
        request_id, rest = plan.split_json_id(header)
        found = self._plans.get((target.model, target.version, request_id is None, rest))
        if found is None:
            return None
        if request_id is None:
            return found, 0, 0
        return found, header.index(b'"', len(_ID_KEY)) + 1, len(request_id)

    def learn(self, exchange: Exchange, target: Target, body: InferBody, accepted: Request) -> None:
        """Make a plan of a request that the full path has decoded and the engine has accepted."""
        request = exchange.request
        offset = request.plain_offset
        if not 0 < offset <= self._most_header_bytes:
            return
        if body.leases or (not body.outputs and not body.binary_default):
            return
        if any(not wanted.binary or wanted.classification for wanted in body.outputs):
            return
        if not all(tensor.has_raw for tensor in body.inputs.values()):
            return
        header = bytes(request.body[:offset])
        request_id, rest = plan.split_json_id(header)
        if not plan.is_plain_json(header, rest):
            return
        around: Hashable = rest
        if accepted.correlation_id:
            sequence = plan.split_json_sequence(rest)
            if sequence is None or sequence[0] != accepted.correlation_id:
                return  # it stands elsewhere, or in a way that need not mean the same again
            around = sequence[1]
        sizes = {name: tensor.nbytes for name, tensor in body.inputs.items()}
        learnt = plan.learn(accepted, sizes)
        if learnt is not None:
            key = (target.model, target.version, request_id is None, around)
            self._plans.put(key, learnt, len(rest))


class PlannedReply:
    """The reply of one planned inference: writes its answer."""

    __slots__ = ("_exchange", "_id", "_inbox", "_plan")

    def __init__(
        self, inbox: LoopInbox, exchange: Exchange, found: InferPlan, request_id: bytes | None
    ) -> None:
        self._inbox = inbox
        self._exchange = exchange
        self._plan = found
        self._id = request_id

    def send(self, response: Response) -> None:
        """Take the response from whichever thread made it."""
        self._inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer, on the loop; an exchange whose client left drops it. Never raises: others wait
        behind it."""
        if not response.final:
            return
        if response.error is not None:
            send_error(self._exchange, response.error)
            return
        try:
            outputs = response.outputs
            template = self._plan.answers.get(plan.form_of(outputs))
            if template is None or response.parameters:
                template = self._template(response)
                if template is None:
                    return
            header = b'{"id":"%b",%b' % (self._id, template) if self._id else b"{" + template
            parts: list[Buffer] = [header, *[tensor.raw for tensor in outputs]]
            self._exchange.respond_ready(HEAD_LINES % len(header), parts)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            send_error(self._exchange, as_shoal_error(error))

    def _template(self, response: Response) -> bytes | None:
        """The JSON of an answer with these shapes, after its id; None if it was answered here."""
        request_id, response.request_id = response.request_id, ""
        encoded = http_body.encode_infer(response, (), binary_default=True)
        template = bytes(encoded.parts[0])[1:]
        fixed = all(tensor.datatype is not BYTES for tensor in response.outputs)
        if encoded.header_length is not None and not response.parameters:
            if fixed:
                self._plan.remember_answer(plan.form_of(response.outputs), template)
            return template
        response.request_id = request_id
        encoded = http_body.encode_infer(response, (), binary_default=True)
        headers: list[Header] = [(b"Content-Type", encoded.content_type)]
        if encoded.header_length is not None:
            headers.append((_LENGTH_NAME, b"%d" % encoded.header_length))
        self._exchange.respond(200, headers, encoded.parts)
        return None

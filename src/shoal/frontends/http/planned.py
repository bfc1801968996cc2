"""The short way through inference, for requests that look like one that was served before.

    exchange --header bytes--> plan --> Request --> engine --> template + tensors --> answer

Everything a plan does not cover, and every doubt, goes to the full path in `infer`, which also
teaches the plans. See `shoal.wire.plan` for why the answers are the same.
"""

from __future__ import annotations

from shoal.core.dtypes import BYTES
from shoal.core.inbox import LoopInbox
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.message import Header, response_lines
from shoal.frontends.http.routes import Target
from shoal.wire import http_body, plan
from shoal.wire.http_body import InferBody
from shoal.wire.plan import InferPlan, PlanCache

_LENGTH_NAME = http_body.LENGTH_HEADER.encode()
_HEAD_LINES = response_lines(
    200, [(b"Content-Type", http_body.BINARY_TYPE), (_LENGTH_NAME, b"%d")]
)

Key = tuple[str, int, bool, bytes]  # model, version, whether an id was taken out, the rest


class PlannedInference:
    """Serves what it has a plan for."""

    def __init__(self, engine: Engine, inbox: LoopInbox) -> None:
        self.engine = engine
        self.inbox = inbox
        self._plans: PlanCache[InferPlan] = PlanCache()

    def infer(self, exchange: Exchange, target: Target) -> bool:
        """Take the exchange over if there is a plan for it; false leaves it to the full path.

        Raises a ShoalError when the request is refused; then it has not been answered.
        """
        request = exchange.request
        offset = request.plain_offset
        if not offset:
            return False
        body = request.body
        request_id, key = _key(target, bytes(body[:offset]))
        found = self._plans.get(key)
        if found is None or len(body) != offset + found.total_bytes:
            return False
        call = _PlannedCall(self, exchange, found, request_id)
        planned = Request(
            target.model,
            found.tensors(memoryview(body)[offset:]),
            call,
            model_version=found.model_version,
            id=request_id.decode("ascii"),
            requested_outputs=found.requested_outputs,
            priority=found.priority,
            timeout_us=found.timeout_us,
        )
        planned.rows = found.rows
        planned.batch_key = found.batch_key
        call.request = planned
        exchange.on_disconnect = call.client_left
        if self.engine.infer_planned(planned, found.model):
            return True
        self._plans.drop(key)  # another version serves now: it has to look for itself
        exchange.on_disconnect = None
        return False

    def learn(
        self, exchange: Exchange, target: Target, body: InferBody, accepted: Request
    ) -> None:
        """Make a plan of a request that the full path has decoded and the engine has accepted."""
        request = exchange.request
        offset = request.plain_offset
        if not offset:
            return
        if not body.outputs and not body.binary_default:
            return
        if any(not wanted.binary or wanted.classification for wanted in body.outputs):
            return
        if not all(tensor.has_raw for tensor in body.inputs.values()):
            return
        _, key = _key(target, bytes(request.body[:offset]))
        if not plan.is_plain_json(key[3]):
            return
        sizes = {name: tensor.nbytes for name, tensor in body.inputs.items()}
        learnt = plan.learn(accepted, sizes)
        if learnt is not None:
            self._plans.put(key, learnt, len(key[3]))


def _key(target: Target, header: bytes) -> tuple[bytes, Key]:
    request_id, rest = plan.split_json_id(header)
    return request_id, (target.model, target.version, bool(request_id), rest)


class _PlannedCall:
    """One planned inference; it is the reply of its own request."""

    __slots__ = ("_exchange", "_id", "_left", "_plan", "_route", "request")

    def __init__(
        self, route: PlannedInference, exchange: Exchange, found: InferPlan, request_id: bytes
    ) -> None:
        self._route = route
        self._exchange = exchange
        self._plan = found
        self._id = request_id
        self._left = False
        self.request: Request | None = None

    def send(self, response: Response) -> None:
        """Take the response from whichever thread made it."""
        self._route.inbox.post(self._deliver, response)

    def client_left(self) -> None:
        """Nobody waits for the answer any more."""
        self._left = True
        if self.request is not None:
            self.request.cancel()

    def _deliver(self, response: Response) -> None:
        """Answer, on the loop. Never raises: others wait behind it."""
        if self._left or not response.final:
            return
        if response.error is not None:
            send_error(self._exchange, response.error)
            return
        try:
            self._answer(response)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            send_error(self._exchange, as_shoal_error(error))

    def _answer(self, response: Response) -> None:
        outputs = response.outputs
        template = self._plan.answers.get(plan.shapes_of(response))
        if template is None or response.parameters:
            template = self._template(response)
            if template is None:
                return
        header = b'{"id":"%b",%b' % (self._id, template) if self._id else b"{" + template
        parts: list[Buffer] = [header]
        parts += [tensor.raw for tensor in outputs]
        self._exchange.respond_ready(_HEAD_LINES % len(header), parts)

    def _template(self, response: Response) -> bytes | None:
        """The JSON of an answer with these shapes, after its id; None if it was answered here."""
        request_id, response.request_id = response.request_id, ""
        encoded = http_body.encode_infer(response, (), binary_default=True)
        template = bytes(encoded.parts[0])[1:]
        fixed = all(tensor.datatype is not BYTES for tensor in response.outputs)
        if encoded.header_length is not None and not response.parameters:
            if fixed:
                self._plan.remember_answer(plan.shapes_of(response), template)
            return template
        response.request_id = request_id
        encoded = http_body.encode_infer(response, (), binary_default=True)
        headers: list[Header] = [(b"Content-Type", encoded.content_type)]
        if encoded.header_length is not None:
            headers.append((_LENGTH_NAME, b"%d" % encoded.header_length))
        self._exchange.respond(200, headers, encoded.parts)
        return None


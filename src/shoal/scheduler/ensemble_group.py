"""Requests for an ensemble that arrive together, run as one request with the rows of all of them.

    requests of one template --join--> JoinedRequest --steps--> its response --split--> replies

Its steps are batched by their models with other requests, as always, and its tensors stay whole
between the steps: on a GPU nothing is split and joined again. Where a joined request fails, its
members run again one by one, so that each gets its own response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.reply import DISCARD
from shoal.core.request import DONE, EXECUTING, Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.scheduler.batch import PlannedOutputs, join_planned, split

logger = logging.getLogger(__name__)

# Runs requests one by one; they count as taken over already.
RunAgain = Callable[[Sequence[PlannedRequest]], None]


class JoinedRequest(Request):
    """A request with the rows of several, which are of one template; it is its own reply."""

    __slots__ = ("_outputs", "_run_again", "_signature", "requests")

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        template: RequestTemplate,
        signature: Signature,
        outputs: PlannedOutputs,
        run_again: RunAgain,
    ) -> None:
        """Take over `requests`; `outputs` splits the outputs for the template."""
        arrays = join_planned(requests, template)
        inputs = {
            name: Tensor(name, datatype, arrays[name].shape, array=arrays[name])
            for name, datatype, _ in template.inputs
        }
        super().__init__(
            template.model_name,
            inputs,
            self,
            model_version=template.model_version,
            requested_outputs=template.requested_outputs,
            parameters=dict(template.parameters),
            priority=template.priority,
        )
        self.rows = template.rows * len(requests)
        self.batch_key = template.batch_key
        self.members = len(requests)
        self.requests = requests
        self._signature = signature
        self._outputs = outputs
        self._run_again = run_again
        for request in requests:
            request.state = EXECUTING
            request.on_cancel = self._member_cancelled

    def _member_cancelled(self) -> None:
        """The others still want their responses."""
        if all(request.cancelled for request in self.requests):
            self.cancel()

    def send(self, response: Response) -> None:
        """Answer every member with its part of the response, or run them again one by one."""
        self.reply = DISCARD  # breaks the reference cycle, which would keep the inputs
        requests = self.requests
        for request in requests:
            request.on_cancel = None
        parts = None if response.error is not None else self._parts(response)
        if parts is None:
            self._run_again(requests)
            return
        for request in requests:
            request.state = DONE
            request.moments = self.moments
        if isinstance(parts, PlannedResponses):
            template = requests[0].template
            assert template is not None
            template.replies.send_all(parts, requests)
            return
        name, version = response.model_name, response.model_version
        for request, outputs in zip(requests, parts, strict=True):
            request.reply.send(Response(name, version, request.id, outputs))

    def _parts(self, response: Response) -> PlannedResponses | list[list[Tensor]] | None:
        names = self._outputs.names
        found = {tensor.name: tensor for tensor in response.outputs}
        if len(found) != len(names):  # a step has left one out
            return None
        try:
            arrays = [found[name].array for name in names]
            parts = self._outputs.split(len(self.requests), arrays)
            return parts or split(self.requests, names, arrays, self._signature)
        except Exception:  # alone, each member gets the error that it would have got
            logger.debug("the response to a joined request cannot be split", exc_info=True)
            return None

"""`pb_utils.InferenceResponseSender`: responding to a request from any thread, at any time.

    decoupled        send(response) ... send(flags=FINAL)      any number of responses, one FINAL
    not decoupled    send(response, flags=FINAL)               or return it from `execute`

Sending twice, after the end, or no response at all where one is required raises an exception in the
model, with Triton's text; the client always receives exactly one final response.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from shoal.backends.python.api.errors import TritonModelException
from shoal.backends.python.api.response import InferenceResponse
from shoal.errors import ShoalError

RESPONSE_COMPLETE_FINAL = 1
CLOSED = "Unable to send response. Response sender has been closed."

# Guards the counts of every ResponseStream; held for a few comparisons. Reentrant, because the
# garbage collector may run meanwhile and end the stream of a request that it finds.
_counting = threading.RLock()


class ResponseStream(ABC):
    """The responses to one request: how many were sent, and whether more may follow."""

    __slots__ = ("_closed", "_decoupled", "_over", "_sent", "promised")

    def __init__(self, *, decoupled: bool) -> None:
        self._decoupled = decoupled
        self._sent = 0
        self._closed = False  # to the model
        self._over = False  # to the client: the end was sent
        self.promised = False  # whether the model has a sender

    @property
    def over(self) -> bool:
        """Whether the final response was sent to the client."""
        return self._over

    @property
    def closed(self) -> bool:
        """Whether the model may send no more."""
        return self._closed

    @property
    def sent(self) -> int:
        """How many times the model has sent something."""
        return self._sent

    def send(self, response: InferenceResponse | None, *, final: bool, more: bool = False) -> None:
        """Send for the model; TritonModelException if the rules forbid it.

        `more` if the end of the execution follows at once, so that both may be sent together.
        """
        with _counting:
            self._admit(response, final)
            # A model that is not decoupled has one response, so the first one is final.
            ends = final or not self._decoupled
            passes_on = not self._over
            self._over = self._over or ends
        if passes_on:
            try:
                self._pass_on(response, final=ends, more=more)
            except ShoalError:
                raise TritonModelException(CLOSED) from None
            except BaseException:  # such as a tensor that cannot be sent: nothing was sent
                with _counting:
                    self._sent -= 1
                    self._closed = self._over = False
                raise

    def finish(self, response: InferenceResponse) -> None:
        """Send what `execute` has returned, as `send` does; the end of the execution follows."""
        if self.promised or self._sent or self._closed:
            self.send(response, final=True, more=True)
            return
        # There is no sender, so nothing else can send and no lock is needed.
        self._sent = 1
        self._closed = self._over = True
        try:
            self._pass_on(response, final=True, more=True)
        except ShoalError:
            raise TritonModelException(CLOSED) from None
        except BaseException:  # as above
            self._sent = 0
            self._closed = self._over = False
            raise

    def _admit(self, response: InferenceResponse | None, final: bool) -> None:
        if not self._decoupled:
            if response is not None and self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if response is None and final and not self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._closed:
            raise TritonModelException(CLOSED)
        self._closed = final
        self._sent += 1

    def release(self) -> None:
        """Leave it open for the next execution of the same request."""
        with _counting:
            self._closed = self._over = True

    def end(self, response: InferenceResponse | None) -> bool:
        """End it for the server, unless it has ended; returns whether this did."""
        with _counting:
            self._closed = True
            if self._over:
                return False
            self._over = True
        try:
            self._pass_on(response, final=True)
        except ShoalError:  # it has just ended
            return False
        return True

    @abstractmethod
    def _pass_on(
        self, response: InferenceResponse | None, *, final: bool, more: bool = False
    ) -> None:
        """Send to the server: a response, or just the end. ShoalError once the end was sent."""

    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the client has cancelled the request."""


class InferenceResponseSender:
    """Sends the responses to one request. Made by `InferenceRequest.get_response_sender`."""

    __slots__ = ("__weakref__", "_request", "_stream")

    def __init__(self, answer: ResponseStream, request: object) -> None:
        """`request` lives as long as its sender: when it is freed, the responses end."""
        self._stream = answer
        self._request = request

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send `response`, the end (`TRITONSERVER_RESPONSE_COMPLETE_FINAL`), or both."""
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None:
            if not flags:
                raise TritonModelException(
                    "Inference Response object must be provided when the response flags is set to "
                    "zero."
                )
        elif not isinstance(response, InferenceResponse):
            raise TypeError(f"a response must be an InferenceResponse, not {type(response)}")
        self._stream.send(response, final=bool(flags))

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._stream.cancelled()

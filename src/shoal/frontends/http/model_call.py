"""A call that waits for the responses of a model, with one response or with a stream of them.

A call and its request refer to each other, so the call forgets the request with the last response;
and no error is raised where a local variable refers to it. Otherwise only a collection of garbage
would free what the client has sent, and collections count objects, not bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from shoal.core.request import Request
from shoal.core.response import Response
from shoal.engine import Engine
from shoal.errors import ShoalError
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error


class ModelCall(ABC):
    """What all kinds of response have in common. For the event loop's thread."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.request: Request | None = None  # until its last response
        self.left = False

    def submit(self, engine: Engine, request: Request) -> None:
        """Have the engine take the request. If this raises, it has not."""
        self.request = request
        try:
            engine.infer(request)
        except BaseException:
            self.request = None
            raise

    def client_disconnected(self) -> None:
        """The client has disconnected."""
        self.left = True
        if self.request is not None:
            self.request.cancel()

    @abstractmethod
    def deliver(self, response: Response) -> None:
        """Take a response. Never raises: others wait behind it."""

    def refuse(self, error: ShoalError) -> None:
        """Respond with an error."""
        send_error(self.exchange, error)


class OneResponseCall(ModelCall):
    """Waits for the end and responds if there was exactly one response."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._first: Response | None = None  # others are only counted: there may be any number
        self._count = 0

    def deliver(self, response: Response) -> None:
        """Take a response. Never raises: others wait behind it."""
        if not response.is_end_only:
            self._first = self._first or response
            self._count += 1
        if not response.final:
            return
        self.request = None
        if self.left:
            return
        first, self._first = self._first, None
        if first is None or self._count > 1:
            self.refuse(self._not_one(self._count))
            return
        if first.error is not None:
            self.refuse(first.error)
            return
        try:
            self._respond(first)
        except Exception as error:  # noqa: BLE001 - becomes the response
            self.refuse(as_shoal_error(error))

    @abstractmethod
    def _respond(self, response: Response) -> None:
        """Send the only response. What it raises becomes an error."""

    @abstractmethod
    def _not_one(self, count: int) -> ShoalError:
        """The error for another number of responses."""

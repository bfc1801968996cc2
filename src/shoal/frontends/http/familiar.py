"""Requests like the last one on their connection: what a connection knows of the way they take.

    connection --data--> Form.take --> Asked, to be answered by a lane
               `--Lane.recognise--> Form, for the next one

A connection speaks HTTP and nothing else. That a request is an inference, and what makes two of
them alike, is known behind these contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.frontends.http.message import Head

if TYPE_CHECKING:
    from shoal.frontends.http.protocol import HttpConnection


class Asked(Protocol):
    """What a connection is busy with."""

    def client_left(self) -> None:
        """Nobody waits for this answer any more."""

    def client_reads(self) -> None:
        """There is room for more again."""


class Form(Protocol):
    """What a request that came in one piece looked like."""

    def take(self, connection: HttpConnection, data: bytes) -> Asked | None:
        """Begin to answer `data` if it looks like that, too; None, with nothing done, if not."""


class Lane(Protocol):
    """A short way for requests like others before them."""

    def recognise(self, data: bytes, head: Head, body_at: int) -> Form | None:
        """What to expect of requests like `data`, which begins with `head`; None if it has to go
        the usual way."""

    def hand_over(self) -> None:
        """Go on with what was taken: another request is about to go the usual way."""

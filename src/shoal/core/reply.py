"""Replies: every request carries the object that takes its response.

The owner of a request (engine, scheduler, instance) sends; there is no table of waiting clients.
"""

from __future__ import annotations

from typing import Protocol

from shoal.core.response import Response


class Reply(Protocol):
    """Where a request's responses go. Callable from any thread; must not raise or block."""

    def send(self, response: Response) -> None:
        """Take one response; the one marked `final` comes last and exactly once."""


class DiscardReply:
    """The reply of a request whose responses no client waits for: it drops them."""

    def send(self, response: Response) -> None:
        """Drop it."""


DISCARD = DiscardReply()

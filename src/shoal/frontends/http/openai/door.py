"""Where requests for /v1/… come in; what answers them is imported with the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core.inbox import LoopInbox
from shoal.frontends.http.contracts import Engine, Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target

if TYPE_CHECKING:
    from shoal.frontends.http.openai.routes import OpenAiRoutes

Handler = Callable[[Exchange, Target], None]

NAMES = ("models", "model", "embeddings", "completions", "chat")


class OpenAiDoor:
    """Makes the routes when somebody asks for one."""

    def __init__(self, engine: Engine, inbox: LoopInbox, options: HttpOptions) -> None:
        self._parts = (engine, inbox, options)
        self._routes: OpenAiRoutes | None = None

    def handlers(self) -> dict[str, Handler]:
        """Each route's handler by the route's name."""
        return {f"openai_{name}": self._handler(name) for name in NAMES}

    def _handler(self, name: str) -> Handler:
        def handle(exchange: Exchange, target: Target) -> None:
            if self._routes is None:
                from shoal.frontends.http.openai.routes import OpenAiRoutes

                self._routes = OpenAiRoutes(*self._parts)
            answer: Handler = getattr(self._routes, name)
            answer(exchange, target)

        return handle

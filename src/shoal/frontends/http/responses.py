"""Responses that are not errors: JSON, an empty body, or the result of work on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON, as_shoal_error, send_error
from shoal.frontends.threads import without_frames
from shoal.wire import json_text

Result = TypeVar("Result")


def send_json(exchange: Exchange, value: Any, status: int = 200) -> None:
    """Respond with `value`."""
    exchange.respond(status, [JSON], [json_text.dumps(value)])


def send_empty(exchange: Exchange, status: int = 200) -> None:
    """Respond with a status alone."""
    exchange.respond(status, [], [])


def respond_if_blocking(
    exchange: Exchange,
    blocks: bool,
    work: Callable[[], Result],
    *,
    respond: Callable[[Result], None],
) -> None:
    """`respond` with the result of `work`: from a thread if that `blocks`, else at once."""
    if blocks:
        respond_from_thread(exchange, work, respond=respond)
    else:
        respond(work())


def respond_from_thread(
    exchange: Exchange,
    work: Callable[[], Result],
    *,
    respond: Callable[[Result], None] | None = None,
    threads: Executor | None = None,
) -> None:
    """Run `work` on a thread of `threads` (or the loop's own), then respond on the loop.

    `respond` gets the result; by default it is sent as JSON, None as an empty body. What either of
    them raises is sent as an error.
    """

    def send(result: Result) -> None:
        if result is None:
            send_empty(exchange)
        else:
            send_json(exchange, result)

    def done(future: asyncio.Future[Result]) -> None:
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        if failure is not None:  # not raised here: it would hold the body until a collection
            send_error(exchange, as_shoal_error(failure))
            return
        try:
            (respond or send)(future.result())
        except Exception as error:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(error))

    loop = asyncio.get_running_loop()
    loop.run_in_executor(threads, without_frames(work)).add_done_callback(done)

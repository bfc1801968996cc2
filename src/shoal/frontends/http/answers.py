"""Answers that are not errors: JSON, or nothing at all."""

from __future__ import annotations

from typing import Any

from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON
from shoal.wire import json_text


def send_json(exchange: Exchange, value: Any) -> None:
    """Answer 200 with `value`."""
    exchange.respond(200, [JSON], [json_text.dumps(value)])


def send_empty(exchange: Exchange, status: int = 200) -> None:
    """Answer with a status alone."""
    exchange.respond(status, [], [])

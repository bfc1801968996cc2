"""The control calls that replicas must have had: kept, to be made again on replicas that join.

    Control --add--> Calls --since(number)--> a new replica
                      |
                      +--dump--> Ray's store --load--> the next ingress

Of several calls about the same thing the last one is kept.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

CHANGES_MODEL = ("RepositoryModelLoad", "RepositoryModelUnload")  # methods of gRPC


class Call(NamedTuple):
    """A control call that changed something."""

    protocol: str  # "http" or "grpc"
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    model: str  # empty if it is about the whole server
    subject: str  # what it sets: calls with the same one replace each other


class Calls:
    """Calls in the order in which they were made."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Call]] = {}  # by subject, oldest first
        self.last = 0  # the number of the last call

    def add(self, call: Call) -> int:
        """Keep a call; returns its number."""
        self.last += 1
        self._kept.pop(call.subject, None)
        self._kept[call.subject] = (self.last, call)
        return self.last

    def since(self, number: int) -> list[Call]:
        """The calls after that one."""
        return [call for own, call in self._kept.values() if own > number]

    def dump(self) -> bytes:
        """All of it, for `load`."""
        kept = [
            {**call._asdict(), "body": base64.b64encode(call.body).decode(), "number": number}
            for number, call in self._kept.values()
        ]
        return json.dumps({"last": self.last, "kept": kept}).encode()

    def load(self, dumped: bytes) -> None:
        """Go on from what another one has dumped."""
        document: dict[str, Any] = json.loads(dumped)
        self.last = document["last"]
        self._kept = {}
        for fields in document["kept"]:
            number = fields.pop("number")
            fields["body"] = base64.b64decode(fields["body"])
            fields["headers"] = tuple((name, value) for name, value in fields["headers"])
            call = Call(**fields)
            self._kept[call.subject] = (number, call)


def http_subject(path: str, body: bytes, model: str) -> str:
    """What a call sets: a model, or the settings that it names."""
    if path.startswith("/v2/repository/"):
        return f"model {model}"
    try:
        names = sorted(json.loads(body))
    except (ValueError, TypeError):
        names = []
    kind = "trace" if "/trace/" in path else "log"
    return f"{kind} {model}: {', '.join(names)}"


def grpc_subject(name: str, request: Any, model: str) -> str:
    """As that of the same call over HTTP."""
    if name in CHANGES_MODEL:
        return f"model {model}"
    kind = "trace" if name == "TraceSetting" else "log"
    return f"{kind} {model}: {', '.join(sorted(request.settings))}"

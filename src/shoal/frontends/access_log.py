"""Who has called what, and what came of it: the access log, and the audit log.

    response sent --record--> access log (a sample of all)     --audit log (control calls, refusals)

A line is made when a response is complete, and written by a thread (`LineWriter`). Nothing here
runs unless one of the two logs is switched on.

    common  127.0.0.1 - alice [16/Nov/2026:02:33:38 +0000] "POST /v2/… HTTP/1.1" 200 512 0.00041 "m"
    json    {"time": "2026-11-16T02:33:38.104Z", "protocol": "http", "client": "127.0.0.1:50123", …}
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.line_writer import LineWriter

FORMATS = ("common", "json")
DISCONNECTED = 499  # the client has left before its response was complete
_REFUSED = frozenset((401, 403, 429))
# The kinds of calls (as of restricted APIs) that change something.
_CONTROL = frozenset(("model-repository", "shared-memory", "logging", "trace"))
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {34: '\\"', 92: "\\\\"}


@dataclass(slots=True)
class AccessRecord:
    """One request and its response. Empty texts are not known."""

    protocol: str  # http, grpc or tcp
    client: str  # address and port
    method: str
    path: str
    version: str  # of the protocol, as in "HTTP/1.1"
    status: int  # of HTTP; for gRPC, the one that stands for its own
    received_bytes: int
    sent_bytes: int
    seconds: float
    api: str = ""  # the kind of call
    changes: bool = False  # whether such a call changes something
    key: str = ""  # the name of the caller's key
    model: str = ""
    model_version: str = ""
    grpc_status: str = ""
    error: str = ""  # what the client was told
    trace_id: str = ""
    user_agent: str = ""
    refused: bool = False  # for lack of permission, whatever the status


class AccessLog:
    """Both logs of a server. For the event loop's thread."""

    def __init__(
        self,
        access: LineWriter | None,
        audit: LineWriter | None,
        *,
        log_format: str = "common",
        sample: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`sample` is the part of all requests that the access log has; None is switched off."""
        self._access = access
        self._audit = audit
        self._line = as_json if log_format == "json" else as_common
        self._sample = sample
        self._clock = clock

    def record(self, record: AccessRecord) -> None:
        """A response is complete, or its client has left."""
        now = self._clock()
        if self._access is not None and (
            self._sample >= 1 or random.random() < self._sample  # noqa: S311 - no secret
        ):
            self._access.write(self._line(record, now))
        if self._audit is not None:
            event = audit_event(record)
            if event:
                self._audit.write(as_json(record, now, event=event))

    def reopen(self) -> None:
        """Continue in new files, if the old ones were renamed."""
        for writer in (self._access, self._audit):
            if writer is not None:
                writer.reopen()

    def close(self) -> None:
        """Write what waits."""
        for writer in (self._access, self._audit):
            if writer is not None:
                writer.close()


def audit_event(record: AccessRecord) -> str:
    """Why the audit log has this request; empty if it has not."""
    if record.refused or record.status in _REFUSED:
        return "refused"
    return "control" if record.changes and record.api in _CONTROL else ""


def as_common(record: AccessRecord, now: float) -> str:
    """The common log format, then the seconds and the model."""
    moment = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now))
    host = record.client.rpartition(":")[0] or record.client or "-"
    request = f"{record.method or '-'} {record.path or '-'} {record.version}".translate(_ESCAPES)
    model = record.model.translate(_ESCAPES) or "-"
    return (
        f'{host} - {record.key or "-"} [{moment}] "{request}" {record.status} '
        f'{record.sent_bytes} {record.seconds:.6f} "{model}"'
    )


def as_json(record: AccessRecord, now: float, *, event: str = "") -> str:
    """One object; what is not known is left out."""
    seconds, milliseconds = divmod(round(now * 1000), 1000)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    fields: dict[str, Any] = {
        "time": f"{moment}.{milliseconds:03d}Z",
        "event": event,
        "protocol": record.protocol,
        "client": record.client,
        "key": record.key,
        "method": record.method,
        "path": record.path,
        "model": record.model,
        "model_version": record.model_version,
        "status": record.status,
        "grpc_status": record.grpc_status,
        "error": record.error,
        "received_bytes": record.received_bytes,
        "sent_bytes": record.sent_bytes,
        "seconds": round(record.seconds, 6),
        "trace_id": record.trace_id,
        "user_agent": record.user_agent,
    }
    return json.dumps({name: value for name, value in fields.items() if value != ""})

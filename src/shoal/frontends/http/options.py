"""The command line options that the HTTP routes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Set once, when the server starts."""

    # Bounds JSON texts, tensors made from JSON, raw inputs and decompressed bodies.
    max_input_bytes: int = 1 << 26
    header_forward_pattern: str = ""
    scheme: str = "http"  # of the port, for ASGI applications
    hidden_headers: frozenset[str] = frozenset()  # never forwarded: they hold keys
    cors_origins: tuple[str, ...] = ()  # ("*",): all
    model_upload: str = "auto"  # whose model files are accepted: auto, true or false
    allowed_hosts: tuple[str, ...] = ()  # names by which web pages may reach the server
    # API kind -> (header, value) that requests of that kind must carry.
    restricted_apis: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # The start of the Content-Type of a response with bytes after its JSON, whose length follows;
    # empty: that is in a header of its own.
    length_type: bytes = b""
    compress_from_bytes: int = 1024  # smaller responses are not compressed
    plans: bool = True  # whether repeated requests may take the fast path

"""What can be set about HTTP: the part of the command line that the routes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.errors import InvalidArgument

CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Set once, when the server starts. Raises InvalidArgument for what cannot be meant."""

    # Bounds JSON texts, tensors made from JSON, raw inputs and decompressed bodies.
    max_input_bytes: int = 1 << 26
    header_forward_pattern: str = ""
    cors_origins: tuple[str, ...] = ()  # ("*",) lets every page in
    # Category -> (header, value) that requests of that category must carry.
    restricted_apis: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    compress_from_bytes: int = 1024  # smaller answers are not worth compressing
    plans: bool = True  # whether repeated requests may take the short way

    def __post_init__(self) -> None:
        for category in self.restricted_apis:
            if category not in CATEGORIES:
                raise InvalidArgument(
                    f"unknown restricted api '{category}', expected one of {', '.join(CATEGORIES)}"
                )

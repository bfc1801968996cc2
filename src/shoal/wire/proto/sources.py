"""The .proto files themselves, for clients in other languages: what protoc makes stubs of."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import NotFound

# Each stands after those it imports.
SOURCES = (
    "model_config.proto",
    "grpc_service.proto",
    "health.proto",
    "reflection_v1.proto",
    "reflection_v1alpha.proto",
)


def source(name: str) -> bytes:
    """The text of a file; NotFound lists those there are."""
    if name not in SOURCES:
        raise NotFound(f"there is no file '{name}'; there are {', '.join(sorted(SOURCES))}")
    return Path(__file__).with_name(name).read_bytes()

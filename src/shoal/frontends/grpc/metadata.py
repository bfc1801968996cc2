"""What the server reports about itself and its models: health, metadata, configs, statistics.

Each method takes the bytes of a request and returns those of its response, or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.pauses import Pauses
from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import NotFound
from shoal.frontends.requests import parse_version
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages


class MetadataMethods:
    """Serves what can only be read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def server_live(self, message: Buffer) -> bytes:
        """ServerLive."""
        parse(messages.ServerLiveRequest, message)
        return _bytes(messages.ServerLiveResponse(live=True))

    def server_ready(self, message: Buffer) -> bytes:
        """ServerReady."""
        parse(messages.ServerReadyRequest, message)
        return _bytes(messages.ServerReadyResponse(ready=self._engine.ready()))

    def asks_process(self, _message: Buffer) -> bool:
        """Whether `server_ready` asks another process."""
        return self._engine.asks_process

    def asks_readiness(self, message: Buffer) -> bool:
        """Whether `model_ready` will call the model itself, which may take a while."""
        request = parse(messages.ModelReadyRequest, message)
        return self._engine.asks_readiness(request.name, parse_version(request.version))

    def model_ready(self, message: Buffer) -> bytes:
        """ModelReady, of a model or of one version; an unknown one is not ready."""
        request = parse(messages.ModelReadyRequest, message)
        version = parse_version(request.version)
        try:
            ready = self._engine.model_ready(request.name, version)
        except NotFound:  # clients that wait for the model would take an error for the end
            ready = False
        return _bytes(messages.ModelReadyResponse(ready=ready))

    def server_metadata(self, message: Buffer) -> bytes:
        """ServerMetadata."""
        parse(messages.ServerMetadataRequest, message)
        return _filled(messages.ServerMetadataResponse(), self._engine.server_metadata())

    def model_metadata(self, message: Buffer) -> bytes:
        """ModelMetadata, of all ready versions or of one."""
        request = parse(messages.ModelMetadataRequest, message)
        metadata = self._engine.model_metadata(request.name, parse_version(request.version))
        return _filled(messages.ModelMetadataResponse(), metadata)

    def model_config(self, message: Buffer) -> bytes:
        """ModelConfig."""
        request = parse(messages.ModelConfigRequest, message)
        config = self._engine.model_config(request.name, parse_version(request.version))
        return _filled(messages.ModelConfigResponse(), {"config": config})

    def counts_all_models(self, message: Buffer) -> bool:
        """Whether `model_statistics` is about all models, which may take a while."""
        return self._engine.asks_process or not parse(messages.ModelStatisticsRequest, message).name

    def model_statistics(self, permits: Callable[[str], bool], message: Buffer) -> bytes:
        """ModelStatistics, of all models that the client may see, of one, or of one version."""
        request = parse(messages.ModelStatisticsRequest, message)
        from google.protobuf import json_format

        counted = self._engine.statistics(request.name, parse_version(request.version))
        response = messages.ModelStatisticsResponse()
        pause: Callable[[], None] = _nothing if request.name else Pauses()  # then on a thread
        for entry in counted:
            if permits(entry["name"]):
                for ours in ("execution", "task", "generation"):
                    entry.pop(ours, None)  # the schema is Triton's and has no place for it
                json_format.ParseDict(entry, response.model_stats.add())
            pause()
        return _bytes(response)


def _nothing() -> None:
    return


def _filled(response: Any, content: dict[str, Any]) -> bytes:
    """A response with the engine's data, whose names are those of the schema."""
    from google.protobuf import json_format

    json_format.ParseDict(content, response)
    return _bytes(response)


def _bytes(response: Any) -> bytes:
    content: bytes = response.SerializeToString()
    return content

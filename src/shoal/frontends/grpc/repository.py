"""The model repository over gRPC: index, load, unload.

Each method takes the bytes of a request and returns those of its response, or raises. They block,
a load for minutes: the service calls them on a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import InvalidArgument, Unsupported
from shoal.wire.grpc_request import MOST_FIELDS, parse
from shoal.wire.proto import messages
from shoal.wire.protobuf_wire import tag, take_out

_FILE_PREFIX = "file:"
_PARAMETERS_TAG = tag(3)  # of RepositoryModelLoadRequest


class RepositoryMethods:
    """Serves what changes or lists models."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def index(self, permits: Callable[[str], bool], message: Buffer) -> bytes:
        """RepositoryIndex: every model that the client's key permits, or those that are ready."""
        request = parse(messages.RepositoryIndexRequest, message)
        _check_repository(request)
        response = messages.RepositoryIndexResponse()
        for row in self._engine.index(request.ready):
            if permits(row["name"]):
                response.models.add(**row)
        content: bytes = response.SerializeToString()
        return content

    def load(
        self,
        check_upload: Callable[[], None],
        check_model: Callable[[str], None],
        message: Buffer,
    ) -> bytes:
        """RepositoryModelLoad: load or reload, with the client's config and files if it sends any.

        `check_upload` raises if the client may send no files, `check_model` if its key does not
        permit the model.
        Returns when the model serves, or raises why it does not.
        """
        take_out(message, {_PARAMETERS_TAG: []}, MOST_FIELDS)  # refuses a map of a million entries
        request = parse(messages.RepositoryModelLoadRequest, message)
        check_model(request.model_name)
        _check_repository(request)
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, parameter in request.parameters.items():
            if key == "config":
                config = _value(key, parameter, "string_param")
            elif key.startswith(_FILE_PREFIX):
                check_upload()
                files[key.removeprefix(_FILE_PREFIX)] = _value(key, parameter, "bytes_param")
            else:
                raise InvalidArgument(f"unrecognized load parameter '{key}'.")
        self._engine.load(request.model_name, config, files)
        return b""

    def unload(self, message: Buffer) -> bytes:
        """RepositoryModelUnload: a model, and optionally the models that need it."""
        request = parse(messages.RepositoryModelUnloadRequest, message)
        _check_repository(request)
        dependents = False
        if "unload_dependents" in request.parameters:
            parameter = request.parameters["unload_dependents"]
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidArgument(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            dependents = parameter.bool_param
        self._engine.unload(request.model_name, dependents)
        return b""


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")


def _value(key: str, parameter: Any, kind: str) -> Any:
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for load parameter '{key}', expected {kind}.")
    return getattr(parameter, kind)

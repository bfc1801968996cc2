"""Shared memory over HTTP: register, unregister and list regions."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.errors import InvalidArgument
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.responses import (
    respond_from_thread,
    respond_if_blocking,
    send_empty,
    send_json,
)
from shoal.frontends.http.routes import Target, route
from shoal.frontends.shared_memory import SharedMemory
from shoal.wire import http_body, json_limits

_SYSTEM = "/v2/systemsharedmemory"
_CUDA = "/v2/cudasharedmemory"
_route = partial(route, api="shared-memory", page="shared-memory")


class MemoryRoutes:
    """Serves /v2/systemsharedmemory and /v2/cudasharedmemory."""

    def __init__(self, memory: SharedMemory, options: HttpOptions) -> None:
        self._memory = memory
        self._most_bytes = options.max_input_bytes

    @_route(f"GET {_SYSTEM}[/region/{{region}}]/status", response="SystemRegions")
    def system_memory_status(self, exchange: Exchange, target: Target) -> None:
        """Registered regions of system shared memory."""
        self._list(exchange, partial(self._memory.status, target.region))

    @_route(f"GET {_CUDA}[/region/{{region}}]/status", response="CudaRegions")
    def cuda_memory_status(self, exchange: Exchange, target: Target) -> None:
        """Registered regions of GPU memory."""
        self._list(exchange, partial(self._memory.cuda_status, target.region))

    @_route(f"POST {_SYSTEM}/region/{{region}}/register", request="SystemRegionRequest")
    def system_memory_register(self, exchange: Exchange, target: Target) -> None:
        """Register a region of system shared memory."""
        document = self._read(exchange)
        register = partial(
            self._memory.register,
            target.region,
            _text(document, "key"),
            _unsigned(document, "offset") if "offset" in document else 0,
            _unsigned(document, "byte_size"),
        )
        self._change(exchange, register)

    @_route(f"POST {_CUDA}/region/{{region}}/register", request="CudaRegionRequest")
    def cuda_memory_register(self, exchange: Exchange, target: Target) -> None:
        """Register a region of GPU memory."""
        name, document = target.region, self._read(exchange)

        def work() -> None:  # on a thread: the first call to a GPU takes long
            handle, device = _handle(document), _unsigned(document, "device_id")
            self._memory.register_cuda(name, handle, device, _unsigned(document, "byte_size"))

        respond_from_thread(exchange, work)

    @_route(f"POST {_SYSTEM}[/region/{{region}}]/unregister")
    def system_memory_unregister(self, exchange: Exchange, target: Target) -> None:
        """Unregister a region of system shared memory, or all of them."""
        self._change(exchange, partial(self._memory.unregister, target.region))

    @_route(f"POST {_CUDA}[/region/{{region}}]/unregister")
    def cuda_memory_unregister(self, exchange: Exchange, target: Target) -> None:
        """Unregister a region of GPU memory, or all of them."""
        self._change(exchange, partial(self._memory.unregister_cuda, target.region))

    def _list(self, exchange: Exchange, work: Callable[[], Any]) -> None:
        respond_if_blocking(
            exchange, self._memory.asks_process, work, respond=partial(send_json, exchange)
        )

    def _change(self, exchange: Exchange, work: Callable[[], None]) -> None:
        """Do `work`, on a thread if other processes have to do it, too; then respond."""
        respond_if_blocking(
            exchange, self._memory.asks_process, work, respond=lambda _: send_empty(exchange)
        )

    def _read(self, exchange: Exchange) -> dict[str, Any]:
        body = exchange.request.body
        http_body.check_json_size(len(body), self._most_bytes)
        document = json_limits.loads(body, self._most_bytes)
        if type(document) is not dict:
            raise InvalidArgument(
                "a region is registered with a JSON object: key, offset, byte_size"
            )
        return document


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if type(value) is not str:
        raise InvalidArgument(f"Shared memory register request has no valid '{key}' field")
    return value


def _handle(document: dict[str, Any]) -> bytes:
    """The cudaIpcMemHandle_t of a region, which is sent as base64."""
    outer = document.get("raw_handle")
    if outer is None:
        raise InvalidArgument("Shared memory register request has no 'raw_handle' field")
    text = outer.get("b64") if type(outer) is dict else None
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidArgument(
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
        ) from None


def _unsigned(document: dict[str, Any], key: str) -> int:
    value = document.get(key)
    if type(value) is not int or value < 0:
        raise InvalidArgument(f"Shared memory register request has no valid '{key}' field")
    return value

"""Shared memory over HTTP: register, unregister, status of regions."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument
from shoal.frontends.http.answers import send_empty, send_json
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target
from shoal.frontends.shared_memory import SharedMemory
from shoal.wire import http_body, json_text


class MemoryRoutes:
    """Serves /v2/systemsharedmemory and /v2/cudasharedmemory."""

    def __init__(self, memory: SharedMemory, options: HttpOptions) -> None:
        self._memory = memory
        self._most_bytes = options.max_input_bytes

    def status(self, exchange: Exchange, target: Target) -> None:
        """GET …/status: every region, or the one the path names."""
        if target.cuda:
            send_json(exchange, self._memory.cuda_status(target.region))
        else:
            send_json(exchange, self._memory.status(target.region))

    def register(self, exchange: Exchange, target: Target) -> None:
        """POST …/register: make a region known under the name in the path."""
        document = _read(exchange.request.body, self._most_bytes)
        if target.cuda:
            self._register_cuda(exchange, target.region, document)
            return
        self._memory.register(
            target.region,
            _text(document, "key"),
            _unsigned(document, "offset") if "offset" in document else 0,
            _unsigned(document, "byte_size"),
        )
        send_empty(exchange)

    def _register_cuda(self, exchange: Exchange, name: str, document: dict[str, Any]) -> None:
        """On a thread: to wake a GPU takes a while."""

        def work() -> None:
            self._memory.check_cuda(name)
            handle, device = _handle(document), _unsigned(document, "device_id")
            self._memory.register_cuda(name, handle, device, _unsigned(document, "byte_size"))

        def done(future: asyncio.Future[None]) -> None:
            try:
                future.result()
                send_empty(exchange)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - is the answer
                send_error(exchange, as_shoal_error(error))

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)

    def unregister(self, exchange: Exchange, target: Target) -> None:
        """POST …/unregister: let go of the region in the path, or of all of them."""
        if target.cuda:
            self._memory.unregister_cuda(target.region)
        else:
            self._memory.unregister(target.region)
        send_empty(exchange)


def _read(body: Buffer, most_bytes: int) -> dict[str, Any]:
    http_body.check_json_size(len(body), most_bytes)
    document = json_text.loads(body)
    if type(document) is not dict:
        raise InvalidArgument("a region is registered with a JSON object: key, offset, byte_size")
    return document


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if type(value) is not str:
        raise InvalidArgument(f"Shared memory register request has no valid '{key}' field")
    return value


def _handle(document: dict[str, Any]) -> bytes:
    """The cudaIpcMemHandle_t of a region, which comes as base64."""
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

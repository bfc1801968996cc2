"""A client for Shoal, Triton and every other server that speaks the KServe v2 protocol.

    from shoal.client import Client

    client = Client("localhost:8000")                       # HTTP; Client("grpc://localhost:8001")
    client.infer("mnist", {"data": batch})["prob"]          # a numpy array
    client.infer("mnist", {"data": batch}).top_k("prob", 3) # per row: Label(score, index, name)

`AsyncClient` has the same methods as coroutines. Operations are implemented once, without I/O
(`inference`, `control`, the codecs); thin transports below them send and receive bytes.

    Client.infer --inference--> steps --codec--> bytes --transport--> socket
                                                    '--> Result

    infer(model, inputs, *, outputs, version, id, parameters, classes, sequence_id,
          sequence_start, sequence_end, priority, server_timeout_us, timeout, headers,
          binary)                                     -> Result
    prepare(model, inputs, …) -> Prepared; send(prepared) -> Result     one request, many times
    stream(model)                                     many requests and responses on one call (gRPC)
    sequence(model, id)                               sets start and end
    generate(model, inputs), generate_stream(model, inputs)             JSON in, JSON out (HTTP)
    classify(photo, …) caption(photo, …) answer(text, question) embed(texts)
    perform(operation, values)                        a task by its operation (HTTP)
    live() ready() model_ready(model) server_metadata() metadata(model) config(model)
    statistics(model) index() load(model) unload(model) trace_settings() log_settings()
    shared_memory(name, size)                         tensors that are not sent
    close(), or `with Client(…) as client:`

`Client("shoal+ray://host:8000")` balances over the replicas of `shoal ray` by itself (`replicas`).

Every error is a `ClientError`. The names below are imported on first use: `Client` needs neither
asyncio nor, over HTTP, protobuf.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient as AsyncClient
    from shoal.client.async_stream import AsyncStream as AsyncStream
    from shoal.client.client import Client as Client
    from shoal.client.errors import ClientError as ClientError
    from shoal.client.errors import ConnectionFailed as ConnectionFailed
    from shoal.client.errors import InvalidInput as InvalidInput
    from shoal.client.errors import ProtocolError as ProtocolError
    from shoal.client.errors import ServerError as ServerError
    from shoal.client.errors import Timeout as Timeout
    from shoal.client.errors import Unavailable as Unavailable
    from shoal.client.inference import Prepared as Prepared
    from shoal.client.inputs import Input as Input
    from shoal.client.region import Place as Place
    from shoal.client.region import Region as Region
    from shoal.client.result import Label as Label
    from shoal.client.result import Output as Output
    from shoal.client.result import Result as Result
    from shoal.client.stream import Stream as Stream

_HOMES = {
    "AsyncClient": "async_client",
    "AsyncStream": "async_stream",
    "Client": "client",
    "ClientError": "errors",
    "ConnectionFailed": "errors",
    "Input": "inputs",
    "InvalidInput": "errors",
    "Label": "result",
    "Output": "result",
    "Place": "region",
    "Prepared": "inference",
    "ProtocolError": "errors",
    "Region": "region",
    "Result": "result",
    "ServerError": "errors",
    "Stream": "stream",
    "Timeout": "errors",
    "Unavailable": "errors",
}
__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Input",
    "InvalidInput",
    "Label",
    "Output",
    "Place",
    "Prepared",
    "ProtocolError",
    "Region",
    "Result",
    "ServerError",
    "Stream",
    "Timeout",
    "Unavailable",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal.client' has no attribute '{name}'")
    return getattr(import_module(f"shoal.client.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

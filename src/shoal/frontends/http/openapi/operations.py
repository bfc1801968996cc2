"""What each route does, in words, and which schemas its bodies follow.

A key is a method and a route's name. Where a path changes what is asked for or answered, a third
word tells the cases apart: `all` for a path without a model or file, `system` or `cuda` for memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.wire.http_body import LENGTH_HEADER

JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route. Schemas are names of `schemas.SCHEMAS`."""

    summary: str
    answer: str = ""  # the schema of a success; empty: nothing but a status
    body: str = ""  # the schema of what is sent; empty: nothing is
    description: str = ""
    media: tuple[str, ...] = (JSON,)  # of the answer
    body_media: tuple[str, ...] = (JSON,)
    body_required: bool = True
    query: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # name, description, values
    headers: tuple[tuple[str, str], ...] = ()  # that a request may carry: name, description


_BINARY_HEADER = (
    LENGTH_HEADER,
    "how many bytes of the body are JSON, after which tensors follow; without it all are",
)

OPERATIONS: dict[str, Operation] = {
    "GET welcome": Operation("Where to go from here", "Welcome"),
    # ---- health
    "GET live": Operation("Whether the server runs", description="200 if so, else 400."),
    "GET ready": Operation(
        "Whether traffic should come here",
        description="200 when every model that was asked for can serve, else 400.",
    ),
    "GET model_ready": Operation(
        "Whether a model can be asked", description="200 if so, else 400."
    ),
    # ---- metadata
    "GET server_metadata": Operation("Name, version and extensions", "ServerMetadata"),
    "GET model_metadata": Operation("A model's inputs and outputs", "ModelMetadata"),
    "GET model_config": Operation("The configuration a model runs with", "ModelConfig"),
    "GET openapi": Operation("This document", "OpenApi"),
    "GET proto": Operation(
        "A .proto file of the gRPC interface",
        description="For protoc, which makes stubs of them in many languages.",
        media=(TEXT,),
    ),
    "GET proto all": Operation("The names of the .proto files", "ProtoFiles"),
    # ---- inference
    "POST infer": Operation(
        "Inference",
        "InferResponse",
        "InferRequest",
        "Tensors as JSON, or as bytes after the JSON: with the header "
        f"{LENGTH_HEADER}, which the answer then has, too.",
        media=(JSON, BINARY),
        body_media=(JSON, BINARY),
        headers=(_BINARY_HEADER,),
    ),
    "POST generate": Operation(
        "Inference with plain JSON, one response",
        "GenerateResponse",
        "GenerateRequest",
        "For models that answer exactly once.",
    ),
    "POST generate_stream": Operation(
        "Inference with plain JSON, an event for each response",
        "GenerateResponse",
        "GenerateRequest",
        "Server-sent events, `data: {…}`, each as soon as it is there.",
        media=(EVENTS,),
    ),
    # ---- statistics
    "GET statistics": Operation("Statistics of a model", "Statistics"),
    "GET statistics all": Operation("Statistics of all models", "Statistics"),
    "GET explain": Operation(
        "Why batches are as they are, and what would help",
        "Explanation",
        media=(JSON, TEXT),
        query=(("format", "prose for people, or JSON", ("json", "text")),),
    ),
    "GET explain all": Operation(
        "Why the batches of all models are as they are, and what would help",
        "Explanations",
        media=(JSON, TEXT),
        query=(("format", "prose for people, or JSON", ("json", "text")),),
    ),
    "GET metrics": Operation("Metrics, as Prometheus reads them", media=(TEXT,)),
    # ---- the repository
    "POST index": Operation(
        "All models and versions, with their states", "Index", "IndexRequest", body_required=False
    ),
    "POST load": Operation(
        "Load a model, or load it again",
        body="LoadRequest",
        description="In explicit and lazy mode. Answers when it is loaded.",
        body_required=False,
    ),
    "POST unload": Operation(
        "Unload a model",
        body="UnloadRequest",
        description="In explicit and lazy mode.",
        body_required=False,
    ),
    # ---- shared memory
    "GET memory_status system": Operation("Registered regions of the system", "SystemRegions"),
    "GET memory_status cuda": Operation("Registered regions of GPUs", "CudaRegions"),
    "POST memory_register system": Operation(
        "Register a region of the system's shared memory", body="SystemRegionRequest"
    ),
    "POST memory_register cuda": Operation(
        "Register a region of a GPU's memory", body="CudaRegionRequest"
    ),
    "POST memory_unregister": Operation("Let go of a region, or of all of them"),
    # ---- settings
    "GET trace": Operation("The trace settings", "TraceSettings"),
    "POST trace": Operation("Change trace settings", "TraceSettings", "TraceSettings"),
    "GET logging": Operation("The log settings", "LogSettings"),
    "POST logging": Operation("Change log settings", "LogSettings", "LogSettings"),
}


def find(method: str, name: str, words: tuple[str, ...]) -> tuple[str, Operation]:
    """The key and operation for a route; one for a word of `words` comes before the plain one."""
    for key in (*(f"{method} {name} {word}" for word in words), f"{method} {name}"):
        if key in OPERATIONS:
            return key, OPERATIONS[key]
    raise KeyError(f"the route '{name}' has no description for {method}")

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
FORM = "multipart/form-data"
OPENAI_ERROR = "OpenAiError"


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
    failure: str = "Error"  # the schema of what is answered when something goes wrong


_BINARY_HEADER = (
    LENGTH_HEADER,
    "how many bytes of the body are JSON, after which tensors follow; without it all are",
)

# Operations of tasks that have a description of their own below.
TASK_OPERATIONS = ("classify",)

OPERATIONS: dict[str, Operation] = {
    "GET welcome": Operation(
        "Where to go from here", "Welcome", description="Browsers get the web console."
    ),
    "GET console_file": Operation(
        "A file of the web console", media=("text/css", "text/javascript", "image/svg+xml")
    ),
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
    # ---- tasks
    "POST task": Operation(
        "What a model's task does, for people",
        "TaskAnswer",
        "TaskRequest",
        "A form with files, JSON, or the bytes of a file. Values may stand in the query, too. With "
        "`stream=true`, where a task has it, an event for each piece.",
        media=(JSON, EVENTS),
        body_media=(JSON, FORM, BINARY),
    ),
    "POST task all": Operation(
        "The same, of the only loaded model that offers it",
        "TaskAnswer",
        "TaskRequest",
        media=(JSON, EVENTS),
        body_media=(JSON, FORM, BINARY),
    ),
    "POST task classify": Operation(
        "Labels for photos",
        "PhotoLabels",
        "PhotoRequest",
        "For models with the task image-classification. A form with any number of files, the bytes "
        "of one, or JSON with base64. `top` may stand in the query, too.",
        body_media=(JSON, FORM, BINARY),
    ),
    # ---- OpenAI's API
    "GET openai_models": Operation(
        "The models that OpenAI's clients can ask here", "OpenAiModels", failure=OPENAI_ERROR
    ),
    "GET openai_model": Operation("One of them", "OpenAiModel", failure=OPENAI_ERROR),
    "POST openai_embeddings": Operation(
        "Vectors for texts, as OpenAI's API gives them",
        "OpenAiEmbeddings",
        "OpenAiEmbeddingsRequest",
        "For models with the task sentence-embedding.",
        failure=OPENAI_ERROR,
    ),
    "POST openai_completions": Operation(
        "More text, as OpenAI's API gives it",
        "OpenAiCompletion",
        "OpenAiCompletionRequest",
        'For models that take and give text. With "stream": true an event for each piece, then '
        "`data: [DONE]`.",
        media=(JSON, EVENTS),
        failure=OPENAI_ERROR,
    ),
    "POST openai_chat": Operation(
        "The next turn of a conversation, as OpenAI's API gives it",
        "OpenAiChatCompletion",
        "OpenAiChatRequest",
        'For models that take and give text. With "stream": true an event for each piece, then '
        "`data: [DONE]`.",
        media=(JSON, EVENTS),
        failure=OPENAI_ERROR,
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
    "GET console_state": Operation(
        "What the web console draws: counters, the machine, the errors of late",
        "ConsoleState",
        description="For the console of this very version: it may change with the next one.",
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

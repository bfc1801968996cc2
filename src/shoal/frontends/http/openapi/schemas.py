"""JSON schemas of requests and responses, by name."""

from __future__ import annotations

from typing import Any

from shoal.core import dtypes
from shoal.frontends.http.routes import Schema


def reference(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", description: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` lists names. Other properties are allowed, for later versions."""
    found: Schema = {"type": "object", "properties": properties}
    if required:
        found["required"] = required.split()
    if description:
        found["description"] = description
    return found


def _array(items: Schema, description: str = "") -> Schema:
    found: Schema = {"type": "array", "items": items}
    if description:
        found["description"] = description
    return found


def _text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _integer(description: str = "", **more: Any) -> Schema:
    return {"type": "integer", **({"description": description} if description else {}), **more}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


_BOOLEAN: Schema = {"type": "boolean"}
_COUNT = _integer(minimum=0)
_SHAPE = _array(_integer(), "row-major; -1 stands for any size in metadata")
_DATATYPE = _text(enum=[datatype.name for datatype in dtypes.ALL])
_PARAMETERS = _map({"type": ["string", "number", "boolean"]})
_DATA = _array({}, "the elements, flat or nested, in row-major order")
_TENSOR = {"name": _text(), "datatype": _DATATYPE, "shape": _SHAPE}
_DURATION = _object("count ns", count=_COUNT, ns=_COUNT)
_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")

_USAGE = _object("prompt_tokens total_tokens", prompt_tokens=_COUNT, total_tokens=_COUNT)
_ANSWER = {"id": _text(), "object": _text(), "created": _integer("seconds since 1970")}
_TEXTS = {"anyOf": [_text(), _array(_text())]}
_GENERATING = {
    "model": _text(),
    "max_tokens": _integer(minimum=1),
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "n": _integer(minimum=1),
    "stop": _TEXTS,
    "seed": _integer(),
    "stream": _BOOLEAN,
    "stream_options": _object("", include_usage=_BOOLEAN),
}

OPENAI_SCHEMAS: dict[str, Schema] = {
    "OpenAiError": _object(
        "error",
        error=_object(
            "message type",
            message=_text("the error, and how to fix it"),
            type=_text(),
            param={"type": ["string", "null"], "description": "the invalid field"},
            code={"type": ["string", "null"]},
        ),
    ),
    "OpenAiModel": _object(
        "id object created owned_by",
        id=_text("the model's name"),
        object=_text(),
        created=_integer("when it was loaded, in seconds since 1970"),
        owned_by=_text(),
    ),
    "OpenAiModels": _object("object data", object=_text(), data=_array(reference("OpenAiModel"))),
    "OpenAiEmbeddingsRequest": _object(
        "model input",
        model=_text(),
        input={
            "anyOf": [_text(), _array(_text()), _array(_integer()), _array(_array(_integer()))],
            "description": "a text, texts, or tokens of the model's own tokenizer",
        },
        encoding_format=_text(enum=["float", "base64"]),
        dimensions=_integer("the length of each vector", minimum=1),
        prompt_name=_text("what the texts are for: query, passage or another prompt of the model"),
    ),
    "TranscriptionRequest": _object(
        "file model",
        file={"type": "string", "format": "binary", "description": "WAV, FLAC, OGG or MP3"},
        model=_text(),
        language=_text("of the speech, such as en; by default it is detected"),
        prompt=_text("what was said before, or words that occur"),
        response_format=_text(enum=["json", "text", "verbose_json", "srt", "vtt"]),
        temperature={"type": "number", "minimum": 0, "maximum": 1},
    ),
    "Transcription": _object(
        "text",
        text=_text(),
        task=_text(),
        language=_text(),
        duration={"type": "number", "description": "in seconds"},
        segments=_array(
            _object(
                "id start end text",
                id=_COUNT,
                start={"type": "number"},
                end={"type": "number"},
                text=_text(),
            )
        ),
    ),
    "RerankRequest": _object(
        "model query documents",
        model=_text(),
        query=_text(),
        documents=_array({"anyOf": [_text(), _object("text", text=_text())]}),
        top_n=_integer("how many results to return", minimum=1),
        return_documents=_BOOLEAN,
    ),
    "RerankResults": _object(
        "id model results usage",
        id=_text(),
        model=_text(),
        results=_array(
            _object(
                "index relevance_score",
                index=_COUNT,
                relevance_score={"type": "number"},
                document=_object("text", text=_text()),
            ),
            "the best first",
        ),
        usage=_USAGE,
        meta={"type": "object"},
    ),
    "OpenAiEmbeddings": _object(
        "object data model usage",
        object=_text(),
        data=_array(
            _object(
                "object index embedding",
                object=_text(),
                index=_COUNT,
                embedding={
                    "anyOf": [_array({"type": "number"}), _text()],
                    "description": "numbers, or little-endian 32-bit floats in base64",
                },
            )
        ),
        model=_text(),
        usage=_USAGE,
        truncated=_array(_COUNT, "the indexes of truncated texts, if any"),
    ),
    "OpenAiCompletionRequest": _object(
        "model prompt",
        "other fields are inputs or parameters of the model",
        prompt=_TEXTS,
        echo=_BOOLEAN,
        **_GENERATING,
    ),
    "OpenAiCompletion": _object(
        "id object created model choices",
        **_ANSWER,
        model=_text(),
        choices=_array(_object("index text", index=_COUNT, text=_text(), finish_reason=_text())),
        usage=_USAGE,
    ),
    "OpenAiChatRequest": _object(
        "model messages",
        "other fields are inputs or parameters of the model",
        messages=_array(
            _object("role", role=_text(), content={"anyOf": [_text(), _array({"type": "object"})]})
        ),
        **_GENERATING,
    ),
    "OpenAiChatCompletion": _object(
        "id object created model choices",
        **_ANSWER,
        model=_text(),
        choices=_array(
            _object(
                "index message",
                index=_COUNT,
                message=_object("role content", role=_text(), content=_text()),
                finish_reason=_text(),
            )
        ),
        usage=_USAGE,
    ),
}

SCHEMAS: dict[str, Schema] = {
    "Error": _object("error", error=_text("the error, and how to fix it")),
    "Readiness": _object(
        "ready reasons warnings",
        ready=_BOOLEAN,
        reasons=_array(_text(), "why the server is not ready"),
        warnings=_array(_text(), "other problems, with which it is ready nevertheless"),
    ),
    "Live": _object("live", live=_BOOLEAN),
    "Ready": {
        "anyOf": [_object("live ready", live=_BOOLEAN, ready=_BOOLEAN), reference("Readiness")]
    },
    "NotReady": {"anyOf": [reference("Ready"), reference("Error")]},
    "ModelReady": _object("name ready", name=_text(), ready=_BOOLEAN),
    "Welcome": _object(
        "name version server links",
        name=_text(),
        version=_text(),
        server=_text(),
        links=_map(_text()),
    ),
    "ConsoleState": _object(
        "server time_ns models errors",
        server=_object("name version started_ms ready problems model_control_mode addresses"),
        time_ns=_integer("the clock for computing rates"),
        models=_array(_object("name version success failures")),
        errors=_array(_object("protocol place model status text count last_ms number")),
    ),
    "TraceRecordingRequest": _object(
        "", count=_integer("how many requests, up to 100; 20 if it is left out")
    ),
    "TraceRecording": _object(
        "remaining traces",
        remaining=_integer("requests that are to be recorded still"),
        traces=_array(
            _object(
                "id start_ms duration_us times_us requests error",
                times_us=_map({"type": "number"}),
                requests=_array(
                    _object("id parent_id model_name model_version request_id times_us error"),
                    "the client's request and those it led to, such as steps of an ensemble",
                ),
            )
        ),
    ),
    "ServerMetadata": _object(
        "name version extensions", name=_text(), version=_text(), extensions=_array(_text())
    ),
    "TensorMetadata": _object("name datatype shape", **_TENSOR),
    "ModelMetadata": _object(
        "name versions platform inputs outputs",
        name=_text(),
        versions=_array(_text(), "the versions that are ready"),
        platform=_text(),
        inputs=_array(reference("TensorMetadata")),
        outputs=_array(reference("TensorMetadata")),
    ),
    "ModelConfig": _object(
        "name max_batch_size input output",
        "the effective configuration, with every default written out: the message ModelConfig "
        "of /proto/model_config.proto, with the field names of config.pbtxt",
        name=_text(),
        platform=_text(),
        backend=_text(),
        max_batch_size=_COUNT,
        input=_array(_object("name data_type dims")),
        output=_array(_object("name data_type dims")),
    ),
    # ---- inference
    "InferInput": _object(
        "name datatype shape",
        "either `data`, or the parameter `binary_data_size`, or those of shared memory "
        "(`shared_memory_region`, `shared_memory_byte_size`, `shared_memory_offset`)",
        **_TENSOR,
        parameters=_PARAMETERS,
        data=_DATA,
    ),
    "RequestedOutput": _object(
        "name",
        "`classification` requests the top classes instead of the scores, `binary_data` bytes",
        name=_text(),
        parameters=_PARAMETERS,
    ),
    "InferRequest": _object(
        "inputs",
        id=_text("returned in the response"),
        parameters={
            **_PARAMETERS,
            "description": "sequence_id, sequence_start, sequence_end, priority, timeout (in "
            "microseconds), binary_data_output, and the model's own parameters",
        },
        inputs=_array(reference("InferInput")),
        outputs=_array(reference("RequestedOutput"), "default: all outputs"),
    ),
    "InferOutput": _object("name datatype shape", **_TENSOR, parameters=_PARAMETERS, data=_DATA),
    "InferResponse": _object(
        "model_name model_version outputs",
        id=_text(),
        model_name=_text(),
        model_version=_text(),
        parameters=_PARAMETERS,
        outputs=_array(reference("InferOutput")),
    ),
    "GenerateRequest": _object(
        "",
        "the model's inputs by name; other names are parameters of the request",
        id=_text(),
        parameters={"type": "object"},
    ),
    "GenerateResponse": _object(
        "model_name model_version",
        "the model's outputs by name",
        model_name=_text(),
        model_version=_text(),
    ),
    # ---- tasks
    "TaskRequest": _object("", "the values of the task by name: see its page"),
    "TaskAnswer": _object("", "the result of the task: see its page"),
    "PhotoRequest": _object(
        "",
        image=_text("a photo in base64"),
        images=_array(_text("a photo in base64")),
        top=_integer("the number of labels for each photo", minimum=1),
    ),
    "PhotoLabels": _object(
        "model_name model_version images",
        model_name=_text(),
        model_version=_text(),
        images=_array(
            _object(
                "file labels",
                file=_text("the name of the uploaded file, if any"),
                labels=_array(
                    _object(
                        "label score index", label=_text(), score={"type": "number"}, index=_COUNT
                    ),
                    "the best first",
                ),
            ),
            "in the order of the request",
        ),
    ),
    # ---- OpenAI's API
    **OPENAI_SCHEMAS,
    # ---- statistics
    "ModelStatistics": _object(
        "name version inference_count execution_count inference_stats batch_stats",
        name=_text(),
        version=_text(),
        last_inference=_integer("milliseconds since 1970"),
        inference_count=_COUNT,
        execution_count=_COUNT,
        inference_stats=_object(" ".join(_DURATIONS), **dict.fromkeys(_DURATIONS, _DURATION)),
        response_stats={"type": "object"},
        batch_stats=_array(
            _object(
                "batch_size",
                batch_size=_COUNT,
                compute_input=_DURATION,
                compute_infer=_DURATION,
                compute_output=_DURATION,
            )
        ),
        memory_usage=_array(
            _object("type id byte_size", type=_text(), id=_integer(), byte_size=_COUNT)
        ),
        execution=_object("mode reason", mode=_text(enum=["loop", "threads"]), reason=_text()),
    ),
    "Statistics": _object("model_stats", model_stats=_array(reference("ModelStatistics"))),
    "Explanation": _object(
        "name version summary advice change",
        name=_text(),
        version=_text(),
        summary=_text("the recent behaviour"),
        advice=_text("the most effective change"),
        change=_text("the lines of config.pbtxt for it; empty if there are none"),
    ),
    "Explanations": _object("models", models=_array(reference("Explanation"))),
    # ---- the repository
    "IndexRequest": _object("", ready={**_BOOLEAN, "description": "only models that are ready"}),
    "Index": _array(
        _object("name", name=_text(), version=_text(), state=_text(), reason=_text()),
        "one entry for each version of each model",
    ),
    "LoadRequest": _object(
        "",
        parameters={
            "type": "object",
            "properties": {"config": _text("a configuration to use instead, as JSON text")},
            "patternProperties": {
                "^file:": _text("a file of the model, `file:1/model.onnx`, as base64")
            },
        },
    ),
    "UnloadRequest": _object("", parameters=_object("", unload_dependents=_BOOLEAN)),
    # ---- shared memory
    "SystemRegionRequest": _object(
        "key byte_size",
        key=_text("the name of the region, as in shm_open"),
        offset=_COUNT,
        byte_size=_COUNT,
    ),
    "SystemRegions": _array(
        _object(
            "name key offset byte_size",
            name=_text(),
            key=_text(),
            offset=_COUNT,
            byte_size=_COUNT,
        )
    ),
    "CudaRegionRequest": _object(
        "raw_handle device_id byte_size",
        raw_handle=_object("b64", b64=_text("the cudaIpcMemHandle_t in base64")),
        device_id=_COUNT,
        byte_size=_COUNT,
    ),
    "CudaRegions": _array(
        _object("name device_id byte_size", name=_text(), device_id=_COUNT, byte_size=_COUNT)
    ),
    # ---- settings
    "TraceSettings": _object(
        "",
        "in a change, null restores the setting of the server; numbers are texts",
        trace_level={"type": ["array", "string", "null"], "items": _text()},
        trace_rate={"type": ["string", "integer", "null"]},
        trace_count={"type": ["string", "integer", "null"]},
        log_frequency={"type": ["string", "integer", "null"]},
        trace_file={"type": ["string", "null"]},
        trace_mode={"type": ["string", "null"]},
    ),
    "LogSettings": _object(
        "",
        "in a change, null leaves a setting as it is; log_file cannot be changed",
        log_file={"type": ["string", "null"]},
        log_info={"type": ["boolean", "null"]},
        log_warning={"type": ["boolean", "null"]},
        log_error={"type": ["boolean", "null"]},
        log_verbose_level={"type": ["integer", "null"], "minimum": 0},
        log_format={"type": ["string", "null"]},
    ),
    # ---- these documents
    "OpenApi": {"type": "object"},
    "ProtoFiles": _object("files", files=_array(_text())),
}

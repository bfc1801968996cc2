"""The JSON that travels, as JSON schemas by name."""

from __future__ import annotations

from typing import Any

from shoal.core import dtypes

Schema = dict[str, Any]


def reference(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", description: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` lists names. What is not named may be there, too: servers grow."""
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

SCHEMAS: dict[str, Schema] = {
    "Error": _object("error", error=_text("what went wrong, and what to do")),
    "Welcome": _object(
        "name version server links",
        name=_text(),
        version=_text(),
        server=_text(),
        links=_map(_text()),
    ),
    "ServerMetadata": _object(
        "name version extensions", name=_text(), version=_text(), extensions=_array(_text())
    ),
    "TensorMetadata": _object("name datatype shape", **_TENSOR),
    "ModelMetadata": _object(
        "name versions platform inputs outputs",
        name=_text(),
        versions=_array(_text(), "those that are ready"),
        platform=_text(),
        inputs=_array(reference("TensorMetadata")),
        outputs=_array(reference("TensorMetadata")),
    ),
    "ModelConfig": _object(
        "name max_batch_size input output",
        "the configuration a model runs with, every default written out: the message ModelConfig "
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
        "`classification` asks for the best classes instead of the scores, `binary_data` for bytes",
        name=_text(),
        parameters=_PARAMETERS,
    ),
    "InferRequest": _object(
        "inputs",
        id=_text("comes back with the answer"),
        parameters={
            **_PARAMETERS,
            "description": "sequence_id, sequence_start, sequence_end, priority, timeout (in "
            "microseconds), binary_data_output, and what the model itself understands",
        },
        inputs=_array(reference("InferInput")),
        outputs=_array(reference("RequestedOutput"), "left out, all of them come"),
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
        "the model's inputs by name; names that are no input are parameters of the request",
        id=_text(),
        parameters={"type": "object"},
    ),
    "GenerateResponse": _object(
        "model_name model_version",
        "the model's outputs by name",
        model_name=_text(),
        model_version=_text(),
    ),
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
        summary=_text("what was seen lately"),
        advice=_text("what would help most"),
        change=_text("the lines of config.pbtxt that would do it; empty where there are none"),
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
            "properties": {"config": _text("another configuration, as JSON text")},
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
        "in a change, null goes back to the setting of the server; numbers are texts",
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

"""Functions in the OpenAPI document, with the types of their arguments and results."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.interface import (
    FunctionField,
    FunctionInterface,
    ResultForm,
    Schema,
    ValueForm,
)
from shoal.frontends.http.functions.fields import takes_pixels
from shoal.frontends.http.functions.results import file_media, is_file
from shoal.frontends.http.openapi.schemas import reference
from shoal.frontends.http.routes import EVENT_MEDIA, FORM_MEDIA, JSON_MEDIA

TAG = "functions"
_GENERATE = "/v2/models/{}/generate"
_WITHOUT_BODY = ("get", "delete")
_FILE: Schema = {"type": "string", "format": "binary"}
_PARAMETER = re.compile(r"\{(\w+)\}")


def with_functions(
    document: Mapping[str, Any], functions: Sequence[tuple[str, FunctionInterface]]
) -> dict[str, Any]:
    """`document` with functions by their names: each at its own route, or at `generate`."""
    made = dict(document)
    described = [(name, each) for name, each in functions if not each.is_application]
    if not described:
        return made
    components = {**made["components"], "schemas": dict(made["components"]["schemas"])}
    security = made["paths"]["/v2/models/{model}/infer"]["post"].get("security")
    paths: dict[str, Any] = {}
    for name, interface in described:
        writer = _Writer(name, interface, components["schemas"])
        operation = writer.operation()
        if security:
            operation["security"] = security
        path = interface.path or _GENERATE.format(name) + "_stream" * interface.streams
        paths.setdefault(path, {})[(interface.method or "POST").lower()] = operation
    made["components"] = components
    # A function takes over the short path of a task.
    others = {path: methods for path, methods in made["paths"].items() if path not in paths}
    made["paths"] = {**paths, **others}
    made["tags"] = [{"name": TAG, "description": "Functions of this server"}, *made["tags"]]
    return made


class _Writer:
    """Describes one function."""

    def __init__(
        self, name: str, interface: FunctionInterface, components: dict[str, Schema]
    ) -> None:
        """Definitions of its schemas are added to `components`."""
        self._name = name
        self._interface = interface
        self._components = components

    def operation(self) -> dict[str, Any]:
        """The operation of its route."""
        interface = self._interface
        in_path = _PARAMETER.findall(interface.path)
        rest = [field for field in interface.inputs if field.name not in in_path]
        has_body = (interface.method or "POST").lower() not in _WITHOUT_BODY
        parameters = [
            self._parameter(field, "path") for field in interface.inputs if field.name in in_path
        ]
        made: dict[str, Any] = {
            "operationId": self._name,
            "tags": [TAG],
            "summary": interface.summary or self._name,
            "responses": self._responses(),
        }
        if interface.description:
            made["description"] = interface.description
        if has_body and rest:
            made["requestBody"] = {
                "required": any(not field.optional for field in rest),
                "content": self._body(rest),
            }
        else:
            parameters += [self._parameter(field, "query") for field in rest]
        made["parameters"] = parameters
        return made

    def _parameter(self, field: FunctionField, place: str) -> dict[str, Any]:
        required = place == "path" or not field.optional
        schema = self._hoisted(field.schema)
        return {"name": field.name, "in": place, "required": required, "schema": schema}

    def _body(self, fields: Sequence[FunctionField]) -> dict[str, Any]:
        whole = self._interface.whole_body
        if whole is not None and len(self._interface.inputs) == 1:
            return {JSON_MEDIA: {"schema": self._hoisted(whole.schema)}}
        content = {JSON_MEDIA: {"schema": self._object(fields, files=False)}}
        files = [field for field in fields if field.form is ValueForm.BINARY or takes_pixels(field)]
        if files:
            content = {FORM_MEDIA: {"schema": self._object(fields, files=True)}, **content}
        if len(files) == 1:
            media = (
                "image/*"
                if takes_pixels(files[0]) or files[0].media
                else "application/octet-stream"
            )
            content[media] = {"schema": dict(_FILE)}
        return content

    def _object(self, fields: Sequence[FunctionField], *, files: bool) -> Schema:
        properties = {}
        for field in fields:
            is_sent_as_file = files and (field.form is ValueForm.BINARY or takes_pixels(field))
            if is_sent_as_file and (field.is_single or takes_pixels(field)):
                properties[field.name] = dict(_FILE)
            elif is_sent_as_file:
                properties[field.name] = {"type": "array", "items": dict(_FILE)}
            else:
                properties[field.name] = self._hoisted(field.schema)
        required = [field.name for field in fields if not field.optional]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def _responses(self) -> dict[str, Any]:
        interface = self._interface
        success: dict[str, Any]
        if interface.path and is_file(interface):
            success = {file_media(interface): {"schema": dict(_FILE)}}
        elif interface.streams:
            described = {"type": "string", "description": "each event is `data: ` and JSON"}
            success = {EVENT_MEDIA: {"schema": described, "x-item": self._result()}}
        else:
            success = {JSON_MEDIA: {"schema": self._result()}}
        failure = {
            "description": "what went wrong; see `error`",
            "content": {JSON_MEDIA: {"schema": reference("Error")}},
        }
        return {"200": {"description": "success", "content": success}, "default": failure}

    def _result(self) -> Schema:
        interface = self._interface
        schemas = {field.name: self._hoisted(field.schema) for field in interface.outputs}
        if not interface.path:  # `generate` has the model besides
            known = {"model_name": {"type": "string"}, "model_version": {"type": "string"}}
            return {"type": "object", "properties": {**known, **schemas}}
        if interface.result is ResultForm.OBJECT:
            return {"type": "object", "properties": schemas, "required": list(schemas)}
        if interface.result is ResultForm.LIST:
            return {"type": "array", "prefixItems": list(schemas.values())}
        return next(iter(schemas.values()))

    def _hoisted(self, schema: Schema) -> Schema:
        """A schema whose definitions are components of the document."""
        own = copy.deepcopy(schema)
        definitions = own.pop("$defs", {})
        names = {}
        for name, definition in definitions.items():
            taken = self._components.get(name)
            same = taken is not None and taken == _renamed(definition, {name: name})
            names[name] = name if taken is None or same else f"{self._name}_{name}"
        for name, definition in definitions.items():
            self._components[names[name]] = _renamed(definition, names)
        made: Schema = _renamed(own, names)
        return made


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """A schema that refers to components of the document."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _renamed(value, names) for key, value in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#/$defs/"):
        name = target.rpartition("/")[2]
        made["$ref"] = f"#/components/schemas/{names.get(name, name)}"
    return made

"""What callers know of a function: fields and schemas, and the path of its own route."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.backends.function import declaration as declarations
from shoal.backends.function.paths import RESERVED
from shoal.core.interface import FunctionInterface, ResultForm, ValueForm
from shoal.errors import ConfigError
from shoal.frontends.http.openapi.document import document
from shoal.frontends.http.openapi.functions import with_functions
from shoal.frontends.http.routes import endpoints


def interface_of(function, **settings):
    return declarations.of(shoal.model(function, **settings)).interface


def classify(
    image: Annotated[npt.NDArray[np.uint8], (-1, -1, 3)],
    data: bytes,
    file: BinaryIO,
    box: dict[str, float],
    words: list[str],
    top: int = 3,
    also: Any = None,
) -> tuple[str, list[float]]:
    """Classify an image.

    With everything.
    """
    del image, data, file, box, words, top, also
    return "", []


def test_fields_have_forms_and_schemas():
    interface = interface_of(classify, path="/classify")
    fields = {field.name: field for field in interface.inputs}
    assert {name: field.form for name, field in fields.items()} == {
        "image": ValueForm.NUMBERS,
        "data": ValueForm.BINARY,
        "file": ValueForm.BINARY,
        "box": ValueForm.JSON,
        "words": ValueForm.TEXT,
        "top": ValueForm.NUMBERS,
        "also": ValueForm.JSON,
    }
    assert fields["image"].schema["items"]["items"] == {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 3,
        "maxItems": 3,
    }
    assert fields["data"].schema == {"type": "string", "contentEncoding": "base64"}
    assert fields["top"].schema == {"type": "integer", "default": 3}
    assert interface.result is ResultForm.LIST
    assert (interface.summary, interface.description) == ("Classify an image", "With everything.")
    assert interface.whole_body is fields["box"]
    assert FunctionInterface.from_plain(interface.to_plain()) == interface


def test_rows_are_single_values_for_callers():
    def sizes(texts: list[str], files: list[io.BytesIO]) -> list[int]: ...

    interface = interface_of(sizes, batch=8)
    assert all(field.is_single for field in (*interface.inputs, *interface.outputs))
    assert interface.outputs[0].schema == {"type": "integer"}


# ---- paths


def greet(name: str, data: bytes = b"", top: int = 1) -> str: ...


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("greet", "path= is 'greet'"),
        ("/greet/", "without a slash at its end"),
        ("/", "path= is '/'"),
        ("/a b", "path= has the method '/A'"),
        ("FETCH /greet", "path= has the method 'FETCH'. Write one of GET, POST"),
        ("/v2/greet", "the path '/v2/greet' belongs to the server itself"),
        ("/docs", "belongs to the server itself, as everything below /docs does"),
        ("/{name}", "begins with a parameter"),
        ("/greet/{nam}", "has the parameter 'nam', which is not an argument"),
        ("/greet/{data}", "greet(data): a part of a path is a single text or number"),
        ("GET /greet", "greet(data): a GET request has no body that could hold it"),
        (5, "path= is 5"),
    ],
)
def test_paths_that_cannot_be(path, text):
    with pytest.raises(ConfigError) as caught:
        shoal.model(greet, path=path)
    assert text in caught.value.message


def test_every_path_of_the_server_is_reserved():
    for endpoint in endpoints():
        for path in endpoint.paths():
            first = path.split("/")[1]
            is_short_task = "{operation}" in endpoint.template or first in ("classify", "")
            assert first in RESERVED or is_short_task or "{operation" in endpoint.template, path


def test_two_functions_with_one_route():
    one = shoal.model(greet, name="one", path="/a/{name}")
    two = shoal.model(greet, name="two", path="/a/{top}")
    other = shoal.model(greet, name="other", path="PUT /a/{top}")
    with pytest.raises(ConfigError, match=r"another function has the route POST /a/\{top\}: greet"):
        declarations.of_all([one, two])
    declarations.of_all([one, other])


# ---- the OpenAPI document


def test_functions_in_the_openapi_document():
    validator = pytest.importorskip("openapi_spec_validator")

    def stream(name: str) -> dict: ...

    def words(text: str) -> Iterator[str]:
        yield text

    functions = [
        ("classify", interface_of(classify, path="/classify")),
        ("greet", interface_of(greet, path="/greet/{name}")),
        ("stream", interface_of(stream)),
        ("words", interface_of(words, path="/words")),
    ]
    made = with_functions(document("1", {}), functions)
    paths = ("/classify", "/greet/{name}", "/words", "/v2/models/stream/generate")
    own = {path: made["paths"][path] for path in paths}
    error = {"schemas": {"Error": made["components"]["schemas"]["Error"]}}
    validator.validate({**made, "paths": own, "components": error})  # the rest is elsewhere
    body = made["paths"]["/classify"]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data", "application/json"]
    form = body["multipart/form-data"]["schema"]["properties"]
    assert form["image"] == form["data"] == {"type": "string", "format": "binary"}
    greeting = made["paths"]["/greet/{name}"]["post"]
    assert greeting["parameters"][0]["in"] == "path"
    assert "application/octet-stream" in greeting["requestBody"]["content"]
    assert made["tags"][0]["name"] == "functions"

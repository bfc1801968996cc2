"""Functions over plain HTTP: uploads, objects, routes of their own, and errors for their callers."""

from __future__ import annotations

import asyncio
import base64
import enum
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from PIL import Image

import shoal
from shoal.testing.server import HttpCall, running_server, wait_until
from shoal.wire.json_limits import MOST_CONTAINERS
from tests.support.fakes import WAIT_SECS

FORM = {"Content-Type": "multipart/form-data; boundary=b"}
JSON = {"Content-Type": "application/json"}


def picture(width=4, height=2, mode="RGB"):
    written = io.BytesIO()
    Image.new(mode, (width, height), 200).save(written, "PNG")
    return written.getvalue()


def form(**parts):
    """A form: bytes are files, texts are fields."""
    pieces = []
    for name, value in parts.items():
        for each in value if isinstance(value, list) else [value]:
            is_file = isinstance(each, bytes)
            named = f'; filename="{name}.bin"' if is_file else ""
            head = f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
            pieces.append(head.encode() + (each if is_file else each.encode()) + b"\r\n")
    return b"".join(pieces) + b"--b--\r\n"


def b64(data):
    return base64.b64encode(data).decode()


# ---- the functions


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Box:
    """A box."""

    name: str
    size: float = 1.0
    colour: Colour = Colour.RED
    parts: list[Box] = field(default_factory=list)


class Pair(NamedTuple):
    label: str
    score: float


@shoal.model(path="/greet")
def greet(name: str, times: int = 1, loud: bool = False) -> str:
    """Greet someone.

    As often as you like.
    """
    if not name:
        raise shoal.InvalidArgument("name is empty")
    if times < 0:
        raise ValueError("times must not be negative")
    said = " ".join(["Hello"] * times) + f", {name}!"
    return said.upper() if loud else said


@shoal.model(path="GET /users/{name}/orders/{number}")
def order(name: str, number: int, verbose: bool = False) -> dict[str, Any]:
    return {"name": name, "number": number, "verbose": verbose}


@shoal.model(path="GET /users/all/orders/{number}")
def all_orders(number: int) -> int:
    return number


@shoal.model(path="/size")
def size(data: bytes, add: int = 0) -> int:
    return len(data) + add


@shoal.model(path="/sizes", batch=8)
def sizes(data: list[bytes]) -> list[int]:
    return [len(each) for each in data]


@shoal.model(path="/lines")
def lines(file: BinaryIO) -> list[str]:
    return file.read().decode().splitlines()


@shoal.model(path="/turn")
def turn(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.ROTATE_90)


@shoal.model(path="/shapes", batch=8)
def shapes(images: list[Image.Image]) -> list[tuple[int, int]]:
    return [image.size for image in images]


@shoal.model(path="/mean", batch=8)
def mean(image: Annotated[npt.NDArray[np.uint8], (-1, -1, 3)]) -> list[float]:
    return image.reshape(len(image), -1).mean(axis=1).tolist()


@shoal.model(path="/grow")
def grow(box: Box, by: float = 2.0) -> Box:
    return Box(box.name, box.size * by, box.colour, [*box.parts, box])


@shoal.model(path="/boxes", batch=8)
def boxes(box: list[Box]) -> list[Pair]:
    return [Pair(each.name, each.size) for each in box]


@shoal.model(path="/count")
def count(start: int, fail_at: int = -1) -> Iterator[dict[str, int]]:
    for number in range(start):
        if number == fail_at:
            raise RuntimeError("lost count")
        yield {"n": number}


@shoal.model(path="/bytes")
async def some_bytes(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        await asyncio.sleep(0)
        yield bytes([number])


@shoal.model
def pair(label: Literal["a", "b"], scores: list[float]) -> tuple[str, list[float]]:
    return label, scores


@shoal.model(path="/matrix")
def matrix(rows: Annotated[npt.NDArray[np.float32], (2, -1)]) -> Pair:
    return Pair(f"{rows.shape[1]} columns", float(rows.sum()))


calls = []
gate = threading.Event()
first_in = threading.Event()


@shoal.model(path="/held", batch=8)
def held(box: list[Box]) -> list[str]:
    calls.append(len(box))
    first_in.set()
    assert gate.wait(WAIT_SECS)
    return [each.name for each in box]


FUNCTIONS = [greet, order, all_orders, size, sizes, lines, turn, shapes, mean, grow, boxes]
FUNCTIONS += [count, some_bytes, pair, matrix, held]


@pytest.fixture(scope="module")
def access_log(tmp_path_factory):
    return tmp_path_factory.mktemp("logs") / "access.log"


@pytest.fixture(scope="module")
def running(access_log):
    with running_server(functions=FUNCTIONS, access_log=str(access_log)) as server:
        yield server


def post(running, path, body, headers=JSON):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return running.post(path, body, headers)


def error(answer, status=400):
    assert answer.status == status, answer
    return answer.error


# ---- arguments from everywhere


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/greet", {"name": "Ada", "times": 2}, JSON),
        ("/greet", b'{"name": "Ada", "times": 2}', {}),  # curl -d
        ("/greet", b"name=Ada&times=2", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("/greet", form(name="Ada", times="2"), FORM),
        ("/greet?times=2", {"name": "Ada"}, JSON),
        ("/greet?times=7", {"name": "Ada", "times": 2}, JSON),  # the body takes precedence
        ("/greet?times=2", b"Ada", {"Content-Type": "text/plain"}),
        ("/greet?times=2", form(name=b"Ada"), FORM),  # a file with text
        ("/greet", {"name": "Ada", "times": 2, "loud": None}, JSON),
    ],
)
def test_values_may_be_in_json_form_or_query(running, path, body, headers):
    answer = post(running, path, body, headers)
    assert (answer.status, answer.json) == (200, "Hello Hello, Ada!")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]


def test_values_may_be_in_the_path(running):
    answer = running.get("/users/ada%20l/orders/3?verbose=yes")
    assert answer.json == {"name": "ada l", "number": 3, "verbose": True}
    assert running.get("/users/all/orders/3").json == 3  # literal segments come first
    assert running.call("HEAD", "/users/all/orders/3").response().status == 200


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (form(data=b"\xff\x00\x01"), FORM),
        ({"data": b64(b"\xff\x00\x01")}, JSON),
        ({"data": f"data:image/png;base64,{b64(bytes(3))}"}, JSON),
        (b"\xff\x00\x01", {"Content-Type": "image/jpeg"}),
        (b"\xff\x00\x01", {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
)
@pytest.mark.parametrize("path", ["/size", "/sizes"])
def test_files_reach_bytes(running, path, body, headers):
    assert post(running, path, body, headers).json == 3
    answer = post(running, f"/v2/models/{path[1:]}/generate", body, headers)
    assert answer.json == {"model_name": path[1:], "model_version": "1", "output": 3}


def test_generate_takes_several_rows(running):
    document = {"data": [b64(b"a"), b64(b"bb")]}
    assert post(running, "/v2/models/sizes/generate", document).json["output"] == [1, 2]
    files = form(data=[b"a", b"bb", b"ccc"])
    assert post(running, "/v2/models/sizes/generate", files, FORM).json["output"] == [1, 2, 3]


def test_a_file_is_open_for_reading(running):
    assert post(running, "/lines", form(file=b"a\nb"), FORM).json == ["a", "b"]


def test_images(running):
    for body, headers in (
        (form(image=picture()), FORM),
        (picture(), {"Content-Type": "image/png"}),
    ):
        answer = post(running, "/turn", body, headers)
        assert answer.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(answer.body)).size == (2, 4)
    assert post(running, "/shapes", form(images=picture()), FORM).json == [4, 2]
    generated = post(running, "/v2/models/turn/generate", form(image=picture()), FORM).json
    assert Image.open(io.BytesIO(base64.b64decode(generated["output"]))).size == (2, 4)
    assert "is text. Send a JPEG" in error(post(running, "/turn", form(image=b"no"), FORM))


def test_pixels(running):
    pixels = [[[0, 0, 3]], [[1, 1, 1]]]
    assert post(running, "/mean", {"image": pixels}).json == 1.0
    answer = post(running, "/mean", form(image=picture(mode="L")), FORM)
    assert answer.json == 200.0
    rows = post(running, "/v2/models/mean/generate", form(image=[picture(), picture()]), FORM)
    assert len(rows.json["output"]) == 2


def test_objects(running):
    box = {"name": "a", "parts": [{"name": "b"}]}
    plain = {"name": "b", "size": 1.0, "colour": "red", "parts": []}
    grown = {
        "name": "a",
        "size": 2.0,
        "colour": "red",
        "parts": [plain, {"name": "a", "size": 1.0, "colour": "red", "parts": [plain]}],
    }
    assert post(running, "/grow", {"box": box}).json == grown
    assert post(running, "/grow", box).json == grown  # the body is the only object
    assert post(running, "/grow?by=2", box).json == grown
    assert post(running, "/boxes", {"name": "a", "size": 3}).json == {"label": "a", "score": 3.0}
    several = {"box": [{"name": "a"}, {"name": "b"}]}
    generated = post(running, "/v2/models/boxes/generate", several).json["output"]
    assert [each["label"] for each in generated] == ["a", "b"]


def test_results_of_several_outputs(running):
    assert post(running, "/matrix", {"rows": [[1, 2, 3], [4, 5, 6]]}).json == {
        "label": "3 columns",
        "score": 21.0,
    }
    answer = post(running, "/v2/models/pair/generate", {"label": "a", "scores": [1, 2]})
    assert answer.json["output0"] == "a"
    assert answer.json["output1"] == [1.0, 2.0]


def test_requests_that_wait_share_a_call(running):
    def send(name):
        body = json.dumps({"name": name}).encode()
        return HttpCall(running.server.http_port, "POST", "/held", body, JSON)

    first = send("first")
    assert first_in.wait(WAIT_SECS)
    others = [send(name) for name in ("0", 1, "2")]  # one of them is wrong
    wait_until(lambda: running.server.engine.in_flight() == 4)
    gate.set()
    answers = [call.response() for call in (first, *others)]
    assert error(answers.pop(2)) == "field `name` must be a text, not the number 1"
    assert [answer.json for answer in answers] == ["first", "0", "2"]
    assert calls == [1, 2]  # the others still share a call


# ---- streams


def test_yields_are_events(running):
    answer = post(running, "/count", {"start": 2})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body == b'data: {"n":0}\n\ndata: {"n":1}\n\n'


def test_an_error_ends_a_stream(running):
    answer = post(running, "/count", {"start": 2, "fail_at": 1})
    assert answer.body == b'data: {"n":0}\n\ndata: {"error":"RuntimeError: lost count"}\n\n'
    answer = post(running, "/count", {"start": 2, "fail_at": 0})
    assert error(answer, 500) == "RuntimeError: lost count"


def test_generate_of_a_function_that_yields(running):
    answer = post(running, "/v2/models/count/generate", {"start": 1})
    assert answer.json["output"] == {"n": 0}
    text = error(post(running, "/v2/models/count/generate", {"start": 2}))
    assert text.startswith("the function yields any number of results, here 2; use generate_stream")


def test_yielded_bytes_are_a_file(running):
    answer = post(running, "/bytes", {"count": 3})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.body == bytes([0, 1, 2])


# ---- over the tensor APIs


@pytest.mark.parametrize("kit", [http_client, grpc_client])
def test_files_and_objects_over_tensor_apis(running, kit):
    is_http = kit is http_client
    with kit.InferenceServerClient(
        running.http_address if is_http else running.grpc_address
    ) as client:

        def infer(model, name, *elements):
            shape = [len(elements), 1] if model in ("sizes", "boxes") else [1]
            given = kit.InferInput(name, shape, "BYTES")
            given.set_data_from_numpy(np.array(elements, object).reshape(shape))
            return client.infer(model, [given]).as_numpy("output").reshape(-1).tolist()

        assert infer("sizes", "data", b"\xff\x00", b"") == [2, 0]
        [grown] = infer("grow", "box", b'{"name": "a"}')
        assert json.loads(grown)["size"] == 2.0
        with pytest.raises(kit.InferenceServerException, match="unknown field `nam`"):
            infer("boxes", "box", b'{"nam": "a"}')
        # What Triton's clients match on stays.
        given = kit.InferInput("times", [1], "INT64")
        given.set_data_from_numpy(np.array([1]))
        with pytest.raises(kit.InferenceServerException, match="expected number of inputs between"):
            client.infer("greet", [given])


# ---- mistakes


@pytest.mark.parametrize("path", ["/greet", "/v2/models/greet/generate"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"nam": "Ada"}, "unknown field `nam`: did you mean `name`?"),
        ({"q": 1}, "unknown field `q`: the fields are `name`, `times`, `loud`"),
        ({}, "missing field `name`"),
        ({"name": 5}, "field `name` must be a text, not the number 5"),
        ({"name": ["a"]}, "field `name` must be a text, not a list of 1"),
        ({"name": "a", "times": "2"}, 'field `times` must be a whole number, not the text "2"'),
        ({"name": "a", "times": 1.5}, "field `times` must be a whole number, not the number 1.5"),
        ({"name": "a", "times": 2**70}, "has a number that INT64 cannot hold"),
        ({"name": "a", "loud": 1}, "field `loud` must be true or false, not the number 1"),
        ([1], "the request body must be a JSON object, not a list of 1; the fields are `name`"),
        (b'{"name":', "the request body is not JSON: "),
        ({"name": ""}, "name is empty"),
    ],
)
def test_fields_that_do_not_fit(running, path, body, text):
    if path.endswith("generate") and body == {"name": ["a"]}:
        return  # one element in a list is that element, as for other models
    assert text in error(post(running, path, body))


@pytest.mark.parametrize(
    ("path", "body", "headers", "text"),
    [
        ("/greet", form(name="a", times="x"), FORM, 'must be a whole number, not the text "x"'),
        ("/size", form(data="cat.jpg"), FORM, "send a file with curl -F data=@cat.jpg"),
        ("/size", form(dat=b"x"), FORM, "unknown field `dat`: did you mean `data`?"),
        ("/size", form(data=[b"x", b"y"]), FORM, "field `data` was sent 2 times"),
        ("/size", {"data": 3}, JSON, "must be a file in base64, as a text, not the number 3"),
        ("/size", {"data": "https://x/cat.jpg"}, JSON, "is a URL, which the server does not fetch"),
        ("/count", b"\x00\x01", {"Content-Type": "image/png"}, "the body is a file of type image/"),
        ("/greet", b"\xff\x00", {"Content-Type": "text/plain"}, "`name` is not UTF-8 text"),
        ("/mean", {"image": [[1, 2, 3]]}, JSON, "has shape [1,3], expected [any,any,3]"),
        ("/mean", {"image": [[[1, 2, 3]], [[1]]]}, JSON, "has lists of different lengths"),
        ("/mean", {"image": [[[1, 2, 300]]]}, JSON, "a number that UINT8 cannot hold: it holds"),
        ("/mean", {"image": [[[1, 2, "x"]]]}, JSON, "field `image[2]` must be a whole number"),
        ("/mean", {"image": 3}, JSON, "must be a list of shape [any,any,3], not the number 3"),
        ("/matrix", {"rows": [[1.0]]}, JSON, "field `rows` has shape [1,1], expected [2,any]"),
        ("/grow", {"box": {"nam": "a"}}, JSON, "unknown field `box.nam`: did you mean `box.name`?"),
        (
            "/grow",
            {"bix": {"name": "a"}, "by": 1},
            JSON,
            "unknown field `bix`: the fields are `box`, `by`",
        ),
        ("/grow", {"box": {"size": 1}}, JSON, "missing field `box.name`"),
        ("/grow", {"box": 3}, JSON, "field `box` must be an object, not the number 3"),
        (
            "/grow",
            {"box": {"name": "a", "colour": "pink"}},
            JSON,
            '`box.colour` must be one of "red"',
        ),
        ("/boxes", {"nam": "a"}, JSON, "unknown field `nam`: did you mean `name`?"),
        (
            "/boxes",
            {"name": "a", "parts": [{"name": 1}]},
            JSON,
            "field `parts[0].name` must be a te",
        ),
        (
            "/v2/models/pair/generate",
            {"label": "c", "scores": [1]},
            JSON,
            'must be one of "a", "b"',
        ),
        (
            "/v2/models/mean/generate",
            {"image": [1, 2]},
            JSON,
            "has shape [2], expected [any,any,3]",
        ),
    ],
)
def test_uploads_and_objects_that_do_not_fit(running, path, body, headers, text):
    assert text in error(post(running, path, body, headers))


@pytest.mark.parametrize("part", ["box", "rows", "file"])
def test_json_in_a_form_has_the_limits_of_a_json_body(running, part):
    many = "[" + ",".join(["[]"] * (MOST_CONTAINERS + 1)) + "]"
    if part == "file":
        answer = post(running, "/grow", form(box=many.encode()), FORM)
    else:
        path = {"box": "/grow", "rows": "/matrix"}[part]
        answer = post(running, path, form(**{part: many}), FORM)
    assert f"more than {MOST_CONTAINERS} lists and objects" in error(answer)


def test_an_exception_is_logged_with_the_request(running, caplog):
    answer = post(running, "/greet", {"name": "a", "times": -1}, {**JSON, "X-Request-Id": "r-7"})
    assert error(answer, 500) == "ValueError: times must not be negative"
    assert answer.headers["x-request-id"] == "r-7"
    sent = {"name": "a", "times": -1, "id": "a\r\nb: c"}
    strange = post(running, "/v2/models/greet/generate", sent)
    assert strange.status == 500
    assert "b" not in strange.headers
    [record, _] = [each for each in caplog.records if "times must not" in each.getMessage()]
    assert "(request id: r-7)" in record.getMessage()
    assert record.exc_info is not None


def test_the_access_log_names_the_model(running, access_log):
    running.get("/users/logged/orders/3")
    wait_until(lambda: "/users/logged/orders/3" in access_log.read_text())
    [line] = [each for each in access_log.read_text().splitlines() if "/users/logged" in each]
    assert '"GET /users/logged/orders/3 HTTP/1.1" 200' in line
    assert line.endswith('"order"')


def test_unknown_paths_and_methods(running):
    text = error(post(running, "/gret", {}), 404)
    assert text.startswith("Not Found: there is no /gret here; did you mean /greet? The functions")
    assert "GET /users/{name}/orders/{number}" in text
    text = error(post(running, "/v2/models/gret/generate", {}), 404)
    assert text == "Request for unknown model: 'gret' is not found. Did you mean 'greet'?"
    refused = running.get("/greet")
    assert error(refused, 405) == "Method Not Allowed: /greet takes POST"
    assert refused.headers["allow"] == "POST, OPTIONS"
    assert running.call("OPTIONS", "/greet").response().status == 204

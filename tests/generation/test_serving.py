"""Models that generate, behind every door: JSON, events, gRPC streams, OpenAI's client."""

from __future__ import annotations

import http.client
import json
import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers


def events(answer):
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]


@pytest.fixture
def ask(server, photos, in_json):
    """Ask for a text about a photo; `how` is the last part of the path."""

    def post(how="generate", index=0, model="captions", **options):
        body = {"image": in_json(photos[index]), **options}
        return server.post(f"/v2/models/{model}/{how}", body)

    return post


# ---- one text, whole and in pieces


def test_generate_answers_once_and_generate_stream_token_by_token(ask):
    whole = ask(max_tokens=12).json
    pieces = events(ask("generate_stream", max_tokens=12))
    assert len(pieces) == whole["num_output_tokens"] > 3
    assert [piece["token_ids"] for piece in pieces] == whole["token_ids"]
    assert "".join(piece["text_output"] for piece in pieces) == whole["text_output"]
    assert [piece.get("finish_reason", "") for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1]["finish_reason"] == whole["finish_reason"]


def test_who_says_stream_gets_what_it_says(ask):
    assert len(events(ask("generate_stream", stream=False))) == 1
    refused = ask(stream=True, max_tokens=8, min_tokens=8)
    assert refused.status == 500
    assert "exactly 1 response" in refused.error


def test_beams_come_in_one_piece(ask):
    (only,) = events(ask("generate_stream", num_beams=3, max_tokens=9))
    assert only == ask(num_beams=3, max_tokens=9).json
    assert only["score"] < 0


def test_echo_puts_the_prompt_before_the_text(ask):
    plain = ask(prompt="a photo of", max_tokens=4).json["text_output"]
    assert ask(prompt="a photo of", max_tokens=4, echo=True).json["text_output"] == (
        "a photo of" + plain
    )
    pieces = events(ask("generate_stream", prompt="a photo of", max_tokens=4, echo=True))
    assert "".join(piece["text_output"] for piece in pieces) == "a photo of" + plain


def test_drawn_texts_follow_their_seed(ask):
    def drawn(seed):
        answer = ask(temperature=1.5, seed=seed, max_tokens=12, min_tokens=12)
        return answer.json["token_ids"]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(4)}) > 1
    assert ask(temperature=1.0, top_k=1, max_tokens=9).json == ask(max_tokens=9).json


def test_a_prompt_in_tokens(ask, tokenizer):
    ids = [2, *tokenizer.encode("a photo of", add_special_tokens=False).ids]
    assert ask(input_ids=ids, max_tokens=6).json == ask(prompt="a photo of", max_tokens=6).json


def test_bytes_of_the_world_are_never_cut(server):
    body = {"text_input": "日本語 été", "max_tokens": 40, "echo": True}
    whole = server.post("/v2/models/gpt2/generate", body).json["text_output"]
    pieces = events(server.post("/v2/models/gpt2/generate_stream", body))
    assert "".join(piece["text_output"] for piece in pieces) == whole
    assert whole.startswith("日本語 été")


# ---- what is wrong


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_tokens": 0}, "'max_tokens' must be a whole number from 1 to 63, not 0"),
        ({"max_tokens": 64}, "'max_tokens' must be a whole number from 1 to 63, not 64"),
        ({"max_tokens": 60, "prompt": "a " * 9}, "from 1 to 54, not 60"),
        ({"num_beams": 17}, "'num_beams' must be a whole number from 1 to 16, not 17"),
        ({"num_beams": 2, "temperature": 1.0}, "send only one of the two"),
        ({"temperature": -1}, "'temperature' must be a number from 0"),
        ({"top_p": 1.5}, "'top_p' must be a number from 0 to 1, not 1.5"),
        ({"prompt": "cat " * 64}, "the prompt has 65 tokens"),
        ({"prompt": 5}, "'prompt' must be a text, not a number"),
        ({"input_ids": [2, 9999]}, "the prompt has the token 9999"),
        ({"input_ids": []}, "the prompt is empty"),
        ({"stream": 3}, "Unable to parse 'data'"),
        ({"image": ""}, "the image is empty"),
        ({"image": "aGVsbG8="}, "the image is text"),
        ({"image": "https://example.com/cat.jpg"}, "the server does not fetch URLs"),
        ({"image": "hello"}, "'image' is not base64"),
    ],
)
def test_wrong_requests(ask, server, photos, in_json, options, sentence):
    body = {"image": in_json(photos[0]), **options}
    for how in ("generate", "generate_stream"):
        answer = server.post(f"/v2/models/captions/{how}", body)
        assert answer.status == 400, answer
        text = answer.body.decode().removeprefix("data: ")
        assert sentence in json.loads(text)["error"]
    assert ask(max_tokens=3).status == 200


def test_no_image_and_no_text(server):
    answer = server.post("/v2/models/captions/generate", {"max_tokens": 3})
    assert (answer.status, "there is no image in the request" in answer.error) == (400, True)
    answer = server.post("/v2/models/gpt2/generate", {"max_tokens": 3})
    assert (answer.status, "send the input 'text_input'" in answer.error) == (400, True)
    answer = server.post("/v2/models/gpt2/generate", {"text_input": ""})
    assert (answer.status, "the prompt is empty" in answer.error) == (400, True)


def test_plain_inference_is_for_models_with_one_response(server):
    answer = server.post("/v2/models/captions/infer", {"inputs": []})
    assert answer.status == 501
    assert "decoupled" in answer.error


# ---- gRPC


class Stream:
    """tritonclient's stream; responses in the order they came."""

    def __init__(self, address):
        self.client = grpcclient.InferenceServerClient(address)
        self.arrived = queue.Queue()
        self.client.start_stream(lambda result, error: self.arrived.put((result, error)))

    def next(self):
        return self.arrived.get(timeout=WAIT_SECS)

    def text(self):
        """All responses of a request up to its last."""
        found = []
        while True:
            result, error = self.next()
            assert error is None, error
            found.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        self.client.close()


def tensor(name, array, datatype):
    made = grpcclient.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def test_a_grpc_stream_of_tokens(server, photos, pixel_values, ask):
    expected = ask(max_tokens=9).json["token_ids"]
    photo = tensor("image", np.array([photos[0]], object), "BYTES")
    pixels = tensor("pixel_values", pixel_values[0], "FP32")
    length = tensor("max_tokens", np.array([9], np.int32), "INT32")
    with Stream(server.grpc_address) as stream:
        for inputs, parameters in (
            ([photo, length], None),
            ([pixels], {"max_tokens": 9}),
            ([pixels], {"max_tokens": 9, "stream": False}),
        ):
            stream.client.async_stream_infer("captions", inputs, parameters=parameters)
            found = stream.text()
            ids = np.concatenate([result.as_numpy("token_ids") for result in found])
            assert ids.tolist() == expected
            assert found[-1].as_numpy("finish_reason")[0] in (b"stop", b"length")
            if parameters is None or "stream" not in parameters:
                assert len(found) == len(expected)
        stream.client.async_stream_infer("captions", [length])
        _, error = stream.next()
        assert "there is no image in the request" in str(error)
        both = [photo, pixels]
        stream.client.async_stream_infer("captions", both)
        assert "send one of them" in str(stream.next()[1])
        broken = tensor("pixel_values", pixel_values[0] * np.float32("nan"), "FP32")
        stream.client.async_stream_infer("captions", [broken])
        assert "values that are not numbers" in str(stream.next()[1])


def test_the_ancestors_loop_in_the_client(server, pixel_values, expected):
    """Infer, take the likeliest token, append it, and again."""
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        for index in range(3):
            ids = [2]
            while len(ids) < 20:
                row = np.array([ids], np.int64)
                inputs = [
                    tensor("pixel_values", pixel_values[index : index + 1], "FP32"),
                    tensor("input_ids", row, "INT64"),
                    tensor("attention_mask", np.ones_like(row), "INT64"),
                ]
                logits = client.infer("single", inputs).as_numpy("logits")
                ids.append(int(logits[0, -1].argmax()))
                if ids[-1] == 3:
                    break
            assert ids[1:] == expected(index, max_new_tokens=19)


# ---- OpenAI


def test_openai_routes_speak_to_a_text_model(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none")
    body = {"text_input": "hello", "max_tokens": 6}
    text = server.post("/v2/models/gpt2/generate", body).json["text_output"]
    with client:
        whole = client.completions.create(model="gpt2", prompt="hello", max_tokens=6)
        assert whole.choices[0].text == text
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.completion_tokens == 6
        pieces = client.completions.create(model="gpt2", prompt="hello", max_tokens=6, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == text
        assert [model.id for model in client.models.list()] != ["captions"]


# ---- several requests at once


def limit(folder, rows):
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"16"', f'"{rows}"'))


def test_no_more_texts_than_allowed_are_in_flight(copied, photos, in_json):
    models, folder = copied("captions")
    limit(folder, 2)
    with running_server(models) as running, ThreadPoolExecutor(10) as pool:

        def ask(number):
            body = {"image": in_json(photos[number % 8]), "max_tokens": 20, "min_tokens": 20}
            return running.post("/v2/models/captions/generate", body).status

        assert set(pool.map(ask, range(20))) == {200}
        counted = running.statistics("captions")
        sizes = [batch["batch_size"] for batch in counted["generation"]["decoder"]["batch_stats"]]
        assert sizes == [1, 2]
        assert counted["generation"]["texts"] == 0
        body = {"image": in_json(photos[0]), "num_beams": 3}
        refused = running.post("/v2/models/captions/generate", body)
        assert refused.error == "'num_beams' must be a whole number from 1 to 2, not 3"


def test_a_client_that_disconnects_frees_its_slot(copied, photos, in_json):
    models, folder = copied("captions")
    limit(folder, 1)
    with running_server(models) as running:
        long = {"image": in_json(photos[0]), "max_tokens": 63, "min_tokens": 63}
        for _ in range(5):
            call = running.call("POST", "/v2/models/captions/generate_stream", long)
            call.socket.recv(1)  # the first event is on its way
            call.disconnect()
        answer = running.post("/v2/models/captions/generate", long)
        assert answer.status == 200
        model = running.model("captions")
        wait_until(model.idle, "all requests are over")
        assert running.statistics("captions")["generation"]["texts"] == 0


def test_a_broken_photo_fails_only_its_own_request(ask, server, in_json):
    def one(number):
        if number % 3:
            return ask(index=number % 8, max_tokens=10).json["token_ids"]
        broken = server.post("/v2/models/captions/generate", {"image": in_json(b"\x89PNG\r\n")})
        return broken.status

    alone = [one(number) for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(one, range(24))) == alone


def test_statistics_and_metrics(copied, photos, in_json):
    models, _ = copied("captions")
    with running_server(models) as running:
        body = {"image": in_json(photos[0]), "max_tokens": 7, "min_tokens": 7}
        assert running.post("/v2/models/captions/generate", body).status == 200
        assert running.post("/v2/models/captions/generate", {"max_tokens": 1}).status == 400
        counted = running.statistics("captions")
        assert counted["inference_stats"]["success"]["count"] == 1
        assert counted["inference_stats"]["fail"]["count"] == 1
        took = counted["inference_stats"]
        assert 0 < took["compute_infer"]["ns"] <= took["success"]["ns"]
        assert counted["generation"] == {
            "texts": 0,
            "decoder": {
                "execution_count": 7,
                "row_count": 7,
                "batch_stats": [{"batch_size": 1, "count": 7}],
            },
            "encoder": {
                "execution_count": 1,
                "row_count": 1,
                "batch_stats": [{"batch_size": 1, "count": 1}],
            },
        }
        labels = {"model": "captions", "version": "1"}
        assert running.metric("shoal_generation_steps_total", **labels) == 7
        assert running.metric("shoal_generation_rows_total", **labels) == 7
        assert running.metric("shoal_generation_encoded_total", **labels) == 1
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            found = client.get_inference_statistics("captions", as_json=True)
        assert found["model_stats"][0]["inference_count"] == "1"


def test_texts_in_flight_are_finished_when_the_model_is_unloaded(copied, photos, in_json):
    models, _ = copied("captions")
    with running_server(models, model_control_mode="explicit", load_model=["captions"]) as running:
        body = {"image": in_json(photos[0]), "max_tokens": 63, "min_tokens": 63}
        connection = http.client.HTTPConnection(running.http_address, timeout=WAIT_SECS)
        connection.request("POST", "/v2/models/captions/generate_stream", json.dumps(body))
        with closing(connection), connection.getresponse() as response:
            first = response.readline()  # it is being written
            assert running.unload("captions").status == 200
            pieces = [line for line in (first + response.read()).split(b"\n\n") if line]
        assert len(pieces) == 63
        assert b'"num_output_tokens":63' in pieces[-1]


# ---- folders


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "1" / "decoder.onnx").unlink(), "unable to find 'decoder.onnx'"),
        (lambda f: (f / "1" / "encoder.onnx").unlink(), "encoder.onnx gives no such thing"),
        (lambda f: (f / "tokenizer.json").unlink(), "there is no file 'tokenizer.json'"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
        (
            lambda f: (f / "1" / "decoder.onnx").write_bytes(
                (f / "1" / "encoder.onnx").read_bytes()
            ),
            "it has no input 'input_ids'",
        ),
        (
            lambda f: (f / "1" / "encoder.onnx").write_bytes(
                (f / "1" / "decoder.onnx").read_bytes()
            ),
            "its input must be pixel_values",
        ),
        (lambda f: write(f, stop_tokens=[5000]), "stop_tokens: found [5000]"),
        (lambda f: write(f, start_token="a"), "start_token: found 'a'"),
        (lambda f: write(f, num_beams=40), "num_beams: found 40"),
        (lambda f: write(f, max_lenght=9), "Did you mean 'max_length'?"),
        (lambda f: add(f, "max_batch_size: 4"), "max_batch_size: found 4"),
        (
            lambda f: add(f, 'input { name: "photo" data_type: TYPE_STRING dims: [ 1 ] }'),
            "there is no 'photo' of TYPE_STRING",
        ),
    ],
)
def test_folders_that_cannot_be_served(copied, spoil, sentence):
    models, folder = copied("captions")
    spoil(folder)
    with running_server(models, model_control_mode="explicit") as running:
        answer = running.load("captions")
        assert answer.status == 400
        assert sentence in answer.error


def test_a_wrong_parameter_is_refused(copied):
    models, folder = copied("captions")
    add(folder, 'parameters { key: "encoder_batch" value: { string_value: "x" } }')
    with running_server(models, model_control_mode="explicit") as running:
        answer = running.load("captions")
        assert "parameters['encoder_batch']: found 'x'. Write a whole number" in answer.error


def write(folder, **values):
    path = folder / "task.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def add(folder, line):
    path = folder / "config.pbtxt"
    path.write_text(path.read_text() + line + "\n")


def test_photos_can_be_encoded_together(copied, photos, in_json):
    models, folder = copied("captions")
    add(folder, 'parameters { key: "encoder_batch" value: { string_value: "4" } }')
    with running_server(models) as running, ThreadPoolExecutor(8) as pool:

        def ask(number):
            body = {"image": in_json(photos[number % 8]), "max_tokens": 3}
            return running.post("/v2/models/captions/generate", body).json["text_output"]

        together = list(pool.map(ask, range(24)))
        assert together == [ask(number) for number in range(24)]


def test_several_instances(copied, photos, in_json):
    models, folder = copied("captions")
    add(folder, "instance_group [ { count: 2 kind: KIND_CPU } ]")
    with running_server(models) as running, ThreadPoolExecutor(8) as pool:

        def ask(number):
            body = {"image": in_json(photos[number % 8]), "max_tokens": 9}
            return running.post("/v2/models/captions/generate", body).json["token_ids"]

        assert list(pool.map(ask, range(16))) == [ask(number) for number in range(16)]

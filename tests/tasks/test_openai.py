"""OpenAI's API on a real server, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time

import numpy as np
import pytest
from openapi_schema_validator import OAS31Validator

from shoal.config.options import NamedSetting
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.export.exporting import export
from shoal.testing.server import running_server
from tests.support.encoders import encoder_checkpoint, tokenizer_document
from tests.support.fakes import WAIT_SECS, RequestBackend
from tests.support.repositories import add_model, parameter

openai = pytest.importorskip("openai")

TALKER = """
backend: "requests"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "mood" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
COUNTING = """
backend: "requests"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "return_finish_reason" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
"""
WHOLE = """
backend: "requests"
max_batch_size: 4
input [ { name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
ODD = """
backend: "requests"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


LOOKING = """
backend: "requests"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "image" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def text(name, value, shape=(1,)):
    array = np.empty(shape, object)
    array[...] = value if isinstance(value, bytes) else value.encode()
    return Tensor.from_array(name, array)


def number(name, value):
    return Tensor.from_array(name, np.array([value], np.uint32))


class Models:
    """All models: they say the words of the prompt in capital letters, one in each response."""

    def __init__(self):
        self.release = threading.Event()
        self.cancelled = threading.Event()
        self.waiting = threading.Event()
        self.parameters = {}
        self.inputs = {}

    def execute(self, batch):
        for pending in batch:
            name = pending.request.model_name
            self.parameters = dict(pending.request.parameters)
            self.inputs = {
                n: t.array.reshape(-1).tolist() for n, t in pending.request.inputs.items()
            }
            if name in ("whole", "odd", "full"):
                (tensor,) = pending.request.inputs.values()
                self.whole(pending, name, tensor.array.reshape(-1)[0].decode())
            elif name == "looking":
                pending.send([text("text_output", f"{len(self.inputs['image'][0])} bytes")])
            elif name == "counting":
                self.count(pending)
            else:
                prompt = self.inputs["text_input"][0].decode()
                threading.Thread(target=self.talk, args=(pending, prompt)).start()

    def whole(self, pending, name, prompt):
        if name == "full":
            self.release.wait(WAIT_SECS)
        output = "OUT" if name == "odd" else "TEXT"
        pending.send([text(output, prompt.upper(), (1, 1))])

    def count(self, pending):
        options = json.loads(self.inputs.get("sampling_parameters", [b"{}"])[0])
        for count in range(options.get("max_tokens", 4)):
            pending.send(
                [
                    text("text_output", f" {count}"),
                    text("finish_reason", "length"),
                    number("num_input_tokens", 17),
                    number("num_output_tokens", 2),
                ],
                final=False,
            )
        pending.send()

    def talk(self, pending, prompt):
        if prompt == "fail at once":
            pending.send(error=InvalidArgument("the model has no voice"))
            return
        for place, word in enumerate(prompt.upper().split(" ")):
            if word == "FAIL":
                pending.send(error=InvalidArgument("the model lost its voice"))
                return
            if word == "WAIT":
                self.wait(pending)
                return
            before = b" " if place else b""
            # A character may be spread over several responses.
            pieces = [b"\xf0\x9f", b"\x90\x9f"] if word == "FISH" else [word.encode()]
            for piece in [before + pieces[0], *pieces[1:]]:
                pending.send([text("text_output", piece)], final=False)
        pending.send()

    def wait(self, pending):
        self.waiting.set()
        end = time.monotonic() + WAIT_SECS
        while not pending.request.cancelled and time.monotonic() < end:
            self.release.wait(0.001)
        if pending.request.cancelled:
            self.cancelled.set()
        pending.send()


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    checkpoint = encoder_checkpoint(folder.parent / "checkpoint")
    export(str(checkpoint), folder / "encoder")
    add_model(folder, "talker", TALKER)
    add_model(folder, "counting", COUNTING)
    add_model(folder, "whole", WHOLE)
    add_model(folder, "odd", ODD)
    add_model(folder, "looking", LOOKING)
    tokenizer = {"tokenizer.json": json.dumps(tokenizer_document()).encode()}
    template = {
        "chat_template.jinja": b"{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    }
    add_model(folder, "tokenised", TALKER, {**tokenizer, **template})
    queue = "default_queue_policy { max_queue_size: 1 }"
    add_model(folder, "full", WHOLE + f"dynamic_batching {{ {queue} }}")
    return folder


@pytest.fixture(scope="module")
def running(repository, models):
    backends = RequestBackend(models.execute).registry()
    with running_server(
        repository, backends=backends, http_header_forward_pattern="^x-shoal-.*"
    ) as running:
        yield running


@pytest.fixture
def client(running):
    with openai.OpenAI(
        base_url=f"http://{running.http_address}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


# ---- models


def test_models_that_can_be_asked_are_listed(client):
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == {
        *("encoder", "talker", "counting", "whole", "tokenised", "full", "looking"),
    }
    model = listed["encoder"]
    assert (model.object, model.owned_by) == ("model", "shoal")
    assert abs(model.created - time.time()) < 600
    assert client.models.retrieve("encoder") == model


@pytest.mark.parametrize("name", ["nobody", "odd"])
def test_a_model_that_is_not_served_or_cannot_chat(client, name):
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve(name)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
    assert f"the model '{name}' does not exist here" in raised.value.message


# ---- embeddings


def task_vectors(running, texts):
    answer = running.post("/v2/models/encoder/embed", {"texts": texts})
    assert answer.status == 200, answer
    return np.array(answer.json["embeddings"])


def test_embeddings_are_those_of_the_task(client, running):
    texts = ["one fish", "the old shark sleeps under a boat"]
    for encoding in (openai.omit, "float", "base64"):
        answer = client.embeddings.create(model="encoder", input=texts, encoding_format=encoding)
        assert [entry.index for entry in answer.data] == [0, 1]
        if encoding == "base64":
            assert isinstance(answer.data[0].embedding, str)
            continue
        found = np.array([entry.embedding for entry in answer.data])
        assert np.allclose(found, task_vectors(running, texts), atol=1e-6)
    assert answer.model == "encoder"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 4 + 9


def test_one_text_and_tokens(client, running):
    wanted = task_vectors(running, ["one fish"])[0]
    vocabulary = tokenizer_document()["model"]["vocab"]
    tokens = [2, vocabulary["one"], vocabulary["fish"], 3]
    for asked in ("one fish", tokens, [tokens]):
        (entry,) = client.embeddings.create(model="encoder", input=asked).data
        assert np.allclose(entry.embedding, wanted, atol=1e-6)


def test_fewer_dimensions_and_texts_that_were_cut_off(client):
    answer = client.embeddings.create(model="encoder", input=["fish " * 100], dimensions=3)
    assert len(answer.data[0].embedding) == 3
    assert np.isclose(np.linalg.norm(answer.data[0].embedding), 1, atol=1e-5)
    assert answer.model_extra["truncated"] == [0]


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"input": ""}, "input", "'input' contains an empty text"),
        ({"input": []}, "input", "'input' must be a text, a list of texts"),
        ({"input": ["a", 3]}, "input", "'input' must be a text, a list of texts"),
        ({"input": "a", "dimensions": 17}, "dimensions", "a whole number from 1 to 16"),
        ({"input": "a", "dimensions": 0}, "dimensions", "a whole number from 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float or base64"),
        ({"input": [[99999]]}, "input", "input[0] contains a number that is not a token of this"),
        ({"input": ["a"] * 3000}, "input", "'input' must have from 1 to 2048 elements"),
        ({"input": "a", "model": "talker"}, "model", "does not offer 'embed'"),
        ({"input": "a", "model": ""}, "model", "'model' is missing"),
    ],
)
def test_wrong_questions_for_embeddings(client, asked, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(**{"model": "encoder", **asked})
    assert words in raised.value.message
    assert raised.value.type == "invalid_request_error"
    assert raised.value.param == param


def test_embeddings_of_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.embeddings.create(model="nobody", input="a")
    assert raised.value.code == "model_not_found"


# ---- completions


def test_a_completion(client):
    answer = client.completions.create(model="talker", prompt="a shoal of fish")
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.finish_reason) == ("A SHOAL OF 🐟", 0, "stop")
    assert answer.object == "text_completion"
    assert answer.model == "talker"
    assert answer.id.startswith("cmpl-")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 5, 9)


def test_a_completion_as_it_comes(client):
    stream = client.completions.create(model="talker", prompt="a shoal of fish", stream=True)
    chunks = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == ["A", " SHOAL", " OF", " ", "🐟", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * 5, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_if_it_is_wanted(client):
    stream = client.completions.create(
        model="talker", prompt="a b", stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_several_prompts_and_several_texts_of_each(client):
    answer = client.completions.create(model="talker", prompt=["a b", "c"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "A B"),
        (1, "A B"),
        (2, "C"),
        (3, "C"),
    ]
    assert answer.usage.prompt_tokens == 3
    texts = {}
    for chunk in client.completions.create(model="talker", prompt=["a b", "c"], n=2, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "A B", 1: "A B", 2: "C", 3: "C"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_server_minds_stop_sequences(client, models, stream):
    models.cancelled.clear()
    answer = client.completions.create(
        model="talker", prompt="a bc d wait", stop=["C D", "x"], stream=stream
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        assert "".join(chunk.text for chunk in chunks) == "A B"
        end = chunks[-1].finish_reason
    else:
        assert answer.choices[0].text == "A B"
        end = answer.choices[0].finish_reason
    assert end == "stop"
    assert models.cancelled.wait(WAIT_SECS)  # no client needs the rest


def test_the_server_minds_the_length_where_the_model_does_not(client, models):
    models.cancelled.clear()
    answer = client.completions.create(model="talker", prompt="a b c wait", max_tokens=3)
    assert answer.choices[0].text == "A B C"
    assert answer.choices[0].finish_reason == "length"
    assert models.parameters["max_tokens"] == 3
    assert models.cancelled.wait(WAIT_SECS)


def test_a_model_that_counts_and_ends_by_itself(client, models):
    answer = client.completions.create(
        model="counting", prompt="x", max_tokens=3, temperature=0.5, extra_body={"top_k": 2}
    )
    assert answer.choices[0].text == " 0 1 2"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (17, 6)
    told = json.loads(models.inputs["sampling_parameters"][0])
    assert told == {"max_tokens": 3, "temperature": 0.5, "top_k": 2}
    assert models.inputs["return_finish_reason"] == [True]
    assert models.inputs["stream"] == [False]
    list(client.completions.create(model="counting", prompt="x", stream=True))
    assert models.inputs["stream"] == [True]


def test_a_model_that_responds_once(client):
    answer = client.completions.create(model="whole", prompt="a b", echo=True)
    assert answer.choices[0].text == "a bA B"
    stream = client.completions.create(model="whole", prompt="a b", stream=True)
    assert [chunk.choices[0].text for chunk in stream] == ["A B", ""]


def test_inputs_parameters_and_headers_reach_the_model(client, models):
    client.completions.create(
        model="talker",
        prompt="a",
        extra_body={"mood": "calm", "colour": "blue"},
        extra_headers={"x-shoal-user": "me"},
    )
    assert models.inputs["mood"] == [b"calm"]
    assert models.parameters == {"colour": "blue", "x-shoal-user": "me"}


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"prompt": []}, "prompt", "'prompt' is missing"),
        ({"prompt": [1, 2]}, "prompt", "a text or a list of texts"),
        ({"n": 0}, "n", "a whole number from 1 to 128"),
        ({"prompt": ["a"] * 100, "n": 2}, "n", "at most 128 texts"),
        ({"temperature": 3}, "temperature", "a number from 0 to 2"),
        ({"logprobs": 2}, "logprobs", "not supported here"),
        ({"model": "encoder"}, "model", "does not generate text"),
        ({"stream_options": {"include_usage": True}}, "stream_options", '"stream": true'),
        ({"prompt": "fail at once"}, None, "the model has no voice"),
        ({"prompt": "fail at once", "stream": True}, None, "the model has no voice"),
        ({"prompt": "a b fail"}, None, "the model lost its voice"),
    ],
)
def test_wrong_questions_for_completions(client, asked, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**{"model": "talker", "prompt": "a", **asked})
    assert words in raised.value.message
    assert raised.value.param == param


def test_a_later_error_is_an_event(client):
    stream = client.completions.create(model="talker", prompt="a b fail", stream=True)
    pieces = []

    def read():
        for chunk in stream:
            pieces.append(chunk.choices[0].text)

    with pytest.raises(openai.APIError, match="the model lost its voice"):
        read()
    assert pieces == ["A", " B"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_cancels_its_request(running, models, stream):
    models.cancelled.clear()
    models.waiting.clear()
    connection = http.client.HTTPConnection(running.http_address, timeout=WAIT_SECS)
    body = json.dumps({"model": "talker", "prompt": "a wait", "stream": stream})
    connection.request("POST", "/v1/completions", body)
    if stream:
        response = connection.getresponse()
        assert b"data: " in response.readline()
        response.close()
    else:
        assert models.waiting.wait(WAIT_SECS)
    connection.close()
    assert models.cancelled.wait(WAIT_SECS)


def test_a_full_queue_is_a_rate_limit(client, models):
    models.release.clear()
    found = []

    def ask():
        try:
            found.append(client.completions.create(model="full", prompt="a").choices[0].text)
        except openai.RateLimitError as error:
            found.append(error)

    callers = [threading.Thread(target=ask) for _ in range(6)]
    for caller in callers:
        caller.start()
    try:
        end = time.monotonic() + WAIT_SECS
        while not found and time.monotonic() < end:
            models.cancelled.wait(0.001)
        (error, *_) = found
        assert isinstance(error, openai.RateLimitError)
        assert (error.status_code, error.code) == (429, "rate_limit_exceeded")
    finally:
        models.release.set()
        for caller in callers:
            caller.join()
        models.release.clear()
    assert "A" in found


# ---- conversations


HELLO = {"role": "user", "content": "hello there"}


def test_a_turn_of_a_conversation(client):
    answer = client.chat.completions.create(
        model="talker", messages=[{"role": "system", "content": "be kind"}, HELLO]
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "SYSTEM: BE KIND\nUSER: HELLO THERE\nASSISTANT:"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.prompt_tokens == 7


def test_the_models_own_template_and_tokenizer(client):
    answer = client.chat.completions.create(
        model="tokenised",
        messages=[{"role": "user", "content": [{"type": "text", "text": "a net"}]}],
    )
    assert answer.choices[0].message.content == "[USER] A NET "
    usage = answer.usage
    assert usage.prompt_tokens == usage.completion_tokens == 5  # [, user, ], a, net


def test_a_turn_as_it_comes(client):
    stream = client.chat.completions.create(
        model="talker",
        messages=[HELLO],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=2,
    )
    chunks = list(stream)
    *said, usage = chunks
    assert [chunk.choices[0].delta.role for chunk in said] == ["assistant", None, None]
    assert [chunk.choices[0].delta.content for chunk in said] == ["USER:", " HELLO", None]
    assert said[-1].choices[0].finish_reason == "length"
    assert usage.usage.completion_tokens == 2
    assert chunks[0].object == "chat.completion.chunk"


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]", "must be a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0]",
            "takes only text",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not supported"),
        ({"model": "odd"}, "model", "does not generate text"),
    ],
)
def test_wrong_questions_for_conversations(client, asked, param, words):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{"model": "talker", "messages": [HELLO], **asked})
    assert words in raised.value.message
    assert raised.value.param == param


@pytest.mark.timeout(300)  # it loads PyTorch and transformers
def test_a_model_that_shoal_generates_with_itself(tmp_path):
    pytest.importorskip("transformers")
    from tests.support.text_generators import gpt2_checkpoint

    gpt2_checkpoint(tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "models" / "gpt")
    with running_server(tmp_path / "models") as running:
        address = f"http://{running.http_address}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            asked = {"model": "gpt", "prompt": "a net", "max_tokens": 6}
            whole = client.completions.create(**asked)
            pieces = list(client.completions.create(**asked, stream=True))
    assert whole.usage.prompt_tokens == 5  # its tokens are bytes
    assert 1 <= whole.usage.completion_tokens <= 6
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def photo(url, *more):
    part = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [part, *more]}]


def test_a_photo_for_a_model_that_looks_at_photos(client, models):
    answer = client.chat.completions.create(
        model="looking", messages=photo("data:image/png;base64,aGVsbG8=")
    )
    assert answer.choices[0].message.content == "30 bytes"
    assert models.inputs["image"] == [b"data:image/png;base64,aGVsbG8="]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, 1)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([HELLO], "describes a photo and takes no text"),
        (photo("data:,x", {"type": "text", "text": "What is it?"}), "takes no text"),
        (photo("data:,x") * 2, "send one message"),
        (photo("http://example.org/cat.jpg"), "the server does not fetch URLs"),
    ],
)
def test_other_messages_for_a_model_that_looks_at_photos(client, messages, words):
    with pytest.raises(openai.BadRequestError, match=words):
        client.chat.completions.create(model="looking", messages=messages)
    with pytest.raises(openai.BadRequestError, match="takes photos"):
        client.completions.create(model="looking", prompt="a")


# ---- the asynchronous client


def test_the_asynchronous_client(running):
    async def scenario():
        async with openai.AsyncOpenAI(
            base_url=f"http://{running.http_address}/v1", api_key="none", max_retries=0
        ) as client:
            names = [model.id async for model in client.models.list()]
            vectors = await asyncio.gather(
                *(client.embeddings.create(model="encoder", input=word) for word in ("a", "b", "c"))
            )
            stream = await client.chat.completions.create(
                model="talker", messages=[HELLO], stream=True
            )
            said = [chunk.choices[0].delta.content or "" async for chunk in stream]
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="nobody", prompt="a")
        return names, vectors, "".join(said)

    names, vectors, said = asyncio.run(scenario())
    assert "talker" in names
    assert [len(answer.data[0].embedding) for answer in vectors] == [16] * 3
    assert said == "USER: HELLO THERE\nASSISTANT:"


# ---- around it


def test_errors_below_v1_have_one_shape(running):
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/embeddings", 405),
        ("POST", "/v1/embeddings", 400),
    ):
        answer = running.call(method, path, b"not json").response()
        assert answer.status == status
        error = answer.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
    assert running.get("/v2/nothing").json == {"error": "Not Found"}


def test_restricted_apis(repository, models):
    backends = RequestBackend(models.execute).registry()
    closed = (NamedSetting("inference", "api-key", "secret"),)
    with running_server(repository, backends=backends, http_restricted_api=closed) as running:
        address = f"http://{running.http_address}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            assert len(client.models.list().data) == 7
            with pytest.raises(openai.PermissionDeniedError) as raised:
                client.completions.create(model="talker", prompt="a")
            assert raised.value.type == "permission_error"
            key = {"api-key": "secret"}
            client.completions.create(model="talker", prompt="a", extra_headers=key)


def test_models_on_demand(repository, models):
    backends = RequestBackend(models.execute).registry()
    with running_server(repository, backends=backends, model_control_mode="lazy") as running:
        address = f"http://{running.http_address}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            assert client.models.list().data == []  # none is loaded yet
            assert client.models.retrieve("whole").id == "whole"
            assert client.completions.create(model="talker", prompt="a").choices[0].text == "A"
            answer = client.embeddings.create(model="encoder", input="fish")
            assert len(answer.data[0].embedding) == 16
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model="nobody", input="fish")


def test_a_model_on_demand_that_cannot_be_loaded(tmp_path):
    add_model(tmp_path, "broken", TALKER.replace("requests", "nothing"))
    with running_server(tmp_path, model_control_mode="lazy") as running:
        address = f"http://{running.http_address}/v1"
        with (
            openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client,
            pytest.raises(openai.InternalServerError) as raised,
        ):
            client.completions.create(model="broken", prompt="a")
        assert raised.value.status_code == 503
        assert raised.value.type == "server_error"


def test_a_length_for_all_is_a_setting_of_the_model(tmp_path, models):
    add_model(tmp_path, "talker", TALKER + parameter("openai_max_tokens", "2"))
    backends = RequestBackend(models.execute).registry()
    with running_server(tmp_path, backends=backends) as running:
        body = {"model": "talker", "prompt": "a b c"}
        answer = running.post("/v1/completions", body).json
        assert answer["choices"][0]["text"] == "A B"
        answer = running.post("/v1/completions", {**body, "max_tokens": 3}).json
        assert answer["choices"][0]["text"] == "A B C"


def test_a_completion_is_traced_as_an_inference(repository, models, tmp_path):
    backends = RequestBackend(models.execute).registry()
    traces = tmp_path / "traces.json"
    settings = (
        NamedSetting("triton", "file", str(traces)),
        NamedSetting("", "level", "TIMESTAMPS"),
        NamedSetting("", "rate", "1"),
    )
    with running_server(repository, backends=backends, trace_config=settings) as running:
        body = {"model": "talker", "prompt": "a b"}
        assert running.post("/v1/completions", body).status == 200
        assert running.post("/v1/completions", {**body, "stream": True}).status == 200
    written = json.loads(traces.read_text())
    named = [entry for entry in written if entry.get("model_name") == "talker"]
    assert len(named) == 4  # each completion, and the inference in it
    events = {stamp["name"] for entry in written for stamp in entry.get("timestamps", ())}
    assert {"HTTP_RECV_START", "REQUEST_START", "HTTP_SEND_END"} <= events


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", None),
        ("/v1/embeddings", {"model": "encoder", "input": "a"}),
        ("/v1/completions", {"model": "talker", "prompt": "a"}),
        ("/v1/chat/completions", {"model": "talker", "messages": [HELLO]}),
    ],
)
def test_answers_are_as_the_openapi_document_promises(running, path, body):
    document = running.get("/openapi.json").json
    operation = document["paths"][path]["get" if body is None else "post"]
    answer = running.get(path) if body is None else running.post(path, body)
    assert answer.status == 200
    promised = operation["responses"]["200"]["content"]["application/json"]["schema"]
    OAS31Validator({**promised, "components": document["components"]}).validate(answer.json)
    if body is not None:
        asked = operation["requestBody"]["content"]["application/json"]["schema"]
        OAS31Validator({**asked, "components": document["components"]}).validate(body)
        refused = running.post(path, {}).json
        failure = operation["responses"]["default"]["content"]["application/json"]["schema"]
        OAS31Validator({**failure, "components": document["components"]}).validate(refused)

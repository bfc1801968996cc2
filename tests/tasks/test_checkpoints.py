"""Checkpoints of transformers, exported and served: the numbers are those of transformers."""

from __future__ import annotations

import base64
import io
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.errors import Unsupported
from shoal.export.exporting import export
from shoal.testing.server import running_server
from tests.support.encoders import tokenizer_document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
PIL = pytest.importorskip("PIL.Image")

from tests.support.checkpoints import clip_checkpoint, image_checkpoint, text_checkpoint  # noqa: E402

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers

TEXTS = ["the red fish", "a small shark sees the old boat near the river", "sea", "two fish"]
QUERY = "one blue boat"
SQUARE = {"height": 32, "width": 32}
PHOTOS = {
    "vit": (("ViT", "ViT"), {"size": SQUARE}),
    "deit": (("ViT", "DeiT"), {"size": {"height": 36, "width": 36}, "crop_size": SQUARE}),
    "resnet": (("ResNet", "ConvNext"), {"size": {"shortest_edge": 28}}),
    "convnext": (("ConvNext", "ConvNext"), {"size": {"shortest_edge": 384}}),
    "efficientnet": (("EfficientNet", "EfficientNet"), {"size": SQUARE}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The models of transformers by name, and the folder of the exported ones."""
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    folder = tmp_path_factory.mktemp("models")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    labels = {0: "good", 1: "bad", 2: "so so"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {
            "labels": text_checkpoint(
                checkpoints / "labels", "BertForSequenceClassification", id2label=labels
            ),
            "several": text_checkpoint(
                checkpoints / "several",
                "RobertaForSequenceClassification",
                id2label=labels,
                problem_type="multi_label_classification",
            ),
            "ranking": text_checkpoint(
                checkpoints / "ranking", "BertForSequenceClassification", num_labels=1
            ),
            "words": text_checkpoint(
                checkpoints / "words",
                "DistilBertForTokenClassification",
                id2label=dict(enumerate(("O", "B-FISH", "I-FISH", "B-BOAT", "I-BOAT"))),
            ),
            "answers": text_checkpoint(checkpoints / "answers", "RobertaForQuestionAnswering"),
            "vectors": text_checkpoint(checkpoints / "vectors", "DistilBertModel"),
        }
        photos = {
            name: image_checkpoint(checkpoints / name, *words, **settings)
            for name, (words, settings) in PHOTOS.items()
        }
        photos["clip"] = clip_checkpoint(checkpoints / "clip")
        for name in (*models, *photos):
            export(checkpoints / name, folder / name)
    yield SimpleNamespace(models=models, photos=photos, folder=folder, checkpoints=checkpoints)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def running(made):
    with running_server(made.folder) as running:
        yield running


def encoded(texts, *, types=True):
    """The tokens of texts or pairs, padded, as transformers takes them."""
    document = tokenizer_document()
    pair = document["post_processor"]["pair"]
    pair.append({"SpecialToken": {"id": "[SEP]", "type_id": 1}})
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(texts)
    inputs = {
        "input_ids": torch.tensor([one.ids for one in found]),
        "attention_mask": torch.tensor([one.attention_mask for one in found]),
    }
    if types:
        inputs["token_type_ids"] = torch.tensor([one.type_ids for one in found])
    return inputs


def computed(model, texts, *, types=True):
    with torch.no_grad():
        return model(**encoded(texts, types=types))


def posted(running, path, **body):
    answer = running.post(path, body)
    assert answer.status == 200, answer
    return answer.json


def scores_of(texts):
    """The scores of each text by label."""
    return [{one["label"]: one["score"] for one in text["labels"]} for text in texts]


# ---- text classification


def test_labels_of_texts_and_pairs(made, running):
    texts = [*TEXTS, [TEXTS[0], TEXTS[1]]]
    found = posted(running, "/v2/models/labels/predict", texts=texts)
    pairs = [tuple(text) if isinstance(text, list) else text for text in texts]
    wanted = computed(made.models["labels"], pairs).logits.softmax(-1).numpy()
    for text, row in zip(scores_of(found["texts"]), wanted, strict=True):
        assert text == pytest.approx(
            dict(zip(("good", "bad", "so so"), row.tolist(), strict=True)), abs=1e-5
        )
    best = [text["labels"][0]["score"] for text in found["texts"]]
    assert best == [max(labels.values()) for labels in scores_of(found["texts"])]
    one = posted(running, "/v2/models/labels/predict", text=TEXTS[0], top=1)
    assert [len(text["labels"]) for text in one["texts"]] == [1]


def test_several_labels_can_hold(made, running):
    found = posted(running, "/v2/models/several/predict", texts=TEXTS)
    wanted = computed(made.models["several"], TEXTS, types=False).logits.sigmoid().numpy()
    for text, row in zip(scores_of(found["texts"]), wanted, strict=True):
        assert sorted(text.values()) == pytest.approx(sorted(row.tolist()), abs=1e-5)


def test_classification_as_text_embeddings_inference_has_it(made, running):
    path = "/v2/models/labels/predict"
    (one,) = posted(running, path, inputs=[TEXTS[0]])
    assert posted(running, path, inputs=TEXTS[0]) == one
    assert [set(label) for label in one] == [{"score", "label"}] * 3
    raw = posted(running, path, inputs=TEXTS[0], raw_scores=True)
    wanted = computed(made.models["labels"], TEXTS[:1]).logits[0].tolist()
    assert sorted(label["score"] for label in raw) == pytest.approx(sorted(wanted), abs=1e-5)


# ---- ranking


def test_documents_in_the_order_of_a_query(made, running):
    found = posted(running, "/rerank", query=QUERY, documents=TEXTS, return_documents=True)
    wanted = computed(made.models["ranking"], [(QUERY, text) for text in TEXTS])
    wanted = wanted.logits[:, 0].sigmoid().tolist()
    results = found["results"]
    order = sorted(range(len(TEXTS)), key=lambda at: -wanted[at])
    assert [one["index"] for one in results] == order
    assert [one["relevance_score"] for one in results] == pytest.approx(
        [wanted[at] for at in order], abs=1e-5
    )
    assert [one["document"]["text"] for one in results] == [TEXTS[at] for at in order]
    best = posted(running, "/rerank", query=QUERY, documents=[{"text": t} for t in TEXTS], top_n=2)
    assert best["results"] == [
        {key: one[key] for key in ("index", "relevance_score")} for one in results[:2]
    ]


def test_ranking_as_text_embeddings_inference_has_it(made, running):
    found = posted(running, "/rerank", query=QUERY, texts=TEXTS, return_text=True, raw_scores=True)
    wanted = computed(made.models["ranking"], [(QUERY, text) for text in TEXTS]).logits[:, 0]
    assert [one["score"] for one in found] == pytest.approx(
        sorted(wanted.tolist(), reverse=True), abs=1e-4
    )
    assert [one["text"] for one in found] == [TEXTS[one["index"]] for one in found]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_ranking_as_coheres_clients_call_it(running, path):
    own = posted(running, "/rerank", query=QUERY, documents=TEXTS)
    found = posted(running, path, model="ranking", query=QUERY, documents=TEXTS, top_n=3)
    assert found["results"] == own["results"][:3]
    assert found["usage"] == {"prompt_tokens": own["tokens"], "total_tokens": own["tokens"]}
    assert found["meta"]["billed_units"] == {"search_units": 1}
    listed = [one["id"] for one in running.get("/v1/models").json["data"]]
    assert "ranking" in listed
    answer = running.post(path, {"model": "ranking", "query": QUERY, "documents": [""]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "documents")
    answer = running.post(path, {"model": "labels", "query": QUERY, "documents": TEXTS})
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("rerank", {"documents": ["sea"]}, "'query' must be a text"),
        ("rerank", {"query": "sea"}, "'documents' is missing"),
        ("rerank", {"query": "sea", "documents": []}, "from 1 to 2048 elements"),
        ("rerank", {"query": "sea", "documents": ["", "x"]}, "documents[0] is empty"),
        ("rerank", {"query": "sea", "documents": ["x"], "texts": ["y"]}, "not both"),
        ("v2/models/labels/predict", {}, "send either 'text'"),
        ("v2/models/labels/predict", {"texts": [["a", "b", "c"]]}, "a list of two, a pair"),
        ("v2/models/labels/predict", {"text": "sea", "top": 9}, "'top' must be a whole number"),
        (
            "v2/models/labels/predict",
            {"texts": ["sea " * 100], "truncate": False},
            "texts[0] has more than 66 tokens",
        ),
    ],
)
def test_wrong_requests(running, path, body, words):
    answer = running.post(f"/{path}", body)
    assert answer.status == 400
    assert words in answer.error


# ---- words


@pytest.mark.parametrize("way", ["simple", "none"])
def test_entities_are_those_of_the_pipeline(made, running, way):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(made.folder / "words" / "tokenizer.json"), pad_token="[PAD]"
    )
    pipeline = transformers.pipeline(
        "token-classification",
        model=made.models["words"],
        tokenizer=tokenizer,
        aggregation_strategy=way,
    )
    found = posted(running, "/tag", texts=TEXTS, aggregation=way)["texts"]
    for text, entities in zip(TEXTS, found, strict=True):
        for one, wanted in zip(entities["entities"], pipeline(text), strict=True):
            assert one["label"] == wanted.get("entity_group", wanted.get("entity"))
            assert one["text"] == text[wanted["start"] : wanted["end"]]
            assert one["score"] == pytest.approx(wanted["score"], abs=1e-5)
    assert any(entities["entities"] for entities in found)


# ---- answers


def test_logits_of_answers(made, running):
    pair = [("two fish", "the red fish sees the old boat")]
    inputs = encoded(pair, types=False)
    with torch.no_grad():
        wanted = made.models["answers"](**inputs)
    tensors = [
        {"name": name, "datatype": "INT64", "shape": list(value.shape), "data": value.tolist()}
        for name, value in inputs.items()
    ]
    outputs = posted(running, "/v2/models/answers/infer", inputs=tensors)["outputs"]
    found = {output["name"]: output["data"] for output in outputs}
    assert found["start_logits"] == pytest.approx(wanted.start_logits[0].tolist(), abs=1e-4)
    assert found["end_logits"] == pytest.approx(wanted.end_logits[0].tolist(), abs=1e-4)
    text = pair[0][1]
    answer = posted(running, "/v2/models/answers/answer", text=text, question=pair[0][0])
    sums = wanted.start_logits[0, 4:11, None].numpy() + wanted.end_logits[0, None, 4:11].numpy()
    first, last = divmod(int(np.where(np.triu(np.ones((7, 7))), sums, -np.inf).argmax()), 7)
    assert answer["answer"] == " ".join(text.split()[first : last + 1])


# ---- embeddings


def test_vectors_of_an_encoder_that_torch_writes(made, running):
    found = posted(running, "/v2/models/vectors/embed", texts=TEXTS)
    inputs = encoded(TEXTS, types=False)
    with torch.no_grad():
        states = made.models["vectors"](**inputs).last_hidden_state
    shown = inputs["attention_mask"][..., None].float()
    wanted = torch.nn.functional.normalize((states * shown).sum(1) / shown.sum(1), dim=-1)
    np.testing.assert_allclose(found["embeddings"], wanted.numpy(), atol=1e-5)
    as_list = posted(running, "/embed", inputs=TEXTS)
    np.testing.assert_allclose(as_list, wanted.numpy(), atol=1e-5)


# ---- photos


def photo(seed=0):
    """A photo, and its bytes."""
    pixels = np.random.default_rng(seed).integers(0, 255, (64, 96, 3), np.uint8)
    image = PIL.fromarray(pixels).resize((48, 40))  # smooth: a pixel more or less matters little
    sent = io.BytesIO()
    image.save(sent, "PNG")
    return image, sent


@pytest.mark.parametrize("name", PHOTOS)
def test_labels_of_photos(made, running, name):
    model, prepare = made.photos[name]
    image, sent = photo()
    answer = running.post(
        f"/v2/models/{name}/classify", sent.getvalue(), {"Content-Type": "image/png"}
    )
    assert answer.status == 200, answer
    found = {one["index"]: one["score"] for one in answer.json["images"][0]["labels"]}
    with torch.no_grad():
        pixels = torch.from_numpy(np.stack(prepare(image, return_tensors="np").pixel_values))
        wanted = model(pixels).logits.softmax(-1)[0].tolist()
    assert [found[index] for index in range(5)] == pytest.approx(wanted, abs=0.01)
    assert answer.json["images"][0]["labels"][0]["label"] == f"class {np.argmax(wanted)}"


def test_labels_of_the_callers_choice(made, running):
    model, prepare = made.photos["clip"]
    images, sent = zip(photo(1), photo(2), strict=True)
    labels = ["red fish", "old boat near the river", "sea"]
    body = {
        "images": [base64.b64encode(one.getvalue()).decode() for one in sent],
        "labels": labels,
        "template": "the {}",
    }
    inputs = encoded([f"the {label}" for label in labels], types=False)
    inputs["input_ids"][inputs["attention_mask"] == 0] = 3  # padded with the end of a text
    pixels = torch.from_numpy(np.stack(prepare(list(images), return_tensors="np").pixel_values))
    with torch.no_grad():
        wanted = model(pixel_values=pixels, **inputs).logits_per_image.softmax(-1).numpy()
    for _ in range(2):  # the second time, the vectors of labels are cached
        found = posted(running, "/match", **body)
        for image, row in zip(found["images"], wanted, strict=True):
            scores = {one["index"]: one["score"] for one in image["labels"]}
            assert [scores[at] for at in range(3)] == pytest.approx(row.tolist(), abs=0.02)
            assert image["labels"][0]["label"] == labels[row.argmax()]
    for wrong, words in (({"labels": []}, "'labels' is missing"), ({"template": "x"}, "have {}")):
        answer = running.post("/match", {**body, **wrong})
        assert (answer.status, words in answer.error) == (400, True)


# ---- what a checkpoint is for


def test_a_checkpoint_of_no_known_kind(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"holds a BertForMaskedLM, .* Say what it is for"):
        export(folder, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_classifier_is_no_ranking_model(made, tmp_path):
    with pytest.raises(Unsupported, match="has 3 outputs"):
        export(made.checkpoints / "labels", tmp_path / "made", "rerank")

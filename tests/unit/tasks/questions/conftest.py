"""A tokenizer that knows every word a test uses, and a model that finds one of them."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from shoal.core.dtypes import FP32, INT64
from shoal.core.signature import Signature, TensorSpec
from shoal.tasks.settings import TaskSettings
from shoal.tasks.workers import ThreadStage, Workers

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _tokenizer() -> Tokenizer:
    """[CLS] and [SEP] as BERT has them; each letter is a token, words are told apart by spaces."""
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "?"]
    vocabulary = {token: n for n, token in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer


@pytest.fixture
def words() -> Tokenizer:
    return _tokenizer()


class FakeModel:
    """A model's context; its model points at every z that it sees in a text."""

    model_name, model_version = "reader", 3

    def __init__(self, folder, *, dims=(-1,), rows=16, inputs=3, settings=None):
        self.folder = folder
        tokenizer = _tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        if settings is not None:
            (folder / "task.json").write_text(json.dumps(settings))
        self.settings = TaskSettings.of(folder)
        names = ("input_ids", "attention_mask", "token_type_ids")[:inputs]
        self.signature = Signature(
            "reader",
            rows,
            {name: TensorSpec(name, INT64, dims) for name in names},
            {name: TensorSpec(name, FP32, dims) for name in ("start_logits", "end_logits")},
        )
        self.config = None
        self.wanted = [tokenizer.token_to_id("z"), tokenizer.token_to_id("##z")]
        self.requests: list[dict[str, np.ndarray]] = []
        self.under_way = self.most_under_way = 0
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.busy: asyncio.Event | None = None  # set when two requests are under way
        self.cancelled = 0
        self._workers = Workers(2)
        self.counted: dict[str, int] = {}

    def stage(self, kind, work, *, most=1):
        def count(items, _):
            self.counted[kind] = self.counted.get(kind, 0) + items

        return ThreadStage(self._workers, work, count, most=most)

    async def infer(self, inputs, outputs=(), parameters=None):
        self.requests.append(dict(inputs))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.busy is not None and self.under_way == 2:
            self.busy.set()
        try:
            await (self.hold.wait() if self.hold is not None else asyncio.sleep(0))
            if self.failure is not None:
                raise self.failure
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        found = np.where(np.isin(inputs["input_ids"], self.wanted), 5.0, -5.0).astype(np.float32)
        if "token_type_ids" in inputs:  # questions are not pointed at
            found = np.where(inputs["token_type_ids"] == 1, found, -5.0).astype(np.float32)
        found[:, 0] = -4.0
        return dict.fromkeys(outputs, found)

    def close(self):
        self._workers.close()


@pytest.fixture
def model(tmp_path):
    """Makes the context of a model."""
    made = []

    def make(**how):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(FakeModel(folder, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()

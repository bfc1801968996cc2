"""The task `zero-shot-image-classification`: labels that the caller chooses, for each photo.

    photos --threads: rows--> model: image_embeds --.
    labels --threads: tokens--> model: text_embeds --> cosines --softmax--> labels with scores

The model has both encoders; a request with no photos, or no texts, runs only the other one. Vectors
of labels are cached, because callers repeat them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.core.signature import Signature
from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.images.many import SentPhoto, outcomes
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.images.sent import MOST_IMAGES, images_of, titles
from shoal.tasks.request import TaskRequest
from shoal.tasks.tokenizer import pad_token_of, read_tokenizer

PIXELS, IDS, MASK = "pixel_values", "input_ids", "attention_mask"
IMAGES, TEXTS = "image_embeds", "text_embeds"
_MOST_LABELS = 1000
_LONGEST_LABEL = 1000  # characters
_DIGITS = 6


class ZeroShotImageClassification(Task):
    """Scores of given labels for photos."""

    name = "zero-shot-image-classification"
    operation = "match"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings, signature = context.settings, context.signature
        _check(signature)
        pixels = signature.inputs[PIXELS]
        self._prepare_photo = ImagePreparation.of(settings, pixels.dims[-3:], pixels.datatype)
        self._tokenizer = read_tokenizer(settings)
        longest = settings.integer("max_length", 77, lowest=3, highest=1 << 16)
        self._tokenizer.enable_truncation(longest)
        pad = settings.integer(
            "pad_token", pad_token_of(self._tokenizer), lowest=0, highest=1 << 31
        )
        self._tokenizer.enable_padding(pad_id=pad)
        self._scale = settings.number("logit_scale", 100.0, lowest=0, highest=1e6)
        self._template = settings.text("template", "This is a photo of {}.")
        if "{}" not in self._template:
            settings.wrong("template", "it has no {}", 'Write "a photo of {}"')
        self._most_images = settings.integer("max_images", MOST_IMAGES, lowest=1, highest=1 << 16)
        self._most_cached = settings.integer("cached_labels", 10_000, lowest=0, highest=1 << 24)
        self._cached: OrderedDict[str, np.ndarray] = OrderedDict()
        self._prepare = context.stage("preprocess", self._prepared)
        self._tokenise = context.stage("preprocess", self._tokenised)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """The labels of each photo, the best first. Raises InvalidArgument."""
        labels = _labels(request)
        top = request.integer("top", len(labels), lowest=1, highest=_MOST_LABELS)
        template = request.text("template", longest=_LONGEST_LABEL, default=self._template)
        if "{}" not in template:
            raise InvalidArgument("'template' must have {} where the label is written")
        files = images_of(request, self._most_images)
        rows = np.empty((len(files), *self._prepare_photo.shape), self._prepare_photo.table.dtype)
        await gather_or_cancel(
            self._prepare(SentPhoto(file.data, title, row))
            for file, title, row in zip(files, titles(files), rows, strict=True)
        )
        texts = await self._vectors([template.replace("{}", label) for label in labels])
        nothing = np.zeros((0, 1), np.int64)
        found = await self.context.infer({PIXELS: rows, IDS: nothing, MASK: nothing}, (IMAGES,))
        logits = self._scale * (_normal(found[IMAGES]) @ texts.T)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "images": [
                {"file": file.name, "labels": _best(row, labels, top)}
                for file, row in zip(files, shares, strict=True)
            ],
        }

    async def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The vector of each text, from the cache or from the model."""
        known = {text: self._cached[text] for text in texts if text in self._cached}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            ids, mask = await self._tokenise(missing)
            photos = np.zeros((0, *self._prepare_photo.shape), self._prepare_photo.table.dtype)
            found = await self.context.infer({PIXELS: photos, IDS: ids, MASK: mask}, (TEXTS,))
            known.update(zip(missing, _normal(found[TEXTS]), strict=True))
        for text, vector in known.items():
            self._cached[text] = vector
            self._cached.move_to_end(text)
        while len(self._cached) > self._most_cached:
            self._cached.popitem(last=False)
        return np.stack([known[text] for text in texts])

    # ---- on threads

    def _prepared(self, photos: Sequence[SentPhoto]) -> list[np.ndarray | Exception]:
        return outcomes(self._prepare_photo, photos)

    def _tokenised(self, calls: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        made = []
        for texts in calls:
            found = self._tokenizer.encode_batch(list(texts))
            ids = np.array([one.ids for one in found], np.int64)
            made.append((ids, np.array([one.attention_mask for one in found], np.int64)))
        return made


def _labels(request: TaskRequest) -> list[str]:
    """The labels of a call: a list, or one text with commas, as forms send it."""
    sent = request.values.get("labels")
    found = [part.strip() for part in sent.split(",")] if type(sent) is str else sent
    if type(found) is not list or not found:
        raise InvalidArgument("'labels' is missing: send a list of texts, or cat,dog in a form")
    if len(found) > _MOST_LABELS:
        raise InvalidArgument(f"'labels' has {len(found)} elements, at most {_MOST_LABELS} fit")
    for number, label in enumerate(found):
        if type(label) is not str or not 0 < len(label.strip()) <= len(label) <= _LONGEST_LABEL:
            raise InvalidArgument(
                f"labels[{number}] must be a text of at most {_LONGEST_LABEL} characters"
            )
        if label.encode("utf-8", "replace").decode() != label:
            raise InvalidArgument(f"labels[{number}] has half a surrogate pair: remove it")
    return found


def _best(shares: np.ndarray, labels: Sequence[str], top: int) -> list[dict[str, Any]]:
    best = np.argsort(-shares, kind="stable")[:top].tolist()
    return [
        {"label": labels[at], "score": round(float(shares[at]), _DIGITS), "index": at}
        for at in best
    ]


def _normal(vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12))


def _check(signature: Signature) -> None:
    missing = [name for name in (PIXELS, IDS, MASK) if name not in signature.inputs]
    missing += [name for name in (IMAGES, TEXTS) if name not in signature.outputs]
    if missing or signature.max_batch_size:
        raise ConfigError(
            f"the model has no tensor '{missing[0]}'" if missing else "max_batch_size is not 0",
            file="config.pbtxt",
            field="input",
            fix="The task 'zero-shot-image-classification' needs a model from pixel_values, "
            "input_ids and attention_mask to image_embeds and text_embeds, each with its own "
            "number of rows: max_batch_size: 0",
        )

"""Folders of models that read texts: classes of texts and words, scores of pairs, answers.

BertForSequenceClassification --> text-classification, or rerank if it has one output
…ForTokenClassification       --> token-classification
…ForQuestionAnswering         --> question-answering
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.encoder_shape import longest_text
from shoal.export.traced import write_traced
from shoal.export.writing import ExportOptions, write_json

_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_ROWS: Mapping[int, str] = {0: "batch", 1: "sequence"}
_LONGEST_WINDOW = 384  # of question answering, as it is trained

_CONFIG = """\
# {source}: {what}. Texts of similar length share a batch.
backend: "onnxruntime"
max_batch_size: {rows}
dynamic_batching {{ }}
parameters {{ key: "task" value {{ string_value: "{task}" }} }}
parameters {{ key: "padding" value {{ string_value: "{fillers}" }} }}
parameters {{ key: "batch_by_shape" value {{ string_value: "true" }} }}
parameters {{ key: "batch_by_shape_bucket" value {{ string_value: "{buckets}" }} }}
"""


def write_text_classification(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Labels for texts."""
    several = checkpoint.config.get("problem_type") == "multi_label_classification"
    labels = checkpoint.labels()
    scores = "sigmoid" if several or len(labels) == 1 else "softmax"
    write_head(checkpoint, folder, options, "text-classification", {"scores": scores})
    write_labels(folder, labels)


def write_rerank(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Scores for pairs of a query and a document."""
    if len(checkpoint.labels()) != 1:
        raise Unsupported(
            f"'{checkpoint.name}' has {len(checkpoint.labels())} outputs, a cross-encoder for "
            f"ranking has one: export it as text-classification"
        )
    write_head(checkpoint, folder, options, "rerank", {})


def write_token_classification(
    checkpoint: Checkpoint, folder: Path, options: ExportOptions
) -> None:
    """Labels for words."""
    write_head(checkpoint, folder, options, "token-classification", {})
    write_labels(folder, checkpoint.labels())


def write_question_answering(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Answers to questions about a text."""
    write_head(checkpoint, folder, options, "question-answering", {})


def write_head(
    checkpoint: Checkpoint,
    folder: Path,
    options: ExportOptions,
    task: str,
    settings: Mapping[str, Any],
) -> None:
    """Write an encoder with the head of its task."""
    kind, what, outputs = {
        "text-classification": ("SequenceClassification", "labels for texts", ["logits"]),
        "rerank": ("SequenceClassification", "documents by a query", ["logits"]),
        "token-classification": ("TokenClassification", "labels for words", ["logits"]),
        "question-answering": (
            "QuestionAnswering",
            "answers in a text",
            ["start_logits", "end_logits"],
        ),
    }[task]
    tokenizer = checkpoint.tokenizer_json()
    model = checkpoint.load(f"AutoModelFor{kind}")
    per_token = kind != "SequenceClassification"
    fillers = write_encoder(
        model,
        folder / "1" / "model.onnx",
        dict.fromkeys(outputs, _ROWS if per_token else {0: "batch"}),
    )
    longest = checkpoint.longest_text(longest_text(checkpoint.config))
    if task == "question-answering":
        longest = min(longest, _LONGEST_WINDOW)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    write_json(folder / "task.json", {**settings, "max_length": longest})
    text = text_config(checkpoint.name, what, task, options.max_batch_size, fillers, longest)
    (folder / "config.pbtxt").write_text(text, "utf-8")


def write_encoder(
    model: Any, path: Path, outputs: Mapping[str, Mapping[int, str]], forward: Any = None
) -> str:
    """Write a text encoder; returns the padding of its inputs, as in config.pbtxt.

    `forward` is the module that is traced, where it is not the model itself.
    """
    import torch

    config = model.config
    taken = inspect.signature(model.forward).parameters
    pad = getattr(config, "pad_token_id", None) or 0
    # Positions of RoBERTa are counted from the tokens that are not padding.
    ids = torch.full((2, 8), 5 if pad != 5 else 6)
    mask = torch.ones_like(ids)
    ids[1, 5:], mask[1, 5:] = pad, 0
    inputs = {_IDS: (ids, _ROWS), _MASK: (mask, _ROWS)}
    fillers = {_IDS: pad, _MASK: 0}
    if _TYPES in taken and getattr(config, "type_vocab_size", 0) > 1:
        inputs[_TYPES] = (torch.zeros_like(ids), _ROWS)
        fillers[_TYPES] = 0
    write_traced(model if forward is None else forward, path, inputs, outputs)
    return ", ".join(f"{name}={filler}" for name, filler in fillers.items())


def text_config(source: str, what: str, task: str, rows: int, fillers: str, longest: int) -> str:
    """The config of a model that reads texts."""
    buckets = ", ".join(map(str, length_buckets(longest)))
    return _CONFIG.format(
        source=source, what=what, task=task, rows=rows, fillers=fillers, buckets=buckets
    )


def length_buckets(longest: int) -> list[int]:
    """The bounds of lengths that share a batch, from 16 tokens on four for each doubling.

    At most a fifth of a longer row is padding; batches of short rows gain more by being large.
    """
    ends = [8, 12, 16]
    while ends[-1] < longest:
        octave = 1 << (ends[-1].bit_length() - 1)
        ends.append(ends[-1] + octave // 4)
    return [end for end in ends if end < longest] + [next(end for end in ends if end >= longest)]


def write_labels(folder: Path, labels: Sequence[str]) -> None:
    """Write labels.txt, one label per line."""
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels), "utf-8")

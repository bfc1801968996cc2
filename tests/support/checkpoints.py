"""Small checkpoints of transformers with random weights, as it saves them. Needs torch.

    text_checkpoint(folder, "BertForSequenceClassification", num_labels=3)  -->  the model

Weights are larger than usual, so that answers differ; tokens are those of `tests.support.encoders`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.encoders import LONGEST, SPECIAL, WORDS, tokenizer_document

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL = {
    "Bert": {**_SIZES, "intermediate_size": 64},
    "Roberta": {**_SIZES, "intermediate_size": 64, "type_vocab_size": 1},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "MPNet": {**_SIZES, "intermediate_size": 64},
}
_IMAGES = {
    "ViT": {**_SIZES, "intermediate_size": 64, "image_size": 32, "patch_size": 8},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
}


def text_checkpoint(folder: Path, architecture: str, **config: Any) -> Any:
    """Write a text encoder of that class of transformers; the model, ready to be called."""
    import transformers

    family = next(name for name in sorted(_SMALL, key=len, reverse=True) if name in architecture)
    settings = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "max_position_embeddings": LONGEST + 2,
        "pad_token_id": 0,
        **_SMALL[family],
        **config,
    }
    made = getattr(transformers, f"{family}Config")(**settings)
    model = saved(folder, getattr(transformers, architecture), made)
    document = tokenizer_document()
    pair = document["post_processor"]["pair"]
    kind = 1 if getattr(made, "type_vocab_size", 1) > 1 else 0
    pair[-1] = {"Sequence": {"id": "B", "type_id": kind}}
    pair.append({"SpecialToken": {"id": "[SEP]", "type_id": kind}})
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    return model


def image_checkpoint(folder: Path, family: str, processor: str, **settings: Any) -> Any:
    """Write a classifier of photos and its processor; the model, and the processor."""
    import transformers

    labels = {n: f"class {n}" for n in range(5)}
    config = getattr(transformers, f"{family}Config")(**_IMAGES[family], id2label=labels)
    model = saved(folder, getattr(transformers, f"{family}ForImageClassification"), config)
    prepare = getattr(transformers, f"{processor}ImageProcessorPil")(**settings)
    prepare.save_pretrained(folder)
    return model, prepare


def clip_checkpoint(folder: Path) -> Any:
    """Write a CLIP; the model, and its processor of photos."""
    import transformers

    text = {**_SIZES, "intermediate_size": 64, "vocab_size": len(SPECIAL) + len(WORDS)}
    tokens = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 3}
    vision = {**_SIZES, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(
        text_config={**text, **tokens, "max_position_embeddings": 20},
        vision_config=vision,
        projection_dim=16,
    )
    model = saved(folder, transformers.CLIPModel, config)
    prepare = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    prepare.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_document()))
    return model, prepare


def whisper_checkpoint(folder: Path) -> Any:
    """Write a Whisper for windows of one second; the model."""
    import transformers

    from tests.support.text_generators import byte_tokenizer

    tokenizer = byte_tokenizer()
    names = ["startoftranscript", "en", "de", "transcribe", "translate", "startofprev"]
    tokenizer.add_special_tokens([f"<|{name}|>" for name in (*names, "notimestamps")])
    stop = tokenizer.token_to_id("<|endoftext|>")
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "num_mel_bins": 80}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = transformers.WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        **sizes,
        **heads,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50,
        max_target_positions=40,
        decoder_start_token_id=tokenizer.token_to_id("<|startoftranscript|>"),
        bos_token_id=stop,
        eos_token_id=stop,
        pad_token_id=stop,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = saved(folder, transformers.WhisperForConditionalGeneration, config, 12)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token_id": stop, "is_multilingual": True, "suppress_tokens": [97, 98]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return model


def saved(folder: Path, kind: Any, config: Any, scale: float = 4) -> Any:
    """A model of that class with random weights, written to the folder."""
    import torch

    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(scale)
    model.save_pretrained(folder)
    return model

"""Write a small BLIP with random weights, as transformers saves its checkpoints.

    pip install 'shoal[export]'
    python examples/captions/make_checkpoint.py FOLDER

For trying `shoal export blip` and everything after it without a download. Its captions make no
sense, because it was never trained.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

PAD, UNKNOWN, START, STOP = "[PAD]", "[UNK]", "[DEC]", "[SEP]"
_WORDS = (
    "a the two three small large red green blue white black old young happy dog cat bird horse "
    "car boat tree house man woman child group street beach river hill table chair window light "
    "sky cloud sun moon flower stone wall road bridge garden kitchen plate cup book bed couch "
    "sits stands runs sleeps looks plays holds eats rides waits on in under over near behind "
    "beside with and of for from to by is are was photo picture view front back side middle "
    "long short round bright dark wooden glass metal wet dry open closed empty full"
)
_PIECES = "##s ##ing ##ed ##er ##ly . , ! ' \" - ? ; : ( )"


@dataclass(frozen=True, slots=True)
class BlipSize:
    """The size of the model; very small by default."""

    image: int = 32
    patch: int = 8
    vision_width: int = 24
    vision_layers: int = 2
    width: int = 32
    layers: int = 2
    heads: int = 4
    inner: int = 2  # times the width, between two linear layers
    positions: int = 64
    vocabulary: int = 0  # at least the number of words
    gain: float = 1.0  # of weights; lower for more layers, which would amplify small errors


def blip_checkpoint(folder: Path, size: BlipSize | None = None, *, seed: int = 0) -> Any:
    """Write a captioning model and return it, ready to `generate`."""
    import torch
    from transformers import BlipConfig, BlipForConditionalGeneration

    size = size or BlipSize()
    tokenizer = word_tokenizer(size.vocabulary)
    start, stop, pad = (tokenizer.token_to_id(token) for token in (START, STOP, PAD))
    torch.manual_seed(seed)
    config = BlipConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": size.width,
            "encoder_hidden_size": size.vision_width,
            "intermediate_size": size.inner * size.width,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "max_position_embeddings": size.positions,
            "bos_token_id": start,
            "sep_token_id": stop,
            "eos_token_id": stop,
            "pad_token_id": pad,
        },
        vision_config={
            "hidden_size": size.vision_width,
            "intermediate_size": size.inner * size.vision_width,
            "num_hidden_layers": size.vision_layers,
            "num_attention_heads": size.heads,
            "image_size": size.image,
            "patch_size": size.patch,
            "initializer_range": 0.02,
        },
    )
    model = BlipForConditionalGeneration(config).eval()
    scale = size.gain * (32 / size.width) ** 0.5  # keeps sums over more terms from growing
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(scale * (60 if "crossattention" in name else 10))
        decoder = model.text_decoder
        words = decoder.bert.embeddings.word_embeddings.weight
        words.mul_(2)
        # Otherwise the two likeliest of thousands of words would be nearly equal.
        words[word_tokenizer().get_vocab_size() :] *= 0.1
        decoder.cls.predictions.bias[stop] += 4
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    preparation = {
        "size": {"height": size.image, "width": size.image},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation))
    return model


def word_tokenizer(size: int = 0) -> Tokenizer:
    """A WordPiece tokenizer with the words of simple captions, padded to `size` words."""
    names = [PAD, UNKNOWN, START, STOP, "[CLS]", *_WORDS.split(), *_PIECES.split()]
    names += [f"word{number}" for number in range(size - len(names))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.post_processor = processors.BertProcessing(
        (STOP, vocabulary[STOP]), ("[CLS]", vocabulary["[CLS]"])
    )
    tokenizer.add_special_tokens([PAD, UNKNOWN, START, STOP, "[CLS]"])
    return tokenizer


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoint")
    blip_checkpoint(target)
    print(f"wrote '{target}': now run shoal export blip {target} captioning/captions")

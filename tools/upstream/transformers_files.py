"""Folders of transformers with small random models and a small tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Saver = Callable[[Path], None]

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

_WORDS = "I am going where you can be. How is the weather? Where is the nearest town?"


def falcon(folder: Path) -> None:
    """A causal language model of Falcon's architecture."""
    from transformers import FalconConfig, FalconForCausalLM

    _save(folder, FalconForCausalLM(FalconConfig(**_SIZES)))


def persimmon(folder: Path) -> None:
    """A causal language model of Persimmon's architecture."""
    from transformers import PersimmonConfig, PersimmonForCausalLM

    _save(folder, PersimmonForCausalLM(PersimmonConfig(**_SIZES, intermediate_size=64)))


def llama(folder: Path) -> None:
    """A causal language model of Llama's architecture."""
    from transformers import LlamaConfig, LlamaForCausalLM

    _save(folder, LlamaForCausalLM(LlamaConfig(**_SIZES, intermediate_size=64)))


def gpt2(folder: Path) -> None:
    """GPT-2 with a token for each byte."""
    from transformers import GPT2Config, GPT2LMHeadModel

    end = _byte_tokens(folder, ("<|endoftext|>",))
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2}
    tokens = {"vocab_size": end + 1, "bos_token_id": end, "eos_token_id": end}
    GPT2LMHeadModel(GPT2Config(**sizes, **tokens)).save_pretrained(folder)


def clip_tokenizer(folder: Path) -> None:
    """The tokenizer of CLIP with a token for each byte."""
    start, end = "<|startoftext|>", "<|endoftext|>"
    _byte_tokens(folder, (start, end), last_of_word="</w>")
    special = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def sentence_embedder(folder: Path) -> None:
    """Sentence-transformers' MiniLM of one layer: texts with the same letters are similar."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel

    sizes = {**_SIZES, "hidden_size": 384, "num_hidden_layers": 1}
    encoder = folder / "encoder"
    BertModel(BertConfig(**sizes, intermediate_size=64)).save_pretrained(encoder)
    letters = tokenizer(words="")
    letters.pad_token = letters.eos_token
    letters.save_pretrained(encoder)
    modules = [models.Transformer(str(encoder)), models.Pooling(384), models.Normalize()]
    SentenceTransformer(modules=modules).save(str(folder), create_model_card=False)


def vit(folder: Path) -> None:
    """ViT of one layer with the widths of the base model, and how it wants its pictures."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    ViTImageProcessor().save_pretrained(folder)
    ViTModel(ViTConfig(num_hidden_layers=1)).save_pretrained(folder)


def _byte_tokens(folder: Path, special: Sequence[str], last_of_word: str = "") -> int:
    """Write the files of a byte-level tokenizer that merges nothing; the id of its last token."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    last = [f"{letter}{last_of_word}" for letter in letters] if last_of_word else []
    vocabulary = {token: number for number, token in enumerate((*letters, *last, *special))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    return len(vocabulary) - 1


def _save(folder: Path, model: Any) -> None:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer(words: str = _WORDS) -> Any:
    """Byte-level tokens, with whole ones for `words`: those of the examples' prompts."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    end = "<end>"
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(
        [words] * 10, vocab_size=_SIZES["vocab_size"], special_tokens=[end], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learned._tokenizer, eos_token=end, bos_token=end, unk_token=end
    )

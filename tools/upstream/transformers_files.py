"""Folders of transformers with small random models and a small tokenizer."""

from __future__ import annotations

from collections.abc import Callable
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


def vit(folder: Path) -> None:
    """ViT of one layer with the widths of the base model, and how it wants its pictures."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    ViTImageProcessor().save_pretrained(folder)
    ViTModel(ViTConfig(num_hidden_layers=1)).save_pretrained(folder)


def _save(folder: Path, model: Any) -> None:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> Any:
    """Byte-level tokens, with whole ones for the words of the examples' prompts."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    end = "<end>"
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(
        [_WORDS] * 10, vocab_size=_SIZES["vocab_size"], special_tokens=[end], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learned._tokenizer, eos_token=end, bos_token=end, unk_token=end
    )

"""Checkpoints of small models that generate text, with random weights, as transformers saves them.

    blip_checkpoint(folder)    captions for photos, with a WordPiece tokenizer (examples/captions)
    gpt2_checkpoint(folder)    texts, with a tokenizer of bytes
    check_texts(server, it)    a server generates the same texts as such a checkpoint

Random weights repeat themselves for ever. These are scaled so that photos matter, texts differ and
most of them end, after few tokens or many. Needs torch and transformers.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_EXAMPLE = Path(__file__).parents[2] / "examples" / "captions" / "make_checkpoint.py"
_spec = importlib.util.spec_from_file_location("make_checkpoint", _EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
_example = sys.modules["make_checkpoint"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_example)
BlipSize = _example.BlipSize
blip_checkpoint = _example.blip_checkpoint
word_tokenizer = _example.word_tokenizer

_END_OF_TEXT = "<|endoftext|>"


def gpt2_checkpoint(
    folder: Path, *, seed: int = 0, vocabulary: int = 0, scale: float = 8, **sizes: int
) -> Any:
    """Write a text model and return it, ready to `generate`. `sizes` are fields of its config."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_tokenizer()
    stop = tokenizer.token_to_id(_END_OF_TEXT)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary or tokenizer.get_vocab_size(),
        **{"n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, **sizes},
        bos_token_id=stop,
        eos_token_id=stop,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(scale)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def check_texts(server: Any, checkpoint: Any, lengths: Sequence[int]) -> None:
    """The server's model gpt2, asked for several texts at once, generates what transformers does."""
    import torch

    def ask(case: tuple[str, int, int]) -> list[int]:
        prompt, beams, length = case
        body = {"text_input": prompt, "num_beams": beams, "max_tokens": length}
        answer = server.post("/v2/models/gpt2/generate", body)
        assert answer.status == 200, answer
        ids: list[int] = np.atleast_1d(answer.json["token_ids"]).tolist()
        return ids

    cases = list(itertools.product(("a", "hello", "été 日本", "x" * 40), (1, 3), lengths))
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, cases))
    tokenizer = byte_tokenizer()
    for (prompt, beams, length), ids in zip(cases, found, strict=True):
        given = torch.tensor([tokenizer.encode(prompt).ids])
        theirs = checkpoint.generate(
            given,
            attention_mask=torch.ones_like(given),
            pad_token_id=0,
            num_beams=beams,
            max_new_tokens=length,
            do_sample=False,
        )
        assert ids == theirs[0].tolist()[given.shape[1] :]


def byte_tokenizer() -> Tokenizer:
    """A tokenizer with a token for each byte, so that most letters of the world take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_END_OF_TEXT])
    return tokenizer

"""Sounds for a small Whisper, and the texts that transformers makes of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

RATE = 16_000
SUPPRESSED = [97, 98]  # tokens, by the generation config of `whisper_checkpoint`


def tones(seconds: float, *hertz: float) -> np.ndarray:
    """Some tones, one after the other."""
    time = np.arange(int(seconds * RATE)) / RATE
    parts = np.array_split(time, len(hertz))
    waves = [np.sin(2 * np.pi * pitch * part) for pitch, part in zip(hertz, parts, strict=True)]
    return (0.5 * np.concatenate(waves)).astype(np.float32)


def file_of(samples: np.ndarray, rate: int = RATE, form: str = "WAV", kind: str = "FLOAT") -> bytes:
    """The sound as a file."""
    import soundfile

    made = io.BytesIO()
    soundfile.write(made, samples, rate, format=form, subtype=kind)
    return made.getvalue()


def expected_text(
    model: Any,
    tokenizer: Any,
    samples: np.ndarray,
    language: str = "en",
    purpose: str = "transcribe",
    before: Sequence[int] = (),
) -> str:
    """The text that transformers generates, token by token."""
    import torch
    import transformers

    extract = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
    names = ("startoftranscript", language, purpose, "notimestamps")
    prompt = tokenizer.convert_tokens_to_ids([f"<|{name}|>" for name in names])
    ids = [*before, *prompt]
    begun = len(ids)
    with torch.no_grad():
        seen = model.get_encoder()(features)
        while len(ids) < model.config.max_target_positions:
            given = torch.tensor([ids])
            logits = model(encoder_outputs=seen, decoder_input_ids=given).logits[0, -1]
            logits[SUPPRESSED] = -torch.inf
            token = int(logits.argmax())
            if token == model.config.eos_token_id:
                break
            ids.append(token)
    text: str = tokenizer.decode(ids[begun:], skip_special_tokens=True)
    return text.strip()

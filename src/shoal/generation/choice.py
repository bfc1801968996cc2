"""One token after the other: the likeliest one, or one sampled by probability."""

from __future__ import annotations

import numpy as np

from shoal.generation.options import FinishReason, Generated, GenerationOptions, without


class TokenSampler:
    """The tokens of one text: greedy search, or sampling with a temperature."""

    width = 1

    def __init__(self, options: GenerationOptions) -> None:
        self.options = options
        self._tokens: list[int] = []
        self._random = np.random.default_rng(options.seed) if options.temperature > 0 else None

    @property
    def excludes_stop(self) -> bool:
        """Whether the next token may not be a stop token: the text is too short."""
        return len(self._tokens) < self.options.min_tokens and bool(self.options.stop_ids)

    def uniform(self) -> float:
        """A random number for the next token, from 0 to 1; 0 for greedy search."""
        return 0.0 if self._random is None else float(self._random.random())

    def advance(self, logits: np.ndarray, most_likely: int) -> int:
        """The next token. `most_likely` is where `logits`, one row, are largest."""
        if self.excludes_stop:
            logits = without(logits, self.options.stop_ids)
            most_likely = int(logits.argmax())
        if self._random is None:
            return self.accept(most_likely)
        return self.accept(sample(logits, self.options, self._random))

    def accept(self, token: int) -> int:
        """Take this as the next token."""
        self._tokens.append(token)
        return token

    def result(self) -> Generated | None:
        """The text, as soon as it is complete."""
        tokens, options = self._tokens, self.options
        if tokens and tokens[-1] in options.stop_ids:
            return Generated(tokens, FinishReason.STOP)
        if len(tokens) >= options.max_tokens:
            return Generated(tokens, FinishReason.LENGTH)
        return None


def sample(logits: np.ndarray, options: GenerationOptions, random: np.random.Generator) -> int:
    """A token sampled by probability from the `top_k` likeliest, within `top_p`."""
    scaled = logits.astype(np.float64) / options.temperature
    count = options.top_k if 0 < options.top_k < scaled.size else scaled.size
    if count < scaled.size:
        among = np.argpartition(scaled, scaled.size - count)[-count:]
    else:
        among = np.arange(scaled.size)
    weights = np.exp(scaled[among] - scaled.max())
    weights /= weights.sum()
    if options.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        # The token that reaches `top_p` is included, so at least one remains.
        kept = order[: int(np.searchsorted(np.cumsum(weights[order]), options.top_p)) + 1]
        among, weights = among[kept], weights[kept] / weights[kept].sum()
    return int(random.choice(among, p=weights))

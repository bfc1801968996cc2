"""The smallest language model: the next word is one that has followed the last one in a story."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import Any

import numpy as np

import triton_python_backend_utils as pb_utils

STORY = """
the fish swims in the sea . the old fish swims under the boat and the small fish swims after the
old fish . the boat sails over the sea and the sea carries the boat . a shark sees the small fish
and the small fish sees the shark . the shark swims fast but the shoal swims together . a shoal of
small fish swims as one and the shark goes away . the sea is calm and the boat sails home .
"""


class TritonPythonModel:
    """Sends one response per word, like Triton's LLM backends."""

    def initialize(self, _args: dict[str, str]) -> None:
        """Learn which words follow which."""
        self.after: dict[str, list[str]] = {}
        for word, following in pairwise(STORY.split()):
            self.after.setdefault(word, []).append(following)

    def execute(self, requests: list[Any]) -> None:
        """Generate a story for each request; response senders send the words."""
        for request in requests:
            self.tell(request)

    def tell(self, request: Any) -> None:
        """Continue from the last known word of the prompt to the end of a sentence."""
        prompt = value(request, "text_input", b"").decode()
        most = int(value(request, "max_tokens", 40))
        source = random.Random(int(value(request, "seed", 0)))  # noqa: S311 - a story
        bold = value(request, "temperature", 1.0) > 0
        known = [word for word in re.findall(r"\w+", prompt.lower()) if word in self.after]
        word = known[-1] if known else "the"
        sender = request.get_response_sender()
        for count in range(most):
            if request.is_cancelled():
                break
            choices = self.after[word]
            word = source.choice(choices) if bold else max(choices, key=choices.count)
            text = word if word == "." or not count else f" {word}"
            tensor = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object))
            sender.send(pb_utils.InferenceResponse([tensor]))
            if word == ".":
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def value(request: Any, name: str, default: Any) -> Any:
    """Return the only element of an input, or the default if it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]

"""The settings of a model that generates text: its tokens, where texts begin and end, its options.

    "a photo of" --prompt_ids--> tokens --model--> tokens --decode--> "a photo of two cats"

Shared by the task that captions photos and by the backend that generates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from shoal.errors import InvalidArgument
from shoal.generation.options import GenerationOptions
from shoal.tasks.request import TaskRequest
from shoal.tasks.settings import TaskSettings
from shoal.tasks.tokenizer import read_tokenizer

MOST_BEAMS = 32
# A parameter of models of the backend `generation`: concurrent texts, each beam counts as one.
MAX_SEQUENCES, DEFAULT_SEQUENCES = "max_sequences", 16
_DEFAULT_TOKENS = 20
_LONGEST_TEXT = 100_000  # characters of a prompt
_LONGEST = 1 << 20  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class TextSettings:
    """What task.json says about text generation. Any thread may call any method."""

    tokenizer: Tokenizer
    start_token: int | None  # precedes every prompt
    pad_token: int
    stop_ids: frozenset[int]
    prompt: str  # the default
    max_length: int  # tokens, prompt included
    defaults: GenerationOptions
    most_beams: int

    @classmethod
    def of(cls, settings: TaskSettings, most_beams: int = MOST_BEAMS) -> TextSettings:
        """Read the settings. Raises ConfigError."""
        tokenizer = read_tokenizer(settings)
        size = tokenizer.get_vocab_size()
        start = settings.value("start_token")
        if start is not None and not _is_token(start, size):
            settings.wrong("start_token", f"found {start!r}", f"Write a number below {size}")
        stops = settings.value("stop_tokens", [])
        if type(stops) is not list or not all(_is_token(stop, size) for stop in stops):
            settings.wrong("stop_tokens", f"found {stops!r}", f"Write numbers below {size}: [102]")
        max_length = settings.integer("max_length", 512, lowest=2, highest=_LONGEST)
        max_tokens = settings.integer("max_tokens", _DEFAULT_TOKENS, lowest=1, highest=_LONGEST)
        most_beams = min(most_beams, MOST_BEAMS)
        defaults = GenerationOptions(
            min(max_tokens, max_length - 1),
            frozenset(stops),
            settings.integer("num_beams", 1, lowest=1, highest=most_beams),
            settings.number("length_penalty", 1.0, lowest=-10, highest=10),
            settings.flag("early_stopping", False),
            settings.integer("min_tokens", 0, lowest=0, highest=max_tokens),
        )
        return cls(
            tokenizer,
            start,
            settings.integer("pad_token", 0, lowest=0, highest=size - 1),
            frozenset(stops),
            settings.text("prompt"),
            max_length,
            defaults,
            most_beams,
        )

    def prompt_ids(self, text: str) -> list[int]:
        """The tokens of a prompt. Raises InvalidArgument if it is too long."""
        if len(text) > _LONGEST_TEXT:
            raise InvalidArgument(
                f"the prompt has {len(text):,} characters, at most {_LONGEST_TEXT:,} are allowed"
            )
        start = [] if self.start_token is None else [self.start_token]
        ids = [*start, *self.tokenizer.encode(text, add_special_tokens=False).ids]
        return self.checked(ids)

    def checked(self, ids: list[int]) -> list[int]:
        """The same tokens. Raises InvalidArgument if there are none, too many or unknown ones."""
        if not ids:
            raise InvalidArgument("the prompt is empty: send the beginning of a text")
        if len(ids) >= self.max_length:
            raise InvalidArgument(
                f"the prompt has {len(ids)} tokens; prompt and text may have {self.max_length} in "
                f"all. Send a shorter one"
            )
        size = self.tokenizer.get_vocab_size()
        unknown = next((token for token in ids if not 0 <= token < size), None)
        if unknown is not None:
            raise InvalidArgument(
                f"the prompt has the token {unknown}; tokens are numbers from 0 to {size - 1}"
            )
        return ids

    def options(self, request: TaskRequest, prompt_tokens: int) -> GenerationOptions:
        """The options of a request, given the length of its prompt. Raises InvalidArgument."""
        defaults, room = self.defaults, self.max_length - prompt_tokens
        max_tokens = request.integer(
            "max_tokens", min(defaults.max_tokens, room), lowest=1, highest=room
        )
        num_beams = request.integer(
            "num_beams", defaults.num_beams, lowest=1, highest=self.most_beams
        )
        temperature = request.number("temperature", 0.0, lowest=0, highest=100)
        if temperature > 0 and num_beams > 1:
            raise InvalidArgument(
                "'num_beams' searches for the likeliest text and 'temperature' samples one: send "
                "only one of the two"
            )
        seed = request.integer("seed", 0, lowest=-(1 << 63), highest=(1 << 63) - 1)
        return GenerationOptions(
            max_tokens,
            self.stop_ids,
            num_beams,
            request.number("length_penalty", defaults.length_penalty, lowest=-10, highest=10),
            request.flag("early_stopping", defaults.early_stopping),
            request.integer(
                "min_tokens", min(defaults.min_tokens, room), lowest=0, highest=max_tokens
            ),
            temperature,
            request.integer("top_k", 0, lowest=0, highest=1 << 31),
            request.number("top_p", 1.0, lowest=0, highest=1),
            seed % (1 << 64) if request.has("seed") else None,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens as text, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def without_stop(self, ids: Sequence[int]) -> list[int]:
        """The tokens without the stop token at the end."""
        return list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)


def _is_token(value: object, size: int) -> bool:
    return type(value) is int and 0 <= value < size

"""The tokenizer of a model: tokenizer.json in its folder, read by the `tokenizers` library."""

from __future__ import annotations

import os

from tokenizers import Tokenizer

from shoal.tasks.settings import TaskSettings

_SETTING = "tokenizer"
_PAD_TOKENS = ("[PAD]", "<pad>", "<|padding|>")

# The library has its own threads and warns on stderr when a process that used them forks, unless
# this variable is set. Our forks exec another program at once, so they are safe.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def read_tokenizer(settings: TaskSettings) -> Tokenizer:
    """The tokenizer that the settings name, tokenizer.json by default.

    Some files truncate and pad to the length used in training. Tasks decide that themselves, so
    both are switched off here. Raises ConfigError.
    """
    path = settings.file(_SETTING, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
        settings.wrong(
            _SETTING,
            f"'{path.name}' is not a tokenizer: {error}",
            "Write the name of a tokenizer.json as the tokenizers library saves it",
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def pad_token_of(tokenizer: Tokenizer) -> int:
    """The padding token; 0 if the tokenizer has none."""
    found = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    return next((number for number in found if number is not None), 0)

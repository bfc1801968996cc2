"""The tokenizer of a model: tokenizer.json in its folder, read by the `tokenizers` library."""

from __future__ import annotations

import os

from tokenizers import Tokenizer

from shoal.tasks.settings import TaskSettings

_SETTING = "tokenizer"
_FILLERS = ("[PAD]", "<pad>", "<|padding|>")

# The library has threads of its own, and warns on stderr whenever a process that used them forks,
# unless somebody has said whether it may. What we fork is another program at once, so it may.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def read_tokenizer(settings: TaskSettings) -> Tokenizer:
    """The tokenizer that the settings name, tokenizer.json unless told otherwise.

    Some files truncate and pad to the length somebody trained with. A task decides that by
    itself, so both are undone here. Raises ConfigError.
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


def filler_of(tokenizer: Tokenizer) -> int:
    """The token that rows are filled up with; 0 where the tokenizer has none for that."""
    found = (tokenizer.token_to_id(token) for token in _FILLERS)
    return next((number for number in found if number is not None), 0)

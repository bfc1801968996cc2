"""The files of keys: read at start, and again when they change.

key file, JWKS, secret --read--> entries, TokenVerifier --on the event loop--> Access.replace
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from shoal.access.access import Access
from shoal.access.caller import ALL
from shoal.access.entry import KeyEntry
from shoal.access.key_file import permission_problem, read_keys
from shoal.access.tokens import TokenSettings, TokenVerifier

logger = logging.getLogger(__name__)

PARENT_KEY = "SHOAL_PARENT_KEY_SHA256"  # an environment variable

Post = Callable[[Callable[[], None]], Any]  # runs a function on the event loop
AddReload = Callable[[str, Callable[[], None], Iterable[str]], None]  # see `Reloads.add`


class KeyFiles:
    """Keeps an `Access` up to date with its files."""

    def __init__(self, key_file: str, tokens: TokenSettings | None, **settings: Any) -> None:
        """Reads the files; raises a ShoalError for one that cannot be used. `settings` are those
        of `Access`."""
        self._key_file = key_file
        self._tokens = tokens
        self.access = Access(
            self._read_keys(),
            tokens=TokenVerifier(tokens) if tokens is not None else None,
            **settings,
        )

    def watch(self, add: AddReload, post: Post) -> None:
        """Have the files read again when they change; `post` takes the result to the loop."""
        if self._key_file:
            add("the keys of --api-keys", partial(self.reload_keys, post), [self._key_file])
        if self._tokens is not None:
            add("the keys of tokens", partial(self.reload_tokens, post), self._tokens.files)

    def reload_keys(self, post: Post) -> None:
        """Read the key file. If this raises, the keys stay as they were."""
        post(partial(self.access.replace, self._read_keys()))

    def reload_tokens(self, post: Post) -> None:
        """Read the files for tokens. If this raises, they stay as they were."""
        assert self._tokens is not None
        post(partial(self.access.replace_tokens, TokenVerifier(self._tokens)))

    def _read_keys(self) -> list[KeyEntry]:
        if not self._key_file:
            return _parent_entry()
        path = Path(self._key_file)
        entries = read_keys(path)
        problem = permission_problem(path)
        if problem:
            logger.warning("%s", problem)
        return entries + _parent_entry()


def _parent_entry() -> list[KeyEntry]:
    """The key of the program that holds this server as its child; a file cannot have its name."""
    digest = os.environ.get(PARENT_KEY, "")
    return [KeyEntry("parent:", digest, apis=(ALL,), upload=True)] if digest else []

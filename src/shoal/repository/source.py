"""One repository of a server, wherever it is: its models by key, and why they cannot be read.

What cannot be read stays as it was, and each change of that is logged once.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from shoal.repository.layout import Fingerprint
from shoal.repository.namespaces import plain_name

logger = logging.getLogger(__name__)

WHOLE = ""  # in place of a model's key: the repository itself


class ModelSource(ABC):
    """One repository: a folder of this machine, or a remote one. Any thread may call any method."""

    def __init__(
        self,
        shown: str,
        path: Path,
        *,
        namespaced: bool,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`shown` is its name in texts and keys, `path` the parent of its model folders; `names`
        are those of models that are not called as their folders, by folder."""
        self.shown = shown
        self.path = path
        self._namespaced = namespaced
        self._names = names
        self.given_keys = {name: self._key(folder) for folder, name in names.items()}
        self.known: Mapping[str, tuple[Path, Fingerprint]] = {}  # as `contents` last said
        self._noting = threading.Lock()  # guards _problems, and the order of what is logged
        self._problems: Mapping[str, str] = {}  # by key of a model; WHOLE: the repository

    @abstractmethod
    def models(self) -> dict[str, Path]:
        """The folders of models by key; none if the repository cannot be read."""

    @abstractmethod
    def contents(self) -> Mapping[str, tuple[Path, Fingerprint]]:
        """The folders and fingerprints of models by key, with those that can be read no more."""

    def problems(self) -> dict[str, str]:
        """Why it or models in it cannot be read, as sentences by key of the model."""
        self.note_silence()
        return {key: self._sentence(key, reason) for key, reason in self._problems.items()}

    def why_missing(self, key: str) -> str:
        """Why it may not have a model that is expected in it."""
        del key
        problem = self._problems.get(WHOLE)
        return "" if problem is None else self._sentence(WHOLE, problem)

    def why_kept(self, key: str) -> str:
        """Why a model that was loaded from it does not follow its folder."""
        problems = self._problems
        for what in (WHOLE, key):
            if what in problems:
                return self._sentence(what, problems[what])
        return ""

    def note_silence(self) -> bool:
        """Whether a read has made no progress for a while, which is a problem then."""
        return False

    def _key(self, folder: str) -> str:
        name = self._names.get(folder, folder)
        return f"{self.shown}/{name}" if self._namespaced else name

    # ---- what is known to be wrong

    def _note_whole(self, reason: str) -> None:
        """The repository can be read, or not and why; what is known of models stays."""
        if not reason and WHOLE not in self._problems:
            return
        with self._noting:
            now = {key: text for key, text in self._problems.items() if key != WHOLE}
            self._replace({WHOLE: reason, **now} if reason else now)

    def _note(self, problems: Mapping[str, str]) -> None:
        """The models that cannot be read, after all of them were."""
        with self._noting:
            whole = self._problems.get(WHOLE)
            self._replace({WHOLE: whole, **problems} if whole is not None else problems)

    def _replace(self, now: Mapping[str, str]) -> None:
        before, self._problems = self._problems, now
        for key, reason in now.items():
            if before.get(key) != reason:
                logger.error("%s; what is loaded continues to serve", self._sentence(key, reason))
        for key in before:
            if key not in now:
                logger.info("%s can be read again", self._what(key))

    def _sentence(self, key: str, reason: str) -> str:
        return f"{self._what(key)} cannot be read: {reason}"

    def _what(self, key: str) -> str:
        if key == WHOLE:
            return f"the model repository '{self.shown}'"
        return f"the folder of model '{plain_name(key)}' in '{self.shown}'"

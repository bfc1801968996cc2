"""Reading `parameters` of a config, with --backend-config=<backend>,… behind it.

What a model says goes before what is said for all models of its backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.config.model import ModelConfig
from shoal.errors import ConfigError

DEFAULT_MAX_BATCH_SIZE = 4  # Triton's, where a model can batch and its config does not say

_MAX_BATCH_SIZE = "default-max-batch-size"
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Parameters:
    """What one model's config and its backend's settings say. Wrong values raise ConfigError.

    Every method takes the names a parameter has, the one to recommend first.
    """

    def __init__(
        self, backend: str, config: ModelConfig, settings: Mapping[str, str], file: str
    ) -> None:
        self._backend = backend
        self._values = {key: item.string_value for key, item in config.parameters.items()}
        self._settings = settings
        self._file = file

    def text(self, *keys: str) -> str:
        """The text as written; "" where there is none."""
        return self._find(keys)[1]

    def count(self, *keys: str) -> int:
        """A number of something; 0 where there is none."""
        key, text = self._find(keys)
        if text and not text.isdecimal():
            raise self.wrong(key, text, "a whole number, 0 for the default")
        return int(text or 0)

    def number(self, *keys: str) -> float | None:
        """Any number, or None."""
        key, text = self._find(keys)
        try:
            return float(text) if text else None
        except ValueError:
            raise self.wrong(key, text, "a number") from None

    def flag(self, *keys: str) -> bool | None:
        """Yes, no, or None where it is not said."""
        key, text = self._find(keys)
        if not text:
            return None
        answer = _TRUTH.get(text.strip().lower())
        if answer is None:
            raise self.wrong(key, text, "true or false")
        return answer

    def choice(self, allowed: Sequence[str], *keys: str) -> str:
        """One of `allowed`, whatever its case; "" where there is none."""
        key, text = self._find(keys)
        match = next((word for word in allowed if word.lower() == text.strip().lower()), "")
        if text and not match:
            raise self.wrong(key, text, f"one of {', '.join(allowed)}")
        return match

    def default_max_batch_size(self, default: int = DEFAULT_MAX_BATCH_SIZE) -> int:
        """What max_batch_size becomes where a model can batch and its config does not say."""
        text = self._settings.get(_MAX_BATCH_SIZE, str(default))
        try:
            return int(text)
        except ValueError:
            raise self.wrong(_MAX_BATCH_SIZE, text, "a whole number") from None

    def wrong(self, key: str, text: str, expected: str) -> ConfigError:
        """The error for a value that cannot be, which names the place where it was written."""
        if key in self._values:
            return ConfigError(
                f"expected {expected}, found {text!r}",
                file=self._file,
                field=f"parameters['{key}']",
            )
        return ConfigError(f"--backend-config={self._backend},{key}={text}: expected {expected}")

    def _find(self, keys: Sequence[str]) -> tuple[str, str]:
        for values in (self._values, self._settings):
            for key in keys:
                if values.get(key):
                    return key, values[key]
        return keys[0], ""

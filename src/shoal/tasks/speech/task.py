"""The task `transcription`: the words of speech, in its language or in English.

    file --threads: decode, windows, features--> model, a text for each window --> one text

Windows of a long file are transcribed concurrently, and share the decoder's steps with those of
other calls. The language, if the call does not name it, is that of the first window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.core.tensor import Buffer
from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.request import File, TaskRequest
from shoal.tasks.speech import audio
from shoal.tasks.speech.features import RATE, SpeechFeatures
from shoal.tasks.text_settings import TextSettings

FEATURES, IDS = "input_features", "input_ids"
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_PURPOSES = ("transcribe", "translate")
_LONGEST_PROMPT = 10_000  # characters


class _Sound(NamedTuple):
    data: Buffer
    title: str


class _Window(NamedTuple):
    """A part of the sound as the model reads it."""

    start: float  # in seconds
    end: float
    features: np.ndarray


class Transcription(Task):
    """Transcribes and translates speech."""

    name = "transcription"
    operation = "transcribe"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        spec = context.signature.inputs.get(FEATURES)
        if spec is None or len(spec.dims) != 2 or min(spec.dims) < 1:
            raise ConfigError(
                f"the task 'transcription' needs an input '{FEATURES}' of fixed size: pitches and "
                f"times",
                file="config.pbtxt",
                field="input",
                fix="Make the model with shoal export, from a checkpoint of Whisper",
            )
        self._features = SpeechFeatures(*spec.dims)
        self._texts = TextSettings.of(settings)
        self._most_secs = settings.number("max_seconds", 1800, lowest=1, highest=86_400)
        multilingual = settings.flag("multilingual", True)
        find = self._texts.tokenizer.token_to_id
        self._start = self._token("<|startoftranscript|>")
        self._plain = self._token("<|notimestamps|>")
        self._previous = find("<|startofprev|>")
        self._languages: Mapping[str, int] = {}
        self._purposes: Mapping[str, int] = {}
        if multilingual:
            vocabulary = self._texts.tokenizer.get_vocab()
            matches = ((_LANGUAGE.fullmatch(token), at) for token, at in vocabulary.items())
            self._languages = {found[1]: at for found, at in matches if found}
            self._purposes = {name: self._token(f"<|{name}|>") for name in _PURPOSES}
        self._read_sound = context.stage("preprocess", self._windows)

    def _token(self, token: str) -> int:
        found = self._texts.tokenizer.token_to_id(token)
        if found is None:
            self.context.settings.wrong(
                "tokenizer", f"it has no token {token}", "Use the tokenizer of the checkpoint"
            )
        return int(found)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """`text`, `language`, `duration` in seconds and `segments` with `start`, `end`, `text`.

        Raises InvalidArgument for sound that cannot be read or is too long, for an unknown
        language, and for options out of range.
        """
        purpose = request.text("task", longest=20, default=_PURPOSES[0])
        language = request.text("language", longest=20, default="").lower()
        self._check(purpose, language)
        temperature = request.number("temperature", 0.0, lowest=0, highest=1)
        before = self._before(request.text("prompt", longest=_LONGEST_PROMPT, default=""))
        windows = await self._read_sound(_sound(request))
        if self._languages and not language:
            language = await self._detected(windows[0])
        start = [*before, self._start]
        if self._languages:
            start += [self._languages[language], self._purposes[purpose]]
        prompt = [*start, self._plain]
        texts = await gather_or_cancel(
            self._text(window, prompt, temperature) for window in windows
        )
        return {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "task": purpose,
            "language": language or "en",
            "duration": round(windows[-1].end, 3),
            "text": " ".join(text for text in texts if text),
            "segments": [
                {"id": at, "start": round(one.start, 3), "end": round(one.end, 3), "text": text}
                for at, (one, text) in enumerate(zip(windows, texts, strict=True))
            ],
        }

    # ---- the request

    def _check(self, purpose: str, language: str) -> None:
        if purpose not in _PURPOSES:
            raise InvalidArgument(f"'task' must be transcribe or translate, not {purpose!r}")
        if not self._languages and (purpose == "translate" or language not in ("", "en")):
            raise InvalidArgument("this model knows English only, and does not translate")
        if language and self._languages and language not in self._languages:
            known = ", ".join(sorted(self._languages))
            raise InvalidArgument(f"'language' must be one of {known}, not {language!r}")

    def _before(self, prompt: str) -> list[int]:
        """The tokens of what was said before, or of words that occur: half of the model's text."""
        if not prompt.strip() or self._previous is None:
            return []
        most = self._texts.max_length // 2 - 1
        encoded = self._texts.tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False)
        return [int(self._previous), *encoded.ids[-most:]]

    # ---- before the model, on threads

    def _windows(self, sounds: Sequence[_Sound]) -> list[Sequence[_Window] | Exception]:
        found: list[Sequence[_Window] | Exception] = []
        for sound in sounds:
            try:
                samples = audio.decode(sound.data, sound.title, RATE, self._most_secs)
                found.append(
                    [
                        _Window(first / RATE, (first + len(some)) / RATE, self._features(some))
                        for first, some in audio.windows(samples, self._features.samples, RATE)
                    ]
                )
            except InvalidArgument as error:
                found.append(error)
        return found

    # ---- the model

    async def _detected(self, window: _Window) -> str:
        """The language of a window: the token that the model begins a text with."""
        (token,) = await self._tokens(window, [self._start], {"max_tokens": 1, "min_tokens": 0})
        return next((name for name, at in self._languages.items() if at == token), "en")

    async def _text(self, window: _Window, prompt: Sequence[int], temperature: float) -> str:
        tokens = await self._tokens(window, prompt, {"temperature": temperature})
        return self._texts.decode(tokens).strip()

    async def _tokens(
        self, window: _Window, prompt: Sequence[int], options: Mapping[str, Any]
    ) -> list[int]:
        inputs = {FEATURES: window.features, IDS: np.array(prompt, np.int64)}
        tokens: list[int] = []
        responses = self.context.infer_stream(inputs, (), {**options, "stream": False})
        async for response in responses:
            tokens += response["token_ids"].reshape(-1).tolist()
        return tokens


def _sound(request: TaskRequest) -> _Sound:
    """The one file of a call."""
    files: Sequence[File] = request.files
    if len(files) != 1:
        raise InvalidArgument(
            f"the request has {len(files)} files, and one is expected: send it with "
            f"curl -F file=@speech.wav"
        )
    name = files[0].name
    return _Sound(files[0].data, f"the file '{name}'" if name else "the file")

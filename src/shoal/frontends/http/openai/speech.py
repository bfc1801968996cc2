"""POST /v1/audio/transcriptions and /v1/audio/translations: calls of the task `transcription`.

a form with file, model, language …  -->  TaskRequest  -->  JSON, text, or subtitles
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import InvalidArgument
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.fields import Fields
from shoal.frontends.http.responses import send_json
from shoal.tasks.request import File, TaskRequest

OPERATION = "transcribe"
_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_PASSED = ("language", "prompt", "temperature")


def read(fields: Fields, files: Sequence[File], purpose: str) -> TaskRequest:
    """The request for the task. Raises OpenAiError, which names the invalid field."""
    sound = [file for file in files if file.field in ("file", "")]
    if len(sound) != 1:
        raise OpenAiError("'file' is missing: send one sound file in a form", "file")
    if fields.get("stream") in (True, "true", "True", "1"):
        raise OpenAiError("'stream' is not supported for speech", "stream")
    values = {name: fields.get(name) for name in _PASSED if fields.get(name) not in (None, "")}
    return TaskRequest(sound, {**values, "task": purpose})


def format_of(fields: Fields) -> str:
    """The requested format of the response. Raises OpenAiError."""
    chosen = fields.get("response_format") or _FORMATS[0]
    if chosen not in _FORMATS:
        raise OpenAiError(
            f"'response_format' must be one of {', '.join(_FORMATS)}", "response_format"
        )
    return str(chosen)


def translated(error: InvalidArgument) -> OpenAiError:
    """The task's error with the field that it is about."""
    named = next((name for name in _PASSED if f"'{name}'" in error.message), "file")
    return OpenAiError(error.message, named)


def respond(exchange: Exchange, found: Mapping[str, Any], form: str) -> None:
    """Send the result in the requested format."""
    if form == "json":
        send_json(exchange, {"text": found["text"]})
    elif form == "verbose_json":
        names = ("task", "language", "duration", "text", "segments")
        send_json(exchange, {name: found[name] for name in names})
    else:
        text = found["text"] + "\n" if form == "text" else subtitles(found["segments"], form)
        kind = b"text/vtt; charset=utf-8" if form == "vtt" else b"text/plain; charset=utf-8"
        exchange.respond(200, [(b"Content-Type", kind)], [text.encode()])


def subtitles(segments: Sequence[Mapping[str, Any]], form: str) -> str:
    """The segments as SubRip or WebVTT."""
    point = "," if form == "srt" else "."
    blocks = ["WEBVTT\n"] if form == "vtt" else []
    for number, segment in enumerate(segments, 1):
        times = " --> ".join(_clock(segment[end], point) for end in ("start", "end"))
        head = f"{number}\n" if form == "srt" else ""
        blocks.append(f"{head}{times}\n{segment['text']}\n")
    return "\n".join(blocks)


def _clock(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}{point}{thousandths:03}"

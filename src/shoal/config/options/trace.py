"""The trace options, from `--trace-config` and the older `--trace-…` flags.

level=TIMESTAMPS, rate=100, mode=opentelemetry, opentelemetry,url=…  -->  TraceOptions
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from shoal.config.options.option import NamedSetting, OptionError

TRITON = "triton"
OPENTELEMETRY = "opentelemetry"
LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
MOST_RATE = 2**32 - 1
MOST_COUNT = 2**31 - 1

# Accepted words for a level; MIN and MAX are older than the two kinds of detail.
_LEVEL_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("off", "false"), "OFF"),
    **dict.fromkeys(("timestamps", "true", "on", "min", "max"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
_SERVICE = ("service.name", "triton-inference-server")
_ENDPOINT = "http://localhost:4318"
_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """Where spans are sent, and how many at a time."""

    url: str = _ENDPOINT + _PATH
    resource: Mapping[str, str] = field(default_factory=lambda: dict([_SERVICE]))
    headers: Mapping[str, str] = field(default_factory=dict)
    max_queue_size: int = 2048  # spans; more are dropped
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How requests are traced initially."""

    levels: tuple[str, ...] = ()  # none: off
    rate: int = 1000
    count: int = -1
    mode: str = TRITON
    file: str = ""
    log_frequency: int = 0
    otlp: OtlpOptions = field(default_factory=OtlpOptions)

    def problem(self) -> str:
        """Why nothing is traced although a level is set; "" if there is no reason."""
        if not self.levels:
            return ""
        if self.mode == OPENTELEMETRY:
            if "TENSORS" in self.levels:
                return "spans contain no tensors: level=TENSORS has no effect in mode opentelemetry"
        elif not self.file:
            return "no trace file is set: add --trace-config=triton,file=<file>"
        elif not self.rate:
            return "rate=0 traces no request: use it only in mode opentelemetry"
        return ""


def levels(words: Iterable[str], flag: str) -> tuple[str, ...]:
    """The levels in `words`, in order; OFF among them disables all."""
    found = set()
    for word in words:
        level = _LEVEL_WORDS.get(word.lower())
        if level is None:
            raise OptionError(
                f"{flag} takes {', '.join(LEVELS[:-1])} or {LEVELS[-1]}; found '{word}'"
            )
        found.add(level)
    return () if "OFF" in found else tuple(level for level in LEVELS[1:] if level in found)


def read(
    settings: Iterable[NamedSetting],
    older: TraceOptions,
    environment: Mapping[str, str] = os.environ,
) -> TraceOptions:
    """The options of `settings`, on top of `older`, those of the deprecated flags.

    Raises OptionError for an unknown setting or an invalid value.
    """
    given: dict[str, list[str]] = {}
    for mode, key, value in settings:
        place = f"{mode.lower()}," if mode else ""
        if place + key not in _KNOWN:
            raise OptionError(
                f"--trace-config has no setting '{place}{key}'; it has {', '.join(_KNOWN)}"
            )
        given.setdefault(place + key, []).append(value)

    def last(key: str, otherwise: str) -> str:
        return given[key][-1] if key in given else otherwise

    def number(key: str, otherwise: int, least: int, most: int) -> int:
        return _number(f"--trace-config={key}", last(key, str(otherwise)), least, most)

    mode = last("mode", older.mode).lower()
    if mode not in (TRITON, OPENTELEMETRY):
        raise OptionError(f"--trace-config=mode takes {TRITON} or {OPENTELEMETRY}; found '{mode}'")
    return TraceOptions(
        levels(given["level"], "--trace-config=level") if "level" in given else older.levels,
        number("rate", older.rate, 0, MOST_RATE),
        number("count", older.count, -1, MOST_COUNT),
        mode,
        last("triton,file", older.file),
        number("triton,log-frequency", older.log_frequency, 0, MOST_RATE),
        _otlp(given, number, environment) if mode == OPENTELEMETRY else OtlpOptions(),
    )


_KNOWN = (
    *("level", "rate", "count", "mode", "triton,file", "triton,log-frequency"),
    *("opentelemetry,url", "opentelemetry,resource", "opentelemetry,bsp_max_queue_size"),
    *("opentelemetry,bsp_schedule_delay", "opentelemetry,bsp_max_export_batch_size"),
)


def _otlp(
    given: Mapping[str, list[str]],
    number: Callable[[str, int, int, int], int],
    environment: Mapping[str, str],
) -> OtlpOptions:
    """Defaults come from the environment variables that OpenTelemetry defines."""

    def processor(key: str, otherwise: int, least: int) -> int:
        name = f"OTEL_{key.upper()}"
        text = environment.get(name, "").strip()
        default = _number(name, text, least, MOST_RATE) if text else otherwise
        return number(f"{OPENTELEMETRY},{key}", default, least, MOST_RATE)

    resource = dict([_SERVICE])
    resource.update(_pairs(environment, "OTEL_RESOURCE_ATTRIBUTES"))
    if environment.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = environment["OTEL_SERVICE_NAME"]
    for text in given.get("opentelemetry,resource", ()):
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise OptionError(
                f"--trace-config=opentelemetry,resource takes <key>=<value>; found '{text}'"
            )
        resource[key] = value
    headers = _pairs(environment, "OTEL_EXPORTER_OTLP_HEADERS")
    headers.update(_pairs(environment, "OTEL_EXPORTER_OTLP_TRACES_HEADERS"))
    return OtlpOptions(
        given.get("opentelemetry,url", [_url(environment)])[-1],
        resource,
        headers,
        processor("bsp_max_queue_size", 2048, 1),
        processor("bsp_schedule_delay", 5000, 0),
        processor("bsp_max_export_batch_size", 512, 1),
    )


def _url(environment: Mapping[str, str]) -> str:
    exact = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    return exact or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", _ENDPOINT).rstrip("/") + _PATH


def _pairs(environment: Mapping[str, str], name: str) -> dict[str, str]:
    """A variable of the form `a=1,b=2`, with %xx for special characters."""
    pairs: dict[str, str] = {}
    for text in filter(None, environment.get(name, "").split(",")):
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise OptionError(f"{name} takes <key>=<value>[,<key>=<value>...]; found '{text}'")
        pairs[unquote(key.strip())] = unquote(value.strip())
    return pairs


def _number(flag: str, text: str, least: int, most: int) -> int:
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 10 and least <= int(text) <= most:
        return int(text)
    raise OptionError(f"{flag} takes a whole number from {least} to {most}; found '{text}'")

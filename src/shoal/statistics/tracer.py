"""Which requests are traced, and where their traces go.

    frontend --start--> Trace, or None for most requests --> a file, or spans to a collector,
                                                             or memory, for the console

While nothing can be sampled, `active` is false, and a request costs only this check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from shoal.config.options.trace import OPENTELEMETRY, TraceOptions
from shoal.errors import InvalidArgument
from shoal.statistics import trace_context
from shoal.statistics.trace import FinishedTrace, Trace, TraceLevel
from shoal.statistics.trace_context import SpanContext
from shoal.statistics.trace_file import FileCollector, TraceFile
from shoal.statistics.trace_otlp import OtlpExporter
from shoal.statistics.trace_recording import TraceRecording
from shoal.statistics.trace_settings import Changes, TraceScope, TraceSetting, read_changes

Header = Callable[[str], str | None]  # the value of a header, by its name in lower case


class RequestTracer(Protocol):
    """What frontends use of a `Tracer`, or of one in another process."""

    active: bool

    def start(self, model: str, header: Header) -> Trace | None:
        """The trace of a request for `model` that has just come in; None for most of them."""


class Collector(Protocol):
    """Where the traces of one scope go."""

    def take(self, trace: FinishedTrace, *, last: bool) -> None:
        """Take a finished trace. Must not block."""

    def retire(self) -> None:
        """The scope is no longer in force; traces that it sampled may still come."""


class Tracer:
    """The trace settings of one server, and its traces. Any thread may call any method."""

    def __init__(self, options: TraceOptions | None = None) -> None:
        """Nothing is opened before the first trace."""
        self._options = options or TraceOptions()
        self._spans = self._options.mode == OPENTELEMETRY
        self._file = TraceFile(self._options.file)
        self._exporter = OtlpExporter(self._options.otlp)
        level = TraceLevel.OFF
        for name in self._options.levels:
            level |= TraceLevel[name]
        if self._spans:
            level &= TraceLevel.TIMESTAMPS
        setting = TraceSetting(
            level, self._options.rate, self._options.count, self._options.log_frequency
        )
        self._recording = TraceRecording()
        self._lock = threading.Lock()  # serialises changes of everything below
        self._default = TraceScope(setting)
        self._all = self._sampler(TraceScope(setting))
        self._models: Mapping[str, _Sampler] = {}
        self.active = self._may_sample()
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called, from any thread, when `active` has changed."""
        self._changed = changed

    def start(self, model: str, header: Header) -> Trace | None:
        """The trace of a request for `model` that has just come in; None for most of them."""
        recorded = False
        if self._recording.active():
            recorded = self._recording.sample(model)
            if not self._recording.active():  # that was the last one
                self._set_active(self._may_sample())
        sampler = self._models.get(model) or self._all
        trace = self._sampled(sampler, header, recorded=recorded)
        if trace is None and recorded:
            return Trace(TraceLevel.TIMESTAMPS, self._recording.take)
        return trace

    def record(self, model: str, count: int) -> None:
        """Keep the next `count` requests of a model in memory; see `TraceRecording.start`."""
        self._recording.start(model, count)
        self._set_active(self._may_sample())

    def recorded(self, model: str) -> dict[str, Any]:
        """What was kept of a model's requests; see `TraceRecording.document`."""
        document = self._recording.document(model)
        if not self._recording.active():  # it may have ended for lack of requests
            self._set_active(self._may_sample())
        return document

    def _sampled(self, sampler: _Sampler, header: Header, *, recorded: bool) -> Trace | None:
        if not sampler.usable:
            return None
        scope = sampler.scope
        context: SpanContext | None = None
        if self._spans:
            context = trace_context.read(header("traceparent"), header("tracestate"))
        if not scope.sample(insists=context is not None and context.recorded):
            return None
        if scope.exhausted:
            self._set_active(self._may_sample())
        if self._spans and context is None:
            context = trace_context.new_trace()

        def emit(finished: FinishedTrace) -> None:
            sampler.emit(finished)
            if recorded:
                self._recording.take(finished)

        return Trace(scope.level, emit, context)

    def settings(self, model: str = "") -> dict[str, list[str]]:
        """The settings for one model, or for all, by the names of the trace API."""
        setting = (self._models.get(model) or self._all).scope.setting
        shown = {
            "trace_level": setting.level.names(),
            "trace_rate": [str(setting.rate)],
            "trace_count": [str(setting.count)],
        }
        if not self._spans:
            shown["log_frequency"] = [str(setting.log_frequency)]
            shown["trace_file"] = [self._options.file]
        shown["trace_mode"] = [self._options.mode]
        if self._spans:
            otlp = self._options.otlp
            shown["url"] = [otlp.url]
            shown["resource"] = [f"{key}={value}" for key, value in otlp.resource.items()]
            shown["bsp_max_queue_size"] = [str(otlp.max_queue_size)]
            shown["bsp_schedule_delay"] = [str(otlp.schedule_delay_ms)]
            shown["bsp_max_export_batch_size"] = [str(otlp.max_export_batch_size)]
        return shown

    def update(self, model: str, changes: Changes) -> None:
        """Change the settings of one model, or of all with an empty name.

        A model keeps its own settings when the settings of all change. Requests sampled before
        are written as they would have been. Raises a ShoalError, and then nothing has changed.
        """
        read = read_changes(changes)
        with self._lock:
            everyone = self._all.scope
            models = {name: sampler.scope for name, sampler in self._models.items()}
            if model:
                own = models.get(model) or TraceScope(everyone.setting)
                models[model] = own.changed(everyone, read)
                replaced = {model}
            else:
                everyone = everyone.changed(self._default, read)
                models = {name: own.changed(everyone, {}) for name, own in models.items()}
                replaced = set(models)
            for scope in (everyone, *(models[name] for name in replaced)):
                self._check(scope.setting)
            self._replace(everyone, models)

    def close(self) -> None:
        """Write out what is left. Blocks for a while, where there is something to write."""
        self._set_active(False)
        for sampler in (self._all, *self._models.values()):
            sampler.collector.retire()
        self._file.close()
        self._exporter.close()

    def _replace(self, everyone: TraceScope, models: Mapping[str, TraceScope]) -> None:
        kept = {sampler.scope: sampler for sampler in (self._all, *self._models.values())}

        def sampler(scope: TraceScope) -> _Sampler:
            return kept.pop(scope) if scope in kept else self._sampler(scope)

        self._all = sampler(everyone)
        self._models = {name: sampler(scope) for name, scope in models.items() if scope.specified}
        self._set_active(self._may_sample())
        for retired in kept.values():
            retired.collector.retire()

    def _set_active(self, active: bool) -> None:
        if active is not self.active:
            self.active = active
            self._changed()

    def _check(self, setting: TraceSetting) -> None:
        """The only settings that cannot be used are those that trace nothing anyway."""
        if self._spans and setting.level & TraceLevel.TENSORS:
            raise InvalidArgument("spans contain no tensors: trace_level TENSORS needs mode triton")
        if setting.level is TraceLevel.OFF or self._usable(setting):
            return
        reason = "trace file name is not given" if setting.rate else "sample rate must be non-zero"
        raise InvalidArgument(f"Attempting to set invalid trace setting :{reason}")

    def _usable(self, setting: TraceSetting) -> bool:
        """Whether traces can be stored. Spans may be requested by the caller only."""
        return self._spans or bool(setting.rate and self._options.file)

    def _may_sample(self) -> bool:
        if self._recording.active():
            return True
        scopes = [sampler.scope for sampler in (self._all, *self._models.values())]
        if self._spans:
            return any(scope.level is not TraceLevel.OFF for scope in scopes)
        return bool(self._options.file) and not all(scope.exhausted for scope in scopes)

    def _sampler(self, scope: TraceScope) -> _Sampler:
        setting = scope.setting
        collector: Collector = self._exporter
        if not self._spans:
            limited = setting.count >= 0
            collector = FileCollector(self._file, setting.log_frequency, limited=limited)
        return _Sampler(scope, collector, usable=self._usable(setting))


class _Sampler:
    """A scope and where its traces go."""

    __slots__ = ("collector", "scope", "usable")

    def __init__(self, scope: TraceScope, collector: Collector, *, usable: bool) -> None:
        self.scope = scope
        self.collector = collector
        self.usable = usable

    def emit(self, trace: FinishedTrace) -> None:
        """A trace is complete."""
        self.collector.take(trace, last=self.scope.finished())

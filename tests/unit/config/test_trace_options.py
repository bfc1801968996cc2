"""--trace-config and what came before it."""

from __future__ import annotations

import pytest

from shoal.cli.arguments import parse
from shoal.config.options import OptionError, trace
from shoal.config.options.option import NamedSetting
from shoal.config.options.trace import OtlpOptions, TraceOptions


def read(*words, **environment):
    settings = []
    for word in words:
        name, _, rest = (
            word.rpartition(",") if word.partition("=")[0].count(",") else ("", "", word)
        )
        key, _, value = rest.partition("=")
        settings.append(NamedSetting(name, key, value))
    return trace.read(settings, TraceOptions(), environment)


def test_nothing_said():
    assert read() == TraceOptions()
    assert parse([]).trace_options() == TraceOptions()


def test_what_can_be_said():
    options = parse(
        [
            "--trace-config=level=timestamps",
            "--trace-config=level=TENSORS",
            *("--trace-config", "rate=5"),
            "--trace-config=count=7",
            "--trace-config=triton,file=a,b=c.json",
            "--trace-config=triton,log-frequency=9",
        ]
    )
    assert options.trace_options() == TraceOptions(
        ("TIMESTAMPS", "TENSORS"), 5, 7, "triton", "a,b=c.json", 9
    )
    assert options.warnings() == []


def test_off_wins():
    assert read("level=TIMESTAMPS", "level=off").levels == ()


@pytest.mark.parametrize("word", ["true", "on", "MIN", "max", "Timestamps"])
def test_other_words_for_timestamps(word):
    assert read(f"level={word}").levels == ("TIMESTAMPS",)


def test_the_older_flags_act_too():
    options = parse(
        [
            *("--trace-file=t.json", "--trace-level=MAX", "--trace-rate=2", "--trace-count=3"),
            "--trace-log-frequency=4",
        ]
    )
    assert options.trace_options() == TraceOptions(("TIMESTAMPS",), 2, 3, "triton", "t.json", 4)
    assert all("deprecated" in line for line in options.warnings())
    newer = parse(["--trace-file=t.json", "--trace-rate=2", "--trace-config=rate=9"])
    assert (newer.trace_options().rate, newer.trace_options().file) == (9, "t.json")


def test_spans():
    options = read(
        "mode=OpenTelemetry",
        "opentelemetry,url=collector:4318/v1/traces",
        "opentelemetry,resource=service.name=fish",
        "opentelemetry,resource=a=b=c",
        "opentelemetry,bsp_max_queue_size=10",
        "opentelemetry,bsp_schedule_delay=0",
        "opentelemetry,bsp_max_export_batch_size=1",
    )
    assert options.mode == "opentelemetry"
    assert options.otlp == OtlpOptions(
        "collector:4318/v1/traces", {"service.name": "fish", "a": "b=c"}, {}, 10, 0, 1
    )


def test_spans_by_the_environment():
    options = read(
        "mode=opentelemetry",
        "opentelemetry,bsp_schedule_delay=7",
        OTEL_EXPORTER_OTLP_ENDPOINT="https://collector/",
        OTEL_EXPORTER_OTLP_HEADERS="api-key=a%20b, other = 1",
        OTEL_RESOURCE_ATTRIBUTES="service.name=one,zone=eu",
        OTEL_SERVICE_NAME="two",
        OTEL_BSP_MAX_QUEUE_SIZE="99",
        OTEL_BSP_SCHEDULE_DELAY="8",
    )
    assert options.otlp == OtlpOptions(
        "https://collector/v1/traces",
        {"service.name": "two", "zone": "eu"},
        {"api-key": "a b", "other": "1"},
        99,
        7,
    )
    exact = read("mode=opentelemetry", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://x/spans")
    assert exact.otlp.url == "http://x/spans"


def test_the_environment_does_not_matter_to_files():
    assert read(OTEL_BSP_MAX_QUEUE_SIZE="nonsense") == TraceOptions()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["level=LOUD"], "--trace-config=level takes OFF, TIMESTAMPS or TENSORS; found 'LOUD'"),
        (["mode=zipkin"], "--trace-config=mode takes triton or opentelemetry; found 'zipkin'"),
        (["rate=-1"], "--trace-config=rate takes a whole number from 0 to 4294967295; found '-1'"),
        (["count=x"], "--trace-config=count takes a whole number from -1 to 2147483647; found 'x'"),
        (
            ["triton,log-frequency=1.5"],
            "--trace-config=triton,log-frequency takes a whole number from 0 to 4294967295; found '1.5'",
        ),
        (
            ["mode=opentelemetry", "opentelemetry,resource=x"],
            "--trace-config=opentelemetry,resource takes <key>=<value>; found 'x'",
        ),
        (
            ["mode=opentelemetry", "opentelemetry,bsp_max_queue_size=0"],
            "--trace-config=opentelemetry,bsp_max_queue_size takes a whole number from 1 to 4294967295; found '0'",
        ),
    ],
)
def test_mistakes(words, text):
    with pytest.raises(OptionError) as caught:
        read(*words)
    assert caught.value.message == text


def test_a_mistake_in_the_environment():
    with pytest.raises(OptionError, match="OTEL_BSP_SCHEDULE_DELAY takes a whole number"):
        read("mode=opentelemetry", OTEL_BSP_SCHEDULE_DELAY="soon")
    with pytest.raises(OptionError, match="OTEL_RESOURCE_ATTRIBUTES takes <key>=<value>"):
        read("mode=opentelemetry", OTEL_RESOURCE_ATTRIBUTES="zone")


@pytest.mark.parametrize("word", ["file=x", "triton,files=x", "opentelemetry,file=x", "zipkin,a=b"])
def test_settings_nobody_knows(word):
    with pytest.raises(OptionError, match="has no setting"):
        read(word)
    with pytest.raises(OptionError, match="has no setting"):
        parse([f"--trace-config={word}"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["level=TIMESTAMPS", "rate=1"], "no trace file is set"),
        (["level=TIMESTAMPS", "triton,file=f", "rate=0"], "rate=0 traces no request"),
        (["level=TENSORS", "mode=opentelemetry"], "spans contain no tensors"),
        (["level=TIMESTAMPS", "triton,file=f"], ""),
        (["level=OFF", "rate=0"], ""),
    ],
)
def test_what_traces_nothing_is_told(words, problem):
    assert read(*words).problem().startswith(problem)
    assert bool(read(*words).problem()) is bool(problem)
    warnings = parse([f"--trace-config={word}" for word in words]).warnings()
    assert [line.startswith("requests are not traced as asked") for line in warnings] == (
        [True] if problem else []
    )

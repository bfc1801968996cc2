"""The command line: names, letters, and a sentence for everything that is wrong."""

from __future__ import annotations

import pytest

from shoal.cli import perf
from shoal.cli.perf import help_text, parse
from shoal.config.options import OptionError
from shoal.errors import InvalidArgument
from shoal.perf.option_checks import ELSEWHERE
from shoal.perf.options import BY_FLAG, TABLE
from shoal.perf.search import Range

# Of perf_analyzer 2.50 and newer.
THEIRS = [
    "-m",
    "-x",
    "-v",
    "-a",
    "-p",
    "-l",
    "-s",
    "-r",
    "-b",
    "-u",
    "-i",
    "-f",
    "-H",
    "-t",
    "-c",
    "-d",
    "-z",
    "--async",
    "--sync",
    "--measurement-interval",
    "--measurement-mode",
    "--measurement-request-count",
    "--concurrency-range",
    "--periodic-concurrency-range",
    "--request-period",
    "--request-parameter",
    "--request-rate-range",
    "--request-distribution",
    "--request-intervals",
    "--binary-search",
    "--num-of-sequences",
    "--latency-threshold",
    "--max-threads",
    "--stability-percentage",
    "--max-trials",
    "--percentile",
    "--request-count",
    "--warmup-request-count",
    "--serial-sequences",
    "--input-data",
    "--shared-memory",
    "--output-shared-memory-size",
    "--shape",
    "--sequence-length",
    "--sequence-length-variation",
    "--sequence-id-range",
    "--string-length",
    "--string-data",
    "--input-tensor-format",
    "--output-tensor-format",
    "--data-directory",
    "--ssl-grpc-use-ssl",
    "--ssl-grpc-root-certifications-file",
    "--ssl-grpc-private-key-file",
    "--ssl-grpc-certificate-chain-file",
    "--ssl-https-verify-peer",
    "--ssl-https-verify-host",
    "--ssl-https-ca-certificates-file",
    "--ssl-https-client-certificate-file",
    "--ssl-https-client-certificate-type",
    "--ssl-https-private-key-file",
    "--ssl-https-private-key-type",
    "--profile-export-file",
    "--streaming",
    "--grpc-compression-algorithm",
    "--trace-level",
    "--trace-rate",
    "--trace-count",
    "--log-frequency",
    "--collect-metrics",
    "--metrics-url",
    "--metrics-interval",
    "--verbose-csv",
    "--service-kind",
    "--bls-composing-models",
    "--model-signature-name",
    "--endpoint",
    "--triton-server-directory",
    "--model-repository",
    "--session-concurrency",
    "--fixed-schedule",
    "--grpc-method",
    "--proto",
]


@pytest.mark.parametrize("flag", THEIRS)
def test_every_flag_of_theirs_is_known(flag):
    assert flag in BY_FLAG or flag in ELSEWHERE


def test_no_name_is_taken_twice():
    names = [flag for option in TABLE for flag in option.flags]
    assert len(names) == len(set(names))


def test_ways_to_write_an_option():
    options = parse(
        [
            "-m=digits",
            "-t4",
            "-l",
            "5",
            "-b",
            "2",
            "--max-trials=3",
            "-s0.5",
            "-v",
            "--async",
            "-H",
            "a:b",
            "-H",
            "c:d",
        ]
    )
    assert options.model_name == "digits"
    assert options.threads == 4
    assert options.latency_threshold == 5
    assert options.batch_size == 2
    assert options.max_trials == 3
    assert options.stability_percentage == 0.5
    assert options.verbose
    assert options.asynchronous
    assert options.headers() == (("a", "b"), ("c", "d"))


def test_defaults_are_theirs():
    options = parse(["-m", "digits"])
    assert options.levels() == Range(1, 1, 1)
    assert options.measurement_interval == 5000
    assert options.stability_percentage == 10
    assert options.max_trials == 10
    assert options.sources == ("random",)
    assert options.only_percentile is None
    assert not options.warnings()


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        ("--concurrency-range 2:8:3", Range(2, 8, 3, True)),
        ("--concurrency-range 4", Range(4, 4, 1)),
        ("--request-rate-range 0.5:2:0.5", Range(0.5, 2, 0.5, True)),
        ("-t 3", Range(3, 3, 1)),
        ("-t 3 -d -l 10", Range(3, 0, 1, True)),  # the older way, without end
        ("-t 3 -d -c 9", Range(3, 9, 1, True)),
        ("-d -l 1", Range(1, 0, 1, True)),
    ],
)
def test_levels(words, levels):
    assert parse(["-m", "m", *words.split()]).levels() == levels


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "name the model"),
        ("-m m -q", "unknown option -q"),
        ("-m m --concurency-range 3", "did you mean --concurrency-range"),
        ("-m m digits", "named with -m digits"),
        ("-m m -b", "-b needs a value"),
        ("-m m -b x", "-b takes a whole number of at least 1; found 'x'"),
        ("-m m -b 0", "-b takes a whole number of at least 1"),
        ("-m m -i tcp", "-i takes http or grpc"),
        ("-m m --service-kind openai", "only servers that speak KServe v2"),
        ("-m m --endpoint v1/chat", "--endpoint is not offered"),
        ("-m m --fixed-schedule", "use --request-intervals"),
        ("-m m --streaming", "add -i grpc"),
        ("-m m -i grpc --streaming --sync", "exclude each other"),
        ("-m m --async --sync", "exclude each other"),
        ("-m m --shared-memory cuda", "--shared-memory=system"),
        ("-m m --concurrency-range 1 --request-rate-range 1", "exclude each other"),
        ("-m m --concurrency-range 1 -t 3", "older names"),
        ("-m m --concurrency-range 1:0", "add -l"),
        ("-m m -d", "add -l"),
        ("-m m -c 5", "add -d"),
        ("-m m -t 5 -d -c 3", "is below the start"),
        ("-m m --binary-search -l 5", "start and the end"),
        ("-m m --binary-search --concurrency-range 1:4", "add -l"),
        ("-m m --percentile 0", "1 to 99"),
        ("-m m --percentile 100", "from -1 to 99"),
        ("-m m --concurrency-range 8 --request-count 4", "at least one request each"),
        ("-m m --verbose-csv", "-f FILE"),
        ("-m m --collect-metrics", "--verbose-csv"),
        ("-m m --report out.pdf", ".html"),
        ("-m m -H team", "-H takes name:value"),
        ("-m m --request-parameter a:b", "name:value:type"),
        ("-m m --request-parameter a:b:int", "name:value:type"),
        ("-m m --request-parameter a:maybe:bool", "name:value:type"),
        ("-m m --sequence-id-range x", "start:end"),
        ("-m m --sequence-id-range 0:5", "1 or more"),
        ("-m m --sequence-id-range 5:5", "after the start"),
        ("-m m --grpc-compression-algorithm gzip", "add -i grpc"),
        ("-m m -i grpc --input-tensor-format json", "JSON tensors need HTTP"),
        ("-m m -z --input-data zero", "leave it out"),
    ],
)
def test_a_sentence_for_what_is_wrong(words, said, capsys):
    with pytest.raises((OptionError, InvalidArgument), match=said):
        parse(words.split())
    if words:
        assert perf.run(words.split()) == perf.WRONG_OPTION
        assert said in capsys.readouterr().err


def test_parameters():
    words = "-m m --request-parameter a:1:int --request-parameter b:x:y:string"
    words += " --request-parameter c:TRUE:bool --request-parameter d:0.5:float"
    assert parse(words.split()).parameters() == {"a": 1, "b": "x:y", "c": True, "d": 0.5}


def test_older_names_say_so():
    (sentence,) = parse(["-m", "m", "-t", "2"]).warnings()
    assert "write --concurrency-range instead" in sentence


def test_composing_models():
    assert parse(["-m", "m", "--bls-composing-models", "a:3,b"]).composing() == [
        ("a", "3"),
        ("b", ""),
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_help_shows_every_option_within_the_width(width):
    text = help_text(width)
    for option in TABLE:
        assert option.flag in text
        assert option.group in text
    table = text.split("Model and server:")[1]
    assert all(len(line) <= max(width, 70) for line in table.splitlines())

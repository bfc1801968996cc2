"""Every flag of `shoal perf`, written once: the fields of `PerfOptions` are the table.

    a field --> TABLE row --> parser and help (cli/perf.py), documentation

Names, letters and defaults are those of NVIDIA's perf_analyzer and of the perf_client before it,
because scripts pass them. What several values must agree on is in `option_checks`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.client.codec import bearer
from shoal.config.options.option import Group, Option, OptionError
from shoal.perf import option_checks as checks
from shoal.perf import search
from shoal.perf.data import parse_shape
from shoal.perf.requests import ParameterValue
from shoal.perf.search import Range

_model = Group("Model and server")
_load = Group("Load")
_measuring = Group("Measuring")
_data = Group("Data")
_sequence = Group("Sequences")
_request = Group("Requests")
_report = Group("Reports")
_tls = Group("TLS")
_trace = Group("Tracing and metrics")
_older = Group("Older names")

POSITIVE = (1, None)
_SWITCH_WORDS = {"1": True, "0": False, "2": True}


@dataclass(frozen=True)
class PerfOption(Option):
    """A row whose flag may differ from its attribute."""

    name: str = ""

    @property
    def flag(self) -> str:
        """The name as typed, with its dashes."""
        return self.name or "--" + self.attribute.replace("_", "-")


@dataclass(frozen=True)
class PerfOptions:
    """All options of a run. Creating one checks combinations of values: OptionError
    names the flags that do not go together."""

    model_name: str = _model("", "The model to measure.", name="-m", aliases=("--model-name",))
    model_version: str = _model(
        "", "Its version; by default the server chooses.", name="-x", aliases=("--model-version",)
    )
    url: str = _model(
        "",
        "The server as host:port; default: localhost:8000, or localhost:8001 for gRPC.",
        name="-u",
        aliases=("--url",),
    )
    protocol: str = _model(
        "http", "The protocol.", name="-i", aliases=("--protocol",), choices=("http", "grpc")
    )
    service_kind: str = _model(
        "triton", "The kind of server: only triton (KServe v2).", form="triton"
    )
    bls_composing_models: str = _model(
        "",
        "Models that this model calls; their statistics are shown too.",
        form="<name>[:<version>],...",
    )

    concurrency_range: str = _load(
        "", "Concurrent requests: 1:8:1, 4, or 1:0 with -l.", form="<start:end:step>"
    )
    request_rate_range: str = _load(
        "",
        "Requests per second instead of concurrency, regardless of responses. Latency counts from "
        "when a request was due, also if it was sent later.",
        form="<start:end:step>",
    )
    request_distribution: str = _load(
        "constant",
        "Distribution of requests over time, for a request rate.",
        choices=("constant", "poisson"),
    )
    request_intervals: str = _load(
        "", "File with the intervals between requests in microseconds, one per line.", form="<file>"
    )
    latency_threshold: float = _load(
        0.0,
        "Latency limit in milliseconds, at which the search ends; 0 for none.",
        name="--latency-threshold",
        aliases=("-l",),
        limits=(0, None),
    )
    binary_search: bool = _load(
        False, "Binary search in the range for the highest level within -l.", bare=True
    )
    max_threads: int = _load(
        0,
        "Maximum number of sending processes; 0 means 16. More than one are started if one is "
        "too slow.",
        limits=(0, None),
    )
    workers: int = _load(
        0, "Exact number of sending processes; 0 chooses automatically.", limits=(0, 512)
    )

    measurement_mode: str = _measuring(
        "time_windows",
        "Windows of a fixed time, or of a number of requests.",
        choices=("time_windows", "count_windows"),
    )
    measurement_interval: float = _measuring(
        5000.0,
        "Length of a window in milliseconds.",
        aliases=("-p",),
        limits=(1, None),
    )
    measurement_request_count: int = _measuring(
        50, "Minimum number of requests in a window of count_windows.", limits=POSITIVE
    )
    stability_percentage: float = _measuring(
        10.0,
        "By how many percent three windows may differ to count as stable.",
        aliases=("-s",),
        limits=(0, None),
    )
    max_trials: int = _measuring(
        10, "Maximum number of windows per level.", aliases=("-r",), limits=POSITIVE
    )
    percentile: int = _measuring(
        -1, "The percentile to compare and report; -1 means the average.", limits=(-1, 99)
    )
    request_count: int = _measuring(
        0, "Measure exactly this number of requests in one window.", limits=(0, None)
    )
    warmup_request_count: int = _measuring(
        0, "Requests at the start of each level that do not count.", limits=(0, None)
    )

    batch_size: int = _data(1, "Rows per request.", name="-b", limits=POSITIVE)
    input_data: tuple[str, ...] = _data(
        (),
        "zero, random, a folder with a file per input, or a JSON file. Default: random.",
        form="zero|random|<path>",
    )
    shape: tuple[str, ...] = _data(
        (), "Shape of an input with dynamic dims, without the batch.", form="<name>:<d1,d2,...>"
    )
    string_length: int = _data(128, "Length of generated texts.", limits=(0, None))
    string_data: str = _data("", "Text to send instead of generated ones.")
    shared_memory: str = _data(
        "none", "Put tensors into shared memory.", choices=("none", "system", "cuda")
    )
    output_shared_memory_size: int = _data(
        102400, "Bytes per row of outputs whose size is unknown.", limits=POSITIVE
    )
    input_tensor_format: str = _data(
        "binary", "Format of inputs over HTTP.", choices=("binary", "json")
    )
    output_tensor_format: str = _data(
        "binary", "Format of outputs over HTTP.", choices=("binary", "json")
    )

    sequence_length: int = _sequence(
        0, "Average length of sequences; 0 means 20, or that of the given data.", limits=(0, None)
    )
    sequence_length_variation: float = _sequence(
        20.0, "Variation of the length in percent.", limits=(0, 100)
    )
    sequence_id_range: str = _sequence(
        "", "Ids to use, from start to end; without end there is no limit.", form="<start:end>"
    )
    num_of_sequences: int = _sequence(
        4, "Concurrent sequences with a request rate.", limits=POSITIVE
    )
    serial_sequences: bool = _sequence(
        False,
        "One request of a sequence at a time.",
        bare=True,
        no_effect="it is always so",
        honoured=True,
    )

    asynchronous: bool = _request(
        False,
        "Use only throughput to decide whether a level is stable.",
        name="--async",
        aliases=("-a",),
        bare=True,
    )
    synchronous: bool = _request(
        False, "Use latency too, also for sequences.", name="--sync", bare=True
    )
    streaming: bool = _request(False, "Send on gRPC streams.", bare=True)
    header: tuple[str, ...] = _request(
        (), "A header for every request.", name="-H", form="<name>:<value>"
    )
    api_key: str = _request(
        "",
        "A key for the server, sent as 'Authorization: Bearer'; default: the environment variable "
        "SHOAL_API_KEY.",
        form="<key>",
    )
    request_parameter: tuple[str, ...] = _request(
        (), "A parameter for every request.", form="<name>:<value>:<type>"
    )
    grpc_compression_algorithm: str = _request(
        "none", "Compression of gRPC requests.", choices=("none", "gzip", "deflate")
    )

    csv: str = _report(
        "", "Write a table to this file.", name="-f", aliases=("--filename",), form="<file>"
    )
    verbose_csv: bool = _report(False, "Write more columns.", bare=True)
    profile_export_file: str = _report(
        "", "Write the timestamps of every request as JSON.", form="<file>"
    )
    report: tuple[str, ...] = _report(
        (),
        "Write a report (.html or .png) with charts, latencies and where the time went.",
        form="<file.html|file.png>",
    )
    verbose: bool = _report(
        False, "Show every window.", name="-v", aliases=("--verbose",), bare=True
    )

    ssl_grpc_use_ssl: bool = _tls(False, "Encrypt gRPC.")
    ssl_grpc_root_certifications_file: str = _tls("", "Trusted certificates (PEM).", form="<file>")
    ssl_grpc_private_key_file: str = _tls("", "The client's key (PEM).", form="<file>")
    ssl_grpc_certificate_chain_file: str = _tls("", "The client's certificate.", form="<file>")
    ssl_https_verify_peer: bool = _tls(True, "Check the server's certificate.", form="0|1")
    ssl_https_verify_host: bool = _tls(
        True, "Check that it is for this host.", form="0|1|2", words=_SWITCH_WORDS
    )
    ssl_https_ca_certificates_file: str = _tls("", "Trusted certificates (PEM).", form="<file>")
    ssl_https_client_certificate_file: str = _tls("", "The client's certificate.", form="<file>")
    ssl_https_client_certificate_type: str = _tls("PEM", "Its format.", choices=("PEM",))
    ssl_https_private_key_file: str = _tls("", "The client's key.", form="<file>")
    ssl_https_private_key_type: str = _tls("PEM", "Its format.", choices=("PEM",))

    collect_metrics: bool = _trace(
        False, "Read the server's GPU metrics; shown with --verbose-csv.", bare=True
    )
    metrics_url: str = _trace("localhost:8002/metrics", "Address of the metrics.")
    metrics_interval: float = _trace(
        1000.0, "Interval of readings in milliseconds.", limits=(1, None)
    )
    trace_level: tuple[str, ...] = _trace(
        (), "Let the server trace requests during the measurement.", form="OFF|TIMESTAMPS|TENSORS"
    )
    trace_rate: int = _trace(1000, "Trace one request in this number.", limits=POSITIVE)
    trace_count: int = _trace(-1, "Number of traces; -1 sets no limit.", limits=(-1, None))
    log_frequency: int = _trace(0, "Traces per file of the server.", limits=(0, None))

    threads: int = _older(
        0, "Concurrency.", name="-t", limits=POSITIVE, instead="--concurrency-range"
    )
    dynamic: bool = _older(
        False,
        "Raise the concurrency by one until -l is reached.",
        name="-d",
        bare=True,
        instead="--concurrency-range <start>:0",
    )
    max_concurrency: int = _older(
        0,
        "The last concurrency of -d; 0 sets no limit.",
        name="-c",
        limits=(0, None),
        instead="--concurrency-range",
    )
    zero: bool = _older(False, "Send zeros.", name="-z", bare=True, instead="--input-data zero")
    data_directory: str = _older("", "A folder of data.", form="<path>", instead="--input-data")

    given: frozenset[str] = frozenset()  # attributes that the command line set

    def __post_init__(self) -> None:
        checks.check(self)

    # ---- values of several flags

    @property
    def by_rate(self) -> bool:
        """Whether the load follows a clock."""
        return bool(self.request_rate_range or self.request_intervals)

    @property
    def asynchronous_calls(self) -> bool:
        """Whether throughput alone decides; models with sequences add to this."""
        return self.asynchronous or self.streaming

    def levels(self) -> Range:
        """The range of concurrency or of rates; a file of intervals has one level, its rate."""
        if self.request_rate_range:
            return search.parse_range("--request-rate-range", self.request_rate_range, whole=False)
        if self.concurrency_range:
            return search.parse_range("--concurrency-range", self.concurrency_range, whole=True)
        start = self.threads or 1
        if self.dynamic:
            return Range(start, self.max_concurrency, 1, end_given=True)
        return Range(start, start, 1)

    @property
    def only_percentile(self) -> int | None:
        """The percentile that counts; None is the mean."""
        return None if self.percentile < 0 else self.percentile

    @property
    def sources(self) -> tuple[str, ...]:
        """Where data come from."""
        if self.input_data:
            return self.input_data
        if self.zero:
            return ("zero",)
        return (self.data_directory or "random",)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs. Raises InvalidArgument."""
        return dict(parse_shape(text) for text in self.shape)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers, taken apart. Raises OptionError."""
        made = list(bearer(self.api_key or os.environ.get("SHOAL_API_KEY", "")).items())
        for text in self.header:
            name, colon, value = text.partition(":")
            if not colon or not name.strip():
                raise OptionError(f"-H takes name:value, such as 'team:vision'; found '{text}'")
            made.append((name.strip(), value.strip()))
        return tuple(made)

    def parameters(self) -> dict[str, ParameterValue]:
        """Parameters of requests. Raises OptionError."""
        made: dict[str, ParameterValue] = {}
        for text in self.request_parameter:
            name, _, rest = text.partition(":")
            value, _, kind = rest.rpartition(":")
            made[name] = _parameter(text, name, value, kind.lower())
        return made

    def sequence_ids(self) -> tuple[int, int]:
        """The first id, and how many there are; 0 is without bounds. Raises OptionError."""
        if not self.sequence_id_range:
            return 1, 0
        start, colon, end = self.sequence_id_range.partition(":")
        numbers = [part for part in (start, end) if part]
        if not start or not all(part.isascii() and part.isdigit() for part in numbers):
            raise OptionError(
                f"--sequence-id-range takes start:end, such as 1:1000; found "
                f"'{self.sequence_id_range}'"
            )
        if not int(start):
            raise OptionError("--sequence-id-range: ids are 1 or more; 0 means no sequence")
        if not colon or not end:
            return int(start), 0
        if int(end) <= int(start):
            raise OptionError(
                "--sequence-id-range: the end, which is not used, must come after the start"
            )
        return int(start), int(end) - int(start)

    def composing(self) -> list[tuple[str, str]]:
        """The models of --bls-composing-models."""
        named = [text.strip() for text in self.bls_composing_models.split(",") if text.strip()]
        return [(name, version) for name, _, version in (text.partition(":") for text in named)]

    def warnings(self) -> list[str]:
        """A warning for each flag without effect."""
        lines = []
        for option in TABLE:
            if option.attribute not in self.given:
                continue
            if option.instead:
                lines.append(f"{option.flag} is an older name; write {option.instead} instead")
            if option.no_effect and getattr(self, option.attribute) != option.honoured:
                lines.append(f"{option.flag} has no effect: {option.no_effect}")
        return lines


def _parameter(text: str, name: str, value: str, kind: str) -> ParameterValue:
    try:
        if not name:
            raise ValueError
        if kind == "bool":
            return {"true": True, "false": False}[value.lower()]
        if kind in {"int", "uint"}:
            return int(value)
        if kind in {"float", "double"}:
            return float(value)
        if kind in {"string", "str"}:
            return value
    except (ValueError, KeyError):
        pass  # raised below
    raise OptionError(
        f"--request-parameter takes name:value:type, the type being bool, int, float or string, "
        f"such as max_tokens:256:int; found '{text}'"
    )


def _read_table() -> tuple[PerfOption, ...]:
    fields = [field for field in dataclasses.fields(PerfOptions) if field.metadata]
    return tuple(
        PerfOption(field.name, str(field.type), field.default, **field.metadata) for field in fields
    )


TABLE = _read_table()
BY_FLAG: Mapping[str, PerfOption] = {flag: option for option in TABLE for flag in option.flags}

"""Checks of combinations of flags, and advice for flags of perf_analyzer that do not exist here.

Every function raises OptionError, which names the flags and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.config.options.option import OptionError

if TYPE_CHECKING:  # the table asks for these checks
    from shoal.perf.options import PerfOptions


def check(options: PerfOptions) -> None:
    """All of them."""
    if not options.model_name:
        raise OptionError("name the model to measure: shoal perf -m MODEL")
    _server(options)
    _load(options)
    _measuring(options)
    _reports(options)


def _server(options: PerfOptions) -> None:
    if options.service_kind != "triton":
        raise OptionError(
            f"--service-kind={options.service_kind}: only servers that speak KServe v2, such as "
            f"Shoal and Triton, can be measured (--service-kind=triton)"
        )
    if options.streaming and options.protocol != "grpc":
        raise OptionError("--streaming needs gRPC: add -i grpc")
    if options.streaming and options.synchronous:
        raise OptionError(
            "--streaming and --sync exclude each other: responses on a stream are asynchronous"
        )
    if options.asynchronous and options.synchronous:
        raise OptionError("--async and --sync exclude each other")
    if options.shared_memory == "cuda":
        raise OptionError(
            "--shared-memory=cuda is not offered: measure with --shared-memory=system, or without"
        )
    if options.grpc_compression_algorithm != "none" and options.protocol != "grpc":
        raise OptionError("--grpc-compression-algorithm needs gRPC: add -i grpc")
    json = "json" in (options.input_tensor_format, options.output_tensor_format)
    if json and options.protocol != "http":
        raise OptionError("JSON tensors need HTTP: leave out -i grpc")
    options.headers()
    options.parameters()
    options.sequence_ids()


def _load(options: PerfOptions) -> None:
    modes = {
        "--concurrency-range": options.concurrency_range,
        "--request-rate-range": options.request_rate_range,
        "--request-intervals": options.request_intervals,
    }
    chosen = [flag for flag, value in modes.items() if value]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(chosen)} exclude each other: choose one kind of load")
    if chosen and (options.threads or options.dynamic or options.max_concurrency):
        raise OptionError(
            f"-t, -c and -d are older names of --concurrency-range; leave them out "
            f"beside {chosen[0]}"
        )
    if options.max_concurrency and not options.dynamic:
        raise OptionError("-c needs -d: add -d, or use --concurrency-range")
    if options.dynamic and options.threads and 0 < options.max_concurrency < options.threads:
        raise OptionError(f"-c {options.max_concurrency} is below the start, -t {options.threads}")
    levels = options.levels()
    limited = options.latency_threshold > 0
    if levels.end_given and not levels.end and not limited:
        raise OptionError("a range without end needs a latency limit: add -l MILLISECONDS")
    if options.binary_search:
        if not levels.end_given or not levels.end:
            raise OptionError(
                "--binary-search needs the start and the end of a range, such as "
                "--concurrency-range 1:64"
            )
        if not limited:
            raise OptionError("--binary-search looks for a latency limit: add -l MILLISECONDS")


def _measuring(options: PerfOptions) -> None:
    if options.percentile == 0:
        raise OptionError("--percentile takes 1 to 99, or -1 for the mean")
    if (
        options.request_count
        and options.request_count < options.levels().start
        and not options.by_rate
    ):
        raise OptionError(
            f"--request-count={options.request_count} is less than the concurrency of "
            f"{options.levels().start:g}: ask for at least one request each"
        )
    if options.zero and options.input_data:
        raise OptionError("-z is an older name of --input-data zero; leave it out")


def _reports(options: PerfOptions) -> None:
    if options.verbose_csv and not options.csv:
        raise OptionError("--verbose-csv adds columns to a table: name its file with -f FILE")
    if options.collect_metrics and not options.verbose_csv:
        raise OptionError("--collect-metrics fills columns of --verbose-csv: add it and -f FILE")
    for path in options.report:
        if not path.endswith((".html", ".htm", ".png")):
            raise OptionError(f"--report={path}: write an HTML page (.html) or an image (.png)")


_OTHER_SERVERS = "it is for other kinds of servers; only KServe v2 can be measured"
_IN_PROCESS = (
    "it is for a server inside the tool; start one with `shoal serve` and measure that with -u"
)
# Flags of perf_analyzer that are not offered, and what to do instead.
ELSEWHERE: Mapping[str, str] = {
    "--model-signature-name": _OTHER_SERVERS,
    "--endpoint": _OTHER_SERVERS,
    "--grpc-method": _OTHER_SERVERS,
    "--proto": _OTHER_SERVERS,
    "--triton-server-directory": _IN_PROCESS,
    "--model-repository": _IN_PROCESS,
    "--library-name": _IN_PROCESS,
    "--periodic-concurrency-range": "measure the levels one by one with --concurrency-range",
    "--request-period": "measure the levels one by one with --concurrency-range",
    "--session-concurrency": "measure sequences with --concurrency-range instead",
    "--fixed-schedule": "write the intervals to a file and use --request-intervals",
    "--enable-mpi": "start one run per machine and add up the results",
}

"""The report as text, in perf_analyzer's format, which scripts parse.

settings(…)   level_title(…)   level_block(…)   final_table(…)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import LevelResult
from shoal.perf.search import Range
from shoal.perf.server_side import ServerSide, Tally
from shoal.perf.summary import TAIL, LoadSummary


def number(value: float) -> str:
    """Six significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 1e6 else f"{value:.6g}"


def settings(
    options: PerfOptions, facts: ModelFacts, levels: Range, *, asynchronous: bool
) -> Iterator[str]:
    """The settings of the measurement."""
    yield "*** Measurement Settings ***"
    yield f"  Batch size: {options.batch_size}"
    yield "  Service Kind: TRITON"
    if options.warmup_request_count:
        yield f"  Sending {options.warmup_request_count} warmup requests"
    if options.request_count:
        yield f"  Sending {options.request_count} benchmark requests"
    else:
        yield from _windows(options, asynchronous=asynchronous)
    if levels.end_given:
        yield f"  Latency limit: {options.latency_threshold:g} msec"
        if levels.end and options.by_rate:
            yield f"  Request Rate limit: {number(levels.end)} requests per seconds"
        elif levels.end:
            yield f"  Concurrency limit: {levels.end:g} concurrent requests"
    if options.request_rate_range:
        kind = "poisson" if options.request_distribution == "poisson" else "uniform"
        yield f"  Using {kind} distribution on request generation"
    if options.binary_search:
        yield "  Using Binary Search algorithm"
    yield f"  Using {'asynchronous' if asynchronous else 'synchronous'} calls for inference"
    if facts.decoupled:
        yield "  Detected decoupled model, using the first response for measuring latency"
    yield ""


def _windows(options: PerfOptions, *, asynchronous: bool) -> Iterator[str]:
    yield f'  Using "{options.measurement_mode}" mode for stabilization'
    what = "throughput" if asynchronous else "latency and throughput"
    kind = "average" if options.percentile < 0 else f"p{options.percentile}"
    yield f"  Stabilizing using {kind} {what}"
    if options.measurement_mode == "time_windows":
        yield f"  Measurement window: {options.measurement_interval:g} msec"
    else:
        yield f"  Minimum number of samples in each window: {options.measurement_request_count}"


def level_title(options: PerfOptions, value: float) -> str:
    """The line before a level; empty for intervals from a file."""
    if options.request_intervals:
        return ""
    if options.by_rate:
        return f"Request Rate: {number(value)} inference requests per seconds"
    return f"Request concurrency: {value:g}"


def window_line(count: int, summary: LoadSummary, percentile: int | None) -> str:
    """One window, for -v."""
    line = f"  Pass [{count}] throughput: {number(summary.per_second)} infer/sec. "
    if percentile is None:
        mean, deviation = int(summary.average_us), int(summary.deviation_us)
        return f"{line}Avg latency: {mean} usec (std {deviation} usec). "
    return f"{line}p{percentile} latency: {int(summary.percentiles_us[percentile])} usec"


def level_block(options: PerfOptions, facts: ModelFacts, result: LevelResult) -> Iterator[str]:
    """The results of one level, of client and server."""
    yield from _client(options, facts, result.summary)
    if result.server is not None:
        yield "  Server: "
        yield from _server(facts, result.server)
    yield ""


def _client(options: PerfOptions, facts: ModelFacts, summary: LoadSummary) -> Iterator[str]:
    yield "  Client: "
    yield f"    Request count: {summary.requests}"
    if facts.sequences:
        rate = number(summary.sequences_per_second)
        yield f"    Sequence count: {summary.sequences} ({rate} seq/sec)"
    if summary.delayed:
        percent = 100 * summary.delayed / max(1, summary.requests)
        yield f"    Avg send request rate: {summary.send_rate:.2f} infer/sec"
        yield (
            f"    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. "
            f"{percent:.2f}% of the requests were delayed. "
        )
    yield f"    Throughput: {number(summary.per_second)} infer/sec"
    if facts.decoupled:
        yield f"    Response Throughput: {number(summary.responses_per_second)} infer/sec"
    if options.verbose and not options.by_rate:
        yield f"    Avg client overhead: {summary.overhead_percent:.2f}%"
    if options.percentile < 0:
        mean, deviation = int(summary.average_us), int(summary.deviation_us)
        yield f"    Avg latency: {mean} usec (standard deviation {deviation} usec)"
    for percentile, value in summary.percentiles_us.items():
        yield f"    p{percentile} latency: {int(value)} usec"
    if options.by_rate:  # by concurrency, a stall also stops the requests that would show it
        yield f"    p{TAIL:g} latency: {int(summary.tail_us)} usec"
        yield f"    Max latency: {int(summary.highest_us)} usec"
    yield f"    {_times(options, summary)}" if not facts.decoupled else "    "


def _times(options: PerfOptions, summary: LoadSummary) -> str:
    send, receive = int(summary.send_us), int(summary.receive_us)
    both, wait = int(summary.send_us + summary.receive_us), int(summary.wait_us)
    whole = both + wait
    if options.protocol == "http":
        if options.verbose:
            parts = f"send {send} usec + response wait {wait} usec + receive {receive} usec"
        else:
            parts = f"send/recv {both} usec + response wait {wait} usec"
        return f"Avg HTTP time: {whole} usec ({parts})"
    if options.verbose:
        parts = f"marshal {send} usec + response wait {wait} usec + unmarshal {receive} usec"
    else:
        parts = f"(un)marshal request/response {both} usec + response wait {wait} usec"
    return f"Avg gRPC time: {whole} usec ({parts})"


def _server(facts: ModelFacts, server: ServerSide) -> Iterator[str]:
    if not server.composing:
        yield from _tally(server.model, cached=facts.cached, indent="    ")
        return
    model = server.model
    yield from _counts(model, cached=facts.cached, indent="    ")
    queue = server.part_us("queue")
    if facts.cached:
        cache = server.part_us("cache_hit") + sum(
            server.part_us(part)
            for part in ("cache_miss", "compute_input", "compute_infer", "compute_output")
        )
        yield (
            f"    Avg request latency: {int(model.request_us)} usec (overhead "
            f"{_rest(model.request_us, queue, cache)} usec + queue {int(queue)} usec + cache "
            f"hit/miss {int(cache)} usec)"
        )
        hits = sum(tally.each_us("cache_hit") for tally in server.composing.values())
        misses = sum(_missed_us(tally) for tally in server.composing.values())
        yield f"      Average Cache Hit Latency: {int(hits)} usec"
        yield f"      Average Cache Miss Latency: {int(misses)} usec "
    else:
        compute = sum(server.part_us(f"compute_{part}") for part in ("input", "infer", "output"))
        yield (
            f"    Avg request latency: {int(model.request_us)} usec (overhead "
            f"{_rest(model.request_us, queue, compute)} usec + queue {int(queue)} usec + compute "
            f"{int(compute)} usec)"
        )
    yield ""
    yield "  Composing models: "
    for index, ((name, version), tally) in enumerate(server.composing.items()):
        if index:
            yield ""
        yield f"  {name}, version: {version}"
        yield from _tally(tally, cached=facts.cached, indent="      ")


def _counts(tally: Tally, *, cached: bool, indent: str) -> Iterator[str]:
    yield f"{indent}Inference count: {tally.inferences}"
    yield f"{indent}Execution count: {tally.executions}"
    if cached:
        yield f"{indent}Cache hit count: {tally.counts['cache_hit']}"
        yield f"{indent}Cache miss count: {tally.counts['cache_miss']}"
    yield f"{indent}Successful request count: {tally.successes}"


def _tally(tally: Tally, *, cached: bool, indent: str) -> Iterator[str]:
    yield from _counts(tally, cached=cached, indent=indent)
    queue = tally.part_us("queue")
    parts = [tally.part_us(f"compute_{part}") for part in ("input", "infer", "output")]
    if not cached:
        yield (
            f"{indent}Avg request latency: {int(tally.request_us)} usec (overhead "
            f"{_rest(tally.request_us, queue, *parts)} usec + queue {int(queue)} usec + compute "
            f"input {int(parts[0])} usec + compute infer {int(parts[1])} usec + compute output "
            f"{int(parts[2])} usec)"
        )
        return
    both = tally.cache_us + sum(parts)
    yield (
        f"{indent}Avg request latency: {int(tally.request_us)} usec (overhead "
        f"{_rest(tally.request_us, queue, both)} usec + queue {int(queue)} usec + cache hit/miss "
        f"{int(both)} usec)"
    )
    lookup = tally.each_us("cache_miss")
    each = [tally.each_us(f"compute_{part}") for part in ("input", "infer", "output")]
    missed = _missed_us(tally)
    inner = indent + ("  " if indent == "    " else "    ")
    yield f"{inner}Average Cache Hit Latency: {int(tally.each_us('cache_hit'))} usec"
    yield (
        f"{inner}Average Cache Miss Latency: {int(missed)} usec (cache lookup/insertion "
        f"{int(lookup)} usec + compute input {int(each[0])} usec + compute infer {int(each[1])} "
        f"usec + compute output {int(each[2])} usec)"
    )


def _missed_us(tally: Tally) -> float:
    """The time of a cache miss: lookup, computation and insertion."""
    parts = ("cache_miss", "compute_input", "compute_infer", "compute_output")
    return sum(tally.each_us(part) for part in parts)


def _rest(whole: float, *parts: float) -> int:
    """The remainder after the parts, in whole numbers that add up to the whole."""
    return max(0, int(whole) - sum(int(part) for part in parts))


def final_table(options: PerfOptions, results: Sequence[LevelResult]) -> Iterator[str]:
    """All levels, a line each."""
    kind = "Average" if options.percentile < 0 else f"p{options.percentile}"
    yield f"Inferences/Second vs. Client {kind} Batch Latency"
    label = "Request Rate" if options.by_rate else "Concurrency"
    for result in sorted(results, key=lambda result: result.value):
        rate = number(result.summary.per_second)
        latency = int(result.summary.latency_us(options.only_percentile))
        value = f"{result.value:.0f}" if options.request_intervals else number(result.value)
        yield f"{label}: {value}, throughput: {rate} infer/sec, latency {latency} usec"

"""One run: workloads, rounds, peers, endpoints, concurrencies, nested in this order.

    for each workload: for each round: for each peer (each round begins with another one):
        start --> check a response, warm up, measure, check, per endpoint and concurrency --> stop

Only one server runs at a time: others would use the caches and, some of them, CPU time while idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import changing, limit
from benchmarks.claims import OURS
from benchmarks.environments import Unavailable
from benchmarks.loads import h2load, open_loop, perf_analyzer, program, wrk
from benchmarks.loads.program import LoadFailed, NeverEnded
from benchmarks.measures import Load, Measurement, quietest
from benchmarks.peers.base import Peer, Running, Target, WrongAnswer, serving
from benchmarks.processes import metered
from benchmarks.workloads import CHANGING, TAILS, Workload

WARM_UP_SECS = 1.0
WARM_UP_REQUESTS = 16  # at most, of a slow model; and of each, where there are many
MAX_HANGS = 4


@dataclass(frozen=True)
class Plan:
    """What to run and for how long."""

    workloads: list[Workload]
    peers: list[Peer]
    tools: tuple[str, ...]  # the load generators that there are
    with_limit: bool
    turns: int
    seconds: float  # of one load on a fast model
    slow_seconds: float  # the same for a slow model, as a number of requests
    tail_seconds: float = 30.0  # the same for the workload of the slowest requests
    concurrencies: tuple[int, ...] = ()  # replaces those of each workload
    named: bool = False  # the peers were selected by name, so each runs every workload
    quiet_cores: float = 0.0  # CPU use of others that invalidates a measurement; 0: none does


@dataclass
class Results:
    """The measurements of a run, and the peers it skipped."""

    measurements: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)  # who, from what, why

    def leave_out(self, peer: str, workload: str, reason: str) -> None:
        """Record once that a peer is skipped, and why."""
        entry = {"peer": peer, "workload": workload, "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)


def available_tools(results: Results) -> tuple[str, ...]:
    """The load generators that are installed or can be; the others are recorded with the reason."""
    found = []
    for name, have in (
        (wrk.NAME, lambda: program.find(wrk.NAME, "wrk")),
        (h2load.NAME, lambda: program.find(h2load.NAME, "nghttp2-client")),
        (perf_analyzer.NAME, program.perf_analyzer),
        (open_loop.NAME, open_loop.build),
        (open_loop.EQUAL, open_loop.build),
    ):
        try:
            have()
            found.append(name)
        except Unavailable as error:
            print(f"{name} is skipped: {error}", flush=True)
            results.leave_out(name, "all", str(error))
    return tuple(found)


def run(plan: Plan, workload: Workload, results: Results) -> None:
    """All rounds of one workload; prints each measurement as it is taken."""
    print(f"\n{workload.name}: {workload.title}", flush=True)
    peers: list[Peer | None] = [
        one
        for one in plan.peers
        if _is_meant(plan, one, workload) and _takes_part(one, workload, results)
    ]
    if plan.with_limit and workload.batches:
        peers.append(None)
    responders = [one for one in plan.peers if not one.computes]
    for turn in range(plan.turns):
        begin = turn % max(len(peers), 1)
        for peer in peers[begin:] + peers[:begin]:
            if peer is None:
                measure = partial(_limit, plan, workload, turn)
                _keep(results, quietest(measure, plan.quiet_cores))
            else:
                _one_peer(plan, peer, workload, turn, results)
        if workload.method == TAILS:
            own = _rates(workload, results, turn, [OURS])
            equal = _rates(workload, results, turn, [one.name for one in plan.peers])
            for peer in peers[begin:] + peers[:begin]:
                if peer is not None and equal:
                    _one_peer(plan, peer, workload, turn, results, {open_loop.EQUAL: equal})
            for peer in responders if own else []:
                both = {open_loop.NAME: own, open_loop.EQUAL: equal}
                _one_peer(plan, peer, workload, turn, results, both)


def _rates(
    workload: Workload, results: Results, turn: int, names: Sequence[str]
) -> dict[int, float]:
    """For each number of clients: the share of the peak rate of the slowest of these servers."""
    rates: dict[int, float] = {}
    for one in results.measurements:
        cell = one["workload"], one["tool"], one["turn"]
        if cell == (workload.name, wrk.NAME, turn) and one["peer"] in names:
            rate = open_loop.SHARE * one["per_second"]
            rates[one["concurrency"]] = min(rate, rates.get(one["concurrency"], rate))
    return rates


def _is_meant(plan: Plan, peer: Peer, workload: Workload) -> bool:
    if not peer.computes:
        return False
    return plan.named or not workload.usual_peers or peer.name in workload.usual_peers


def _takes_part(peer: Peer, workload: Workload, results: Results) -> bool:
    reason = peer.leaves_out(workload)
    if reason:
        results.leave_out(peer.name, workload.name, reason)
    return not reason


def _one_peer(
    plan: Plan,
    peer: Peer,
    workload: Workload,
    turn: int,
    results: Results,
    given: Mapping[str, Mapping[int, float]] | None = None,
) -> None:
    """All loads on a server; or those open loops for which rates are `given`, by number of
    clients."""
    try:
        with serving(peer, workload) as running:
            for measurement in _loads(plan, peer, workload, turn, running, results, given or {}):
                _keep(results, measurement)
    except Unavailable as error:
        print(f"  {peer.name}: skipped, {str(error)[:200]}", flush=True)
        results.leave_out(peer.name, workload.name, str(error)[-600:])


def _loads(
    plan: Plan,
    peer: Peer,
    workload: Workload,
    turn: int,
    running: Running,
    results: Results,
    given: Mapping[str, Mapping[int, float]],
) -> Iterator[Measurement]:
    own: dict[int, float] = {}  # rates
    if workload.method == CHANGING:
        try:
            yield from changing.run(peer.name, workload, turn, running)
        except (LoadFailed, OSError) as error:
            print(f"  {peer.name}: {workload.name} failed: {error}", flush=True)
            results.leave_out(peer.name, workload.name, f"turn {turn + 1}: {error}")
        return
    for target in running.targets:
        tools = _tools(workload, target)
        for tool in given if given and tools else tools:
            if tool not in plan.tools:
                continue
            for concurrency in plan.concurrencies or workload.concurrencies:
                job = Job(plan, peer.name, workload, turn, running, target, tool, concurrency)
                job.rate = given.get(tool, own).get(concurrency, 0.0)
                try:
                    measurement = quietest(job.until_ended, plan.quiet_cores)
                    if tool == wrk.NAME:
                        own[concurrency] = open_loop.SHARE * measurement.per_second
                    yield measurement
                except (LoadFailed, WrongAnswer, OSError) as error:
                    where = f"{workload.name} {tool} {target.protocol} {concurrency}"
                    print(f"  {peer.name}: {where} failed: {error}", flush=True)
                    results.leave_out(peer.name, where, f"turn {turn + 1}: {error}")
                    if running.family.head.poll() is not None:
                        return


def _tools(workload: Workload, target: Target) -> list[str]:
    """For HTTP wrk, for gRPC h2load; h2load for both if the number of requests is fixed.

    The slowest requests are those over HTTP, of clients that wait and of clients that do not; the
    former tell the peak rate, of which the latter send a share.
    """
    if workload.method == TAILS:
        return [wrk.NAME, open_loop.NAME] if target.protocol == "http" else []
    tools = [h2load.NAME if workload.compute_bound or target.protocol == "grpc" else wrk.NAME]
    if workload.perf_analyzer and target.v2_model:
        tools.append(perf_analyzer.NAME)
    return tools


@dataclass
class Job:
    """One load on one endpoint."""

    plan: Plan
    peer: str
    workload: Workload
    turn: int
    running: Running
    target: Target
    tool: str
    concurrency: int
    rate: float = 0.0  # requests a second of an open loop

    def until_ended(self) -> Measurement:
        """`measure`, repeated if the load generator hung. Raises what `measure` raises."""
        for _ in range(MAX_HANGS):
            try:
                return self.measure()
            except NeverEnded as error:
                print(f"  {self.peer}: {error}; trying again", flush=True)
        return self.measure()

    def measure(self) -> Measurement:
        """Check, warm up, load, check. Raises LoadFailed or WrongAnswer; the server runs on."""
        family = self.running.family
        self.target.ask(self.workload)
        requests = self._warm_up()
        before = self._served()
        with metered(family) as usage:
            load = self._load(requests)
        served = self._served() - before
        self.target.ask(self.workload)
        shared_once, plain = family.memory_bytes()
        return Measurement(
            self.workload.name,
            self.peer,
            self.tool,
            self.target.protocol,
            self.concurrency,
            self.turn,
            load.requests,
            load.per_second,
            load.p50_us,
            load.p99_us,
            1e6 * usage.server_secs / max(served or load.requests, 1),
            shared_once / 1e6,
            plain / 1e6,
            self.running.ready_secs,
            usage.load_cores,
            usage.others_cores,
            load.errors,
            p999_us=load.p999_us if self.workload.method == TAILS else None,
            max_us=load.max_us if self.workload.method == TAILS else None,
            late_share=load.late_share,
        )

    def _warm_up(self) -> int:
        """A short load of the same kind; returns the number of requests if that is fixed."""
        if not self.workload.compute_bound:
            if self._quick_tool in self.plan.tools:
                left = WARM_UP_REQUESTS * self.workload.copies
                while left > 0:
                    answered = self._quick(WARM_UP_SECS).requests
                    if not answered:
                        raise LoadFailed(f"no answer within {WARM_UP_SECS} s of warming up")
                    left -= answered
            return 0
        few = min(self.concurrency, WARM_UP_REQUESTS)
        load = h2load.run(self.target, few, requests=few)
        rate = load.requests / max(load.seconds, 1e-9)
        return max(round(1.5 * self.concurrency), round(rate * self.plan.slow_seconds))

    def _load(self, requests: int) -> Load:
        if self.tool == perf_analyzer.NAME:
            return perf_analyzer.run(
                self.target, self.workload, self.concurrency, self.plan.seconds
            )
        if self.tool in {open_loop.NAME, open_loop.EQUAL}:
            return open_loop.run(
                self.target,
                self.concurrency,
                self.rate,
                self.plan.tail_seconds,
                self._answer_bytes,
            )
        if requests:
            return h2load.run(
                self.target, self.concurrency, requests=requests, answer=self._answer_bytes
            )
        tails = self.workload.method == TAILS
        return self._quick(self.plan.tail_seconds if tails else self.plan.seconds)

    @property
    def _quick_tool(self) -> str:
        return wrk.NAME if self.target.protocol == "http" else h2load.NAME

    def _quick(self, seconds: float) -> Load:
        if self._quick_tool == wrk.NAME:
            return wrk.run(self.target, self.concurrency, seconds)
        return h2load.run(self.target, self.concurrency, seconds=seconds, answer=self._answer_bytes)

    @property
    def _answer_bytes(self) -> int:
        return self.running.answer_bytes[self.target.protocol]

    def _served(self) -> int:
        """The server's own request count: perf_analyzer only reports its last windows."""
        return self.target.served() if self.tool == perf_analyzer.NAME else 0


def _limit(plan: Plan, workload: Workload, turn: int) -> Measurement:
    """The plain loop, with the CPU time that other processes used meanwhile."""
    seconds = plan.slow_seconds / 3 if workload.compute_bound else 1.0
    with metered() as usage:
        measurement = limit.run(workload, turn, seconds)
    measurement.others_cores = usage.others_cores
    return measurement


def _keep(results: Results, measurement: Measurement) -> None:
    results.measurements.append(measurement.record())
    p50 = "" if measurement.p50_us is None else f"  p50 {measurement.p50_us / 1e3:9.2f} ms"
    if measurement.p999_us is not None and measurement.max_us is not None:
        p50 += f"  p99.9 {measurement.p999_us / 1e3:.2f}  max {measurement.max_us / 1e3:.2f} ms"
    if measurement.settle_secs is not None:
        p50 += f"  {measurement.of_steady:.0%} of steady after {measurement.settle_secs:.2f} s"
    cpu = "" if measurement.cpu_us is None else f"  CPU {measurement.cpu_us:9,.1f} us"
    others = measurement.others_cores or 0.0
    print(
        f"  {measurement.turn + 1}  {measurement.peer:<15} {measurement.tool:<13} "
        f"{measurement.protocol:<4} {measurement.concurrency:>4} "
        f"{measurement.per_second:>11,.1f}/s{p50}{cpu}"
        f"{f'  others {others:.2f}' if others > 0.2 else ''}"
        f"{f'  errors {measurement.errors}' if measurement.errors else ''}",
        flush=True,
    )

"""The conclusions from the table, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shoal.stress.cell import DISTURBED, Cell, ServerSetup
from shoal.stress.plan import StressResult
from shoal.stress.table import PARTIAL, milliseconds, speed_up

_SHOWN_FAILURES = 3
_SAME = 0.05  # smaller differences count as none


def verdict(outcome: StressResult) -> list[str]:
    """About batching, sessions, failures, and whether the clients were fast enough."""
    return [
        *_batching(outcome),
        *_sessions(outcome),
        *_failures(outcome),
        *_client(outcome),
        *_others(outcome),
        *_interrupted(outcome),
    ]


def _batching(outcome: StressResult) -> Iterator[str]:
    """The effect of batching with the most clients, and with the fewest."""
    known = []
    for setup in outcome.setups():
        if setup.batching is not False:
            continue
        for clients in outcome.plan.clients:
            without = outcome.cell(setup, clients)
            batched = outcome.cell(ServerSetup(setup.sessions, batching=True), clients)
            times = speed_up(without, batched)
            if without is not None and batched is not None and times is not None:
                known.append((times, without, batched))
    if not known:
        return
    most = max(without.clients for _, without, _ in known)
    times, without, batched = max(
        (entry for entry in known if entry[1].clients == most), key=lambda entry: entry[0]
    )
    yield f"{_where(without)}, batching {_changes(without, batched, times)}{_batches(batched)}."
    times, without, batched = known[0]
    if without.clients < most:
        yield f"{_where(without)}, it {_changes(without, batched, times)}."


def _changes(without: Cell, batched: Cell, times: float) -> str:
    latencies = f"{milliseconds(without.mean_ms)} to {milliseconds(batched.mean_ms)} ms"
    rates = f"{without.per_second:,.0f} to {batched.per_second:,.0f} answers a second"
    if abs(times - 1) < _SAME:
        return f"changes little ({latencies})"
    word = f"{times:.1f} times as fast" if times > 1 else f"{1 / times:.1f} times as slow"
    return f"makes answers {word} ({latencies}, {rates})"


def _batches(cell: Cell) -> str:
    if cell.mean_batch is None:
        return ""
    return f"; the mean batch was {cell.mean_batch:.1f} questions"


def _where(cell: Cell) -> str:
    sessions = cell.setup.sessions
    clients = f"With {_count(cell.clients, 'client')}"
    return clients if sessions is None else f"{clients} and {_count(sessions, 'session')}"


def _sessions(outcome: StressResult) -> Iterator[str]:
    """The effect of more sessions, without and with batching."""
    for batching in (False, True):
        setups = [
            setup
            for setup in outcome.setups()
            if setup.batching is batching and setup.sessions is not None
        ]
        if len(setups) < 2:
            continue
        for clients in reversed(outcome.plan.clients):
            first, last = (outcome.cell(setup, clients) for setup in (setups[0], setups[-1]))
            if first is None or last is None or not first.answered or not last.answered:
                continue
            times = last.per_second / first.per_second
            words = "With batching" if batching else "Without batching"
            times_as = "" if abs(times - 1) < _SAME else f"{times:.2f} times "
            yield (
                f"{words} and with {_count(clients, 'client')}, "
                f"{_count(last.setup.sessions or 0, 'session')} give {times_as}as many answers a "
                f"second as {first.setup.sessions} "
                f"({first.per_second:,.0f} to {last.per_second:,.0f})."
            )
            break


def _failures(outcome: StressResult) -> Iterator[str]:
    failures: Counter[str] = Counter()
    for cell in outcome.cells:
        failures.update(cell.failures)
    if not failures:
        return
    yield f"{outcome.failed:,} of {outcome.total_questions:,} questions were not answered:"
    for sentence, count in failures.most_common(_SHOWN_FAILURES):
        yield f"  {count:,} times: {sentence}"
    rest = len(failures) - _SHOWN_FAILURES
    if rest > 0:
        yield f"  and {_count(rest, 'other reason')}"


def _client(outcome: StressResult) -> Iterator[str]:
    bound = [cell for cell in outcome.cells if cell.client_bound]
    if bound:
        worst = max(bound, key=lambda cell: cell.busy + cell.starved)
        batching = {True: ", with batching", False: ", without batching", None: ""}
        yield (
            f"The clients were the bottleneck in {len(bound)} of "
            f"{_count(len(outcome.cells), 'cell')}, so the server can do more than is shown. "
            f"{_where(worst)}{batching[worst.setup.batching]}, they used a CPU {worst.busy:.0%} of "
            f"the time and waited for one {worst.starved:.0%} of it; run the clients on another "
            f"machine."
        )
    elif outcome.cells:
        busiest = max(cell.busy for cell in outcome.cells)
        yield (
            f"The clients were not the bottleneck: they were busy {busiest:.0%} of the time at "
            f"most."
        )


def _others(outcome: StressResult) -> Iterator[str]:
    shares = [cell.others for cell in outcome.cells if cell.others is not None]
    if shares and max(shares) > DISTURBED:
        yield (
            f"Other programs used {min(shares):.0%} to {max(shares):.0%} of this machine's "
            f"CPUs during the run: measure again when the machine is idle."
        )


def _interrupted(outcome: StressResult) -> Iterator[str]:
    if any(cell.partial for cell in outcome.cells):
        yield f"{PARTIAL} interrupted before all questions were sent."


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

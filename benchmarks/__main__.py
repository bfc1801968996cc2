"""Run the benchmark suite: `python -m benchmarks [--workloads W1] [--peers shoal,triton] ...`

    any Python --makes--> .tools/bench/runner --starts there--> the run --> benchmarks/results/

It starts with the standard library only; everything else is installed into its own environments.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.environments import RUNNER, Unavailable, ensure
from benchmarks.places import HOME, RESULTS, ROOT

LIMIT = "onnxruntime"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--workloads", default="all", help="names separated by commas, or all; see --list")
    add("--peers", default="all", help="names separated by commas, or all (default); see --list")
    add("--turns", type=int, default=3, help="rounds, with each peer once a round (default 3)")
    add("--seconds", type=float, default=2.0, help="length of a load on fast models (default 2)")
    add("--slow-seconds", type=float, default=6.0, help="the same for W2 and W3 (default 6)")
    add("--tail-seconds", type=float, default=30.0, help="the same for tails (default 30)")
    add("--concurrency", default="", help="1,16,64: replaces the levels of each workload")
    add(
        "--quiet",
        type=float,
        default=0.0,
        metavar="CORES",
        help="measure again, up to three times, if others use more cores (default: never)",
    )
    add("--growth", default="yes", choices=("yes", "no", "only"), help="how Shoal's cost grows")
    add("--name", default="local", help="results are written to benchmarks/results/NAME.*")
    add("--keep", action="store_true", help="keep the results of workloads that are not run")
    add("--render", action="store_true", help="only rewrite the report and plots of NAME.json")
    add("--list", action="store_true", help="list workloads and peers, then exit")
    return parser.parse_args()


def main() -> int:
    """Restart in the runner's environment, then run."""
    arguments = options()
    if Path(sys.prefix).resolve() != (HOME / "runner").resolve():
        try:
            python = ensure("runner", RUNNER)
        except Unavailable as error:
            print(f"the environment of the benchmark cannot be created: {error}", file=sys.stderr)
            return 1
        os.chdir(ROOT)
        os.execv(python, [str(python), "-m", "benchmarks", *sys.argv[1:]])  # noqa: S606  ourselves
    if arguments.list:
        return _list()
    path = RESULTS / f"{arguments.name}.json"
    if not arguments.render:
        RESULTS.mkdir(parents=True, exist_ok=True)
        _measure(arguments, path)
    return _render(path, arguments.name)


def _measure(arguments: argparse.Namespace, path: Path) -> None:
    """Write the JSON after each workload. An interrupted run stops its servers and keeps its
    results."""
    from benchmarks import bench, growth, machine, report

    signal.signal(signal.SIGINT, _interrupt)  # in the background it would be ignored
    signal.signal(signal.SIGTERM, _interrupt)
    where = machine.describe()
    print(f"{where['cpu']}, {where['cores']} cores, load average {where['load_average']}")
    results = bench.Results()
    workloads, peers = _choose(arguments, results)
    plan = bench.Plan(
        workloads,
        peers,
        bench.available_tools(results),
        with_limit=arguments.peers == "all" or LIMIT in arguments.peers.split(","),
        turns=arguments.turns,
        seconds=arguments.seconds,
        slow_seconds=arguments.slow_seconds,
        tail_seconds=arguments.tail_seconds,
        concurrencies=tuple(int(one) for one in arguments.concurrency.split(",") if one),
        named=arguments.peers != "all",
        quiet_cores=arguments.quiet,
    )
    run = _description(arguments, where)
    run |= {"measurements": results.measurements, "growth": {}, "left_out": results.left_out}

    earlier = json.loads(path.read_text("utf-8")) if arguments.keep and path.exists() else None

    def save() -> None:
        run["peers"] = _described(peers)  # some know their versions only once they have run
        run["load_average_after"] = machine.load_average()
        whole = report.merged(earlier, run) if earlier else run
        path.write_text(report.as_json(whole), encoding="utf-8")

    try:
        for workload in workloads if arguments.growth != "only" else []:
            run["workloads"].append(_taken(workload, where))
            bench.run(plan, workload, results)
            save()
        if arguments.growth != "no" and any(peer.name == "shoal" for peer in peers):
            print("\nhow cost grows", flush=True)
            run["growth"] = growth.run(arguments.turns, arguments.seconds, arguments.quiet)
    except KeyboardInterrupt:
        print("\ninterrupted: results so far are kept", file=sys.stderr)
    save()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _description(arguments: argparse.Namespace, where: dict[str, Any]) -> dict[str, Any]:
    """The machine, the versions and the options of the run. Workloads are added as they begin: with
    --keep, those that a run did not come to keep their earlier results."""
    from benchmarks import machine

    return {
        "machine": where,
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "turns": arguments.turns,
        "seconds": arguments.seconds,
        "workloads": [],
        "peers": {},
        "tools": machine.tool_versions(),
    }


def _taken(workload: Any, where: dict[str, Any]) -> dict[str, Any]:
    """A workload, and when it was measured."""
    return {
        "name": workload.name,
        "title": workload.title,
        "compute_bound": workload.compute_bound,
        "taken": {"when": where["when"], "commit": where["commit"]},
    }


def _described(peers: list[Any]) -> dict[str, Any]:
    """Title, settings and versions of each peer, and of the limit."""
    from benchmarks import limit

    described: dict[str, Any] = {
        peer.name: {"title": peer.title, "settings": peer.settings, "versions": peer.versions()}
        for peer in peers
    }
    described[LIMIT] = {"title": limit.TITLE, "settings": "", "versions": {}}
    return described


def _choose(arguments: argparse.Namespace, results: Any) -> tuple[list[Any], list[Any]]:
    """The selected workloads, and the selected peers that could be installed."""
    from benchmarks.peers.registry import PEERS
    from benchmarks.workloads import WORKLOADS

    names = list(WORKLOADS) if arguments.workloads == "all" else arguments.workloads.split(",")
    wanted = list(PEERS) if arguments.peers == "all" else arguments.peers.split(",")
    for name in names:
        if name not in WORKLOADS:
            sys.exit(f"there is no workload {name!r}; choose from {', '.join(WORKLOADS)}")
    peers = []
    for name in wanted:
        if name == LIMIT:
            continue
        if name not in PEERS:
            sys.exit(f"there is no peer {name!r}; choose from {', '.join([*PEERS, LIMIT])}")
        try:
            PEERS[name].install()
            peers.append(PEERS[name])
        except Unavailable as error:
            print(f"{name} is skipped: {error}", flush=True)
            results.leave_out(name, "all", str(error))
    return [WORKLOADS[name] for name in names], peers


def _render(path: Path, name: str) -> int:
    from benchmarks import plots, report

    if not path.exists():
        print(f"there are no results in {path}; run without --render first", file=sys.stderr)
        return 1
    run = json.loads(path.read_text(encoding="utf-8"))
    text = report.markdown(run, plots.draw(run, RESULTS, name))
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    return 0


def _list() -> int:
    from benchmarks.peers.registry import PEERS
    from benchmarks.workloads import WORKLOADS

    for workload in WORKLOADS.values():
        print(f"{workload.name:<16} {workload.title}")
    for peer in PEERS.values():
        print(f"{peer.name:<16} {peer.title}: {peer.settings}")
    print(f"{LIMIT:<16} the plain ONNX Runtime loop")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare the search of `shoal tune` with a full grid search.

    python -m benchmarks.tune_grid [--window 400] [--clients 16] [--max-batch 16] [--turns 3]

Two models: four dense layers, which gain by batches and threads, and the sum and difference of two
rows, which take almost no time. For each, the search of `shoal tune` comes first, then every config
of the grid, measured the same way. The two chosen configs are then measured alternately, because
the speed of a machine varies from minute to minute; the medians are compared. The search should be
within 3 % and take at most a fifth of the measurements. A grid takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe, load_average
from shoal.cli.check import preparation_settings
from shoal.config.options import Options
from shoal.tune.configs import Bounds
from shoal.tune.goal import Goal
from shoal.tune.measuring import LoadPlan, MeasurementSetup
from shoal.tune.run import TunedModel, find
from shoal.tune.search import Search
from shoal.tune.serving import ChildServer
from shoal.tune.space import ConfigPoint
from shoal.tune.text import described
from tests.support import onnx_models
from tests.support.repositories import add_onnx

BAR, FIFTH = 0.97, 5


def compare(model: TunedModel, plan: LoadPlan, bounds: Bounds, clients: int, turns: int) -> str:
    """One row of the table: both searches, on one server."""
    subject, goal = model.subject, Goal()
    space = subject.space(bounds, (clients,))
    options = Options(model_repository=(str(model.repository),))
    with ChildServer(options) as server, MeasurementSetup(server, subject, plan) as setup:
        finding = Search(space, goal, setup).run(subject.start())
        grid = [setup(point, clients, False) for point in space.points()]
        winner = max(grid, key=goal.rank)
        places = {"search": finding.chosen.point, "grid": winner.point}
        rates: dict[str, list[float]] = {name: [] for name in places}
        for _ in range(turns):
            for name, point in places.items():
                rates[name].append(setup(point, clients, True).per_second)
    return _row(model.name, places, rates, len(finding.tries), len(grid))


def _row(
    name: str, places: dict[str, ConfigPoint], rates: dict[str, list[float]], tries: int, grid: int
) -> str:
    search, best = (statistics.median(rates[way]) for way in ("search", "grid"))
    good = search >= best * BAR and tries * FIFTH <= grid
    return (
        f"| {name} | {tries} | {grid} | {described(places['search'])} | {described(places['grid'])}"
        f" | {search:,.0f} | {best:,.0f} | {search / best:.2f} | {'yes' if good else 'NO'} |"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Compare on both models and print a table with the machine and the commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=int, default=400, help="milliseconds")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args(words)
    plan = LoadPlan(window_secs=asked.window / 1000)
    bounds = Bounds(asked.max_batch)
    print(", ".join(f"{key} {value}" for key, value in describe().items()))
    print(f"load average before: {load_average():.1f}")
    print("| model | tries | grid | search chose | grid chose | search/s | grid/s | ratio | good |")
    print("|---|---:|---:|---|---|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        add_onnx(repository, "layers", onnx_models.matmul_chain(512, 4))
        add_onnx(repository, "add_sub", onnx_models.add_sub("FP32"))
        for name in ("layers", "add_sub"):
            model = find([name], folder, preparation_settings(Options(model_repository=(folder,))))
            print(compare(model, plan, bounds, asked.clients, asked.turns), flush=True)


if __name__ == "__main__":
    main()

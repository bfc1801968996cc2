"""`--csv`, a line for each cell, and `--json`, the same with the settings of the run."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
from typing import Any

import shoal
from shoal.stress.cell import Cell
from shoal.stress.plan import StressResult

COLUMNS = (
    "sessions",
    "batching",
    "clients",
    "answered",
    "failed",
    "mean_ms",
    "deviation_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "per_second",
    "mean_batch",
    "client_busy",
    "client_bound",
    "others",
    "complete",
)


def csv_text(outcome: StressResult) -> str:
    """The table, a line for each cell."""
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_entry, outcome.cells))
    return made.getvalue()


def json_text(outcome: StressResult) -> str:
    """The settings of the run and every cell."""
    plan = outcome.plan
    document = {
        "server": outcome.what,
        "protocol": plan.protocol,
        "questions": len(plan.questions),
        "requests_per_client": plan.requests,
        "least_requests_per_cell": plan.least_requests,
        "warmup_per_client": plan.warmup,
        "seed": plan.seed,
        "cores": outcome.cores,
        "platform": platform.platform(),
        "shoal": shoal.__version__,
        "interrupted": outcome.interrupted,
        "cells": [
            {**_entry(cell), "failures": dict(cell.failures.most_common())}
            for cell in outcome.cells
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _entry(cell: Cell) -> dict[str, Any]:
    return {
        "sessions": cell.setup.sessions,
        "batching": cell.setup.batching,
        "clients": cell.clients,
        "answered": cell.answered,
        "failed": cell.failed,
        "mean_ms": _number(cell.mean_ms),
        "deviation_ms": _number(cell.deviation_ms),
        "p50_ms": _number(cell.percentile_ms(50)),
        "p95_ms": _number(cell.percentile_ms(95)),
        "p99_ms": _number(cell.percentile_ms(99)),
        "per_second": _number(cell.per_second),
        "mean_batch": None if cell.mean_batch is None else _number(cell.mean_batch),
        "client_busy": _number(cell.busy),
        "client_bound": cell.client_bound,
        "others": None if cell.others is None else _number(cell.others),
        "complete": not cell.partial,
    }


def _number(value: float) -> float | None:
    """Three decimals; None for NaN."""
    return None if math.isnan(value) else round(value, 3)

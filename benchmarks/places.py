"""Folders of the benchmark: environments, models, logs and results."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".tools" / "bench"  # one virtual environment per peer, models, logs; git ignores it
MODELS = HOME / "models"
LOGS = HOME / "logs"
WORK = HOME / "work"  # model repositories and request bodies of the run in progress
RESULTS = ROOT / "benchmarks" / "results"
SERVICES = ROOT / "benchmarks" / "peers" / "services"

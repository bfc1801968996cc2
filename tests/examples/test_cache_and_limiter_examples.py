"""The examples of the response cache and of the rate limiter, with the servers they need."""

from __future__ import annotations

from pathlib import Path

from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support.scripts import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def test_the_second_answer_comes_from_the_cache():
    models = FOLDER / "response_cache" / "models"
    with running_server(models, cache_config=(NamedSetting("local", "size", "64M"),)) as running:
        printed = run_script(FOLDER / "response_cache/ask.py", running.http_address)
    assert "3 responses, 1 execution" in printed
    assert "2 hits, 1 miss" in printed


def test_models_that_share_a_resource_do_not_overlap():
    models = FOLDER / "rate_limiter" / "models"
    with running_server(models, rate_limit="execution_count") as running:
        printed = run_script(FOLDER / "rate_limiter/ask.py", running.http_address)
    assert "8 executions in" in printed
    assert "0 overlap" in printed

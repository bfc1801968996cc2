"""deploy/monitoring: the dashboard and the alert rules use metrics that exist, and are valid."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

from shoal.config.options import NamedSetting
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.keys import bearer, write_keys
from tests.support.repositories import add_fake, parameter

yaml = pytest.importorskip("yaml")

# Of models and machines that the server here does not have; declared in the source.
ELSEWHERE = {
    "nv_gpu_memory_total_bytes",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_utilization",
    "shoal_model_evictions_total",
    "shoal_on_demand_loads_total",
    "shoal_process_restarts_total",
}
OWN = {"up"}  # of Prometheus itself
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset", "e"}


@pytest.fixture(scope="module")
def folder(root):
    return root / "deploy" / "monitoring"


@pytest.fixture(scope="module")
def rules(folder):
    document = yaml.safe_load((folder / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def dashboard(folder):
    return json.loads((folder / "dashboard.json").read_text())


def queries(dashboard):
    """Every PromQL expression of the dashboard, and those inside `label_values(…)`."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in dashboard["annotations"]["list"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1]


def metrics_in(expression):
    """The metric names in a PromQL expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", re.sub(r'"[^"]*"', "", expression))
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    found = re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", bare)
    return {name for name in found if name not in WORDS}


def test_the_metrics_of_an_expression():
    text = 'sum by (le, model) (rate(a_bucket{x="{b}",y=~"c|d"}[5m])) / 2 > 1 and e_total offset 5m'
    assert metrics_in(text) == {"a_bucket", "e_total"}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server with a cache and keys, whose model has served and failed."""
    models, own = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("own")
    add_fake(models, "m", "response_cache { enable: true }")
    limits = {"execution_timeout_ms": "60000", "target_latency_ms": "1000"}
    add_fake(models, "limited", "".join(parameter(*limit) for limit in limits.items()))
    keys = write_keys(own / "keys.jsonl", app={"apis": ("*",)})
    with running_server(
        models,
        backends=FakeBackend().registry(),
        cache_config=(NamedSetting("local", "size", "1M"),),
        api_keys=keys,
        keyless_api="health,metrics",
    ) as server:
        infer = Infer().add("INPUT0", np.array([[1]], np.int32))
        assert infer.send(server, "m", headers=bearer("app")).status == 200
        assert server.get("/v2/models/m").status == 401
        yield server


def test_every_metric_exists(root, folder, running, rules, dashboard):
    scaling = yaml.safe_load((folder / "scaling.yml").read_text())["groups"][0]["rules"]
    made = "|".join(re.escape(rule["record"]) for rule in scaling)
    used = set().union(
        *(metrics_in(rule["expr"]) for rule in rules),
        *(metrics_in(re.sub(made, "1", rule["expr"])) for rule in scaling),
        *(metrics_in(query) for query in queries(dashboard)),
    )
    lines = running.metrics().splitlines()
    scraped = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    assert used - scraped - OWN == ELSEWHERE
    source = "".join(path.read_text() for path in (root / "src" / "shoal").rglob("*.py"))
    assert [name for name in sorted(ELSEWHERE) if f'"{name}"' not in source] == []


def test_every_alert_is_described_and_tested(folder, rules):
    tests = yaml.safe_load((folder / "alerts_test.yml").read_text())["tests"]
    raised = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    quiet = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if not case.get("exp_alerts")
    }
    names = {rule["alert"] for rule in rules}
    assert (raised, quiet) == (names, names)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


# ---- by Prometheus' own programs


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "rules", "scaling.yml"),
        ("test", "rules", "scaling_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(folder, words):
    done = subprocess.run(
        ["promtool", *words],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong_with_the_metrics(running):
    """Its advice about names is left out: many are Triton's."""
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        check=False,
        input=running.metrics(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
    )
    faults = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert faults == []


class Prometheus:
    """A running Prometheus, by its API."""

    def __init__(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path, **parameters):
        """The data of an answer; None while it starts. Fails for a query that is refused."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_SECS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    pytest.fail(error.read().decode())
            return None
        except OSError:
            assert self._process.poll() is None, "Prometheus has ended"
            return None

    def stop(self):
        self._process.terminate()
        self._process.wait(WAIT_SECS)


@pytest.fixture(scope="module")
def prometheus(running, folder, tmp_path_factory):
    """A Prometheus with the configuration and the rules, which scrapes the server every second."""
    own = tmp_path_factory.mktemp("prometheus")
    shutil.copy(folder / "alerts.yml", own)
    text = (folder / "prometheus.yml").read_text()
    text = text.replace("localhost:8002", running.metrics_address).replace(": 15s", ": 1s")
    (own / "prometheus.yml").write_text(text)
    started = Prometheus(own)
    try:
        wait_until(lambda: started.ask("status/buildinfo"), "Prometheus has started")
        yield started
    finally:
        started.stop()


@pytest.mark.prometheus
def test_prometheus_scrapes_the_server_and_evaluates_the_rules(prometheus, rules):
    def target_is_up():
        targets = prometheus.ask("targets")["activeTargets"]
        return [target["health"] for target in targets] == ["up"]

    def evaluated():
        groups = prometheus.ask("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return [rule["health"] for rule in found] == ["ok"] * len(rules)

    wait_until(target_is_up, "the target is up")
    wait_until(evaluated, "every rule was evaluated without an error")
    firing = prometheus.ask("alerts")["alerts"]
    assert [alert["labels"]["alertname"] for alert in firing] == []


@pytest.mark.prometheus
def test_prometheus_understands_every_query_of_the_dashboard(prometheus, dashboard):
    def one(expression):
        values = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*", "$model": ".*"}
        for name, value in values.items():
            expression = expression.replace(name, value)
        return prometheus.ask("query", query=expression)["result"]

    wait_until(lambda: prometheus.ask("query", query="shoal_ready")["result"], "there are samples")
    found = {query: one(query) for query in queries(dashboard)}
    ready = next(result for query, result in found.items() if query.startswith("min(shoal_ready"))
    assert ready[0]["value"][1] == "1"

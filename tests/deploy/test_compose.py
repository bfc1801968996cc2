"""deploy/compose: its files fit together, and its services run together, by podman-compose.

Prometheus is Debian's, the store is rclone from PyPI; a stand-in takes the place of the collector.
Grafana cannot be had without a registry of images: it is not started.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.http

from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until

yaml = pytest.importorskip("yaml")

# Prints what it is sent, as the collector's exporter `debug` does.
COLLECTOR = """
import http.server, json

class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("", 4318), Collector).serve_forever()
"""


@pytest.fixture(scope="module")
def folder(root):
    return root / "deploy" / "compose"


@pytest.fixture(scope="module")
def services(folder):
    return yaml.safe_load((folder / "compose.yaml").read_text())["services"]


def mounts(service):
    """Where the files of a service come from, by their paths in the container."""
    pairs = (volume.split(":")[:2] for volume in service.get("volumes", ()))
    return {inner: outer for outer, inner in pairs}


# ---- the files


def test_mounted_files_exist(folder, services):
    found = [path for service in services.values() for path in mounts(service).values()]
    files = [path for path in found if path.startswith(".")]
    assert "../monitoring/dashboard.json" in files
    assert "../monitoring/alerts.yml" in files
    assert [path for path in files if not (folder / path).is_file()] == []


def test_every_variable_is_described(folder):
    used = set(re.findall(r"\$\{(\w+)", (folder / "compose.yaml").read_text()))
    example = (folder / ".env.example").read_text()
    described = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", example))
    assert used == described


def test_images_have_versions(services):
    for name, service in services.items():
        default = re.fullmatch(r"\$\{\w+:-(.+)\}", service["image"])[1]
        assert re.search(r":(v?\d[\w.-]*|compose)$", default), name


def test_services_have_no_privileges(services):
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert [name for name, each in services.items() if not each.get("read_only")] == ["grafana"]


def test_grafana_reads_the_dashboard_that_is_mounted(folder, services):
    grafana = mounts(services["grafana"])
    (provider,) = yaml.safe_load((folder / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert grafana[f"{provider['options']['path']}/shoal.json"] == "../monitoring/dashboard.json"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in grafana
    sources = yaml.safe_load((folder / "grafana" / "datasources.yaml").read_text())["datasources"]
    dashboard = json.loads((folder / ".." / "monitoring" / "dashboard.json").read_text())
    (variable,) = (v for v in dashboard["templating"]["list"] if v["type"] == "datasource")
    assert [source["type"] for source in sources if source["isDefault"]] == [variable["query"]]


def test_the_pipeline_of_the_collector(folder, services):
    settings = yaml.safe_load((folder / "collector.yaml").read_text())
    for kind, names in settings["service"]["pipelines"]["traces"].items():
        assert set(names) <= set(settings[kind])
    port = settings["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    url = f"--trace-config=opentelemetry,url=http://collector:{port}/v1/traces"
    assert url in services["shoal"]["command"]


@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong(folder, services, tmp_path):
    for inner, outer in mounts(services["prometheus"]).items():
        if outer.startswith("."):
            shutil.copy(folder / outer, tmp_path / inner.rpartition("/")[2])
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_SECS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the services


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Stack:
    """The services, started by podman-compose."""

    def __init__(self, containers, folder, settings):
        self._containers = containers
        self._folder = folder
        self.settings = settings

    def __call__(self, *words, check=True):
        program = shutil.which("podman-compose")
        command = (sys.executable, program, "--file", self._folder / "compose.yaml")
        return self._containers(*command, *words, check=check, environment=self.settings)

    def log(self, service):
        done = self("logs", service)
        return done.stdout + done.stderr

    def get(self, port, path):
        """The body of an answer; nothing if there is none, or an error."""
        url = f"http://127.0.0.1:{self.settings[port]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_SECS) as answer:
                return answer.read() or b"{}"
        except (urllib.error.URLError, OSError):
            return b""

    def ask(self, path):
        """The data of an answer of Prometheus, or nothing."""
        return json.loads(self.get("PROMETHEUS_PORT", f"/api/v1/{path}") or b'{"data": null}')[
            "data"
        ]


@pytest.fixture(scope="module")
def stack(containers, image, folder, tmp_path_factory):
    if shutil.which("podman-compose") is None:
        pytest.skip("needs podman-compose (pip install podman-compose)")
    rclone = tmp_path_factory.mktemp("rclone") / "rclone"
    shutil.copy(shutil.which("rclone"), rclone)
    containers.build(
        "localhost/rclone:test",
        'FROM localhost/debian:slim\nCOPY rclone /rclone\nENTRYPOINT ["/rclone"]\n',
        rclone,
    )
    containers.make_base("localhost/debian:prometheus", "prometheus")
    containers.build(
        "localhost/prometheus:test",
        'FROM localhost/debian:prometheus\nENTRYPOINT ["/usr/bin/prometheus"]\n',
    )
    program = tmp_path_factory.mktemp("collector") / "collector.py"
    program.write_text(COLLECTOR)
    containers.build(
        "localhost/collector:test",
        f'FROM {image}\nCOPY collector.py /collector.py\nENTRYPOINT ["python", "/collector.py"]\n',
        program,
    )
    settings = {
        "SHOAL_IMAGE": image,
        "RCLONE_IMAGE": "localhost/rclone:test",
        "PROMETHEUS_IMAGE": "localhost/prometheus:test",
        "COLLECTOR_IMAGE": "localhost/collector:test",
        "S3_ACCESS_KEY": "a-key",
        "S3_SECRET_KEY": "a-secret",
        "GRAFANA_PASSWORD": "unused",
        "POLL_SECS": "1",
        "TRACE_RATE": "1",
    }
    ports = ("HTTP_PORT", "GRPC_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    settings |= {name: str(free_port()) for name in ports}
    started = Stack(containers, folder, settings)
    try:
        started("up", "--detach", "--no-build", "storage", "collector", "prometheus", "shoal")
        yield started
    finally:
        started("down", "--volumes", check=False)


@pytest.mark.image
@pytest.mark.rclone
def test_the_services_together(stack, models, containers):
    wait_until(lambda: stack.get("HTTP_PORT", "/v2/health/live"), "Shoal is alive")
    stack(
        *("run", "--rm", "--no-deps", "--volume", f"{models}:/seed:ro", "shoal"),
        *("shoal", "push", "/seed", "s3://storage:9000/models"),
    )
    wait_until(lambda: stack.get("HTTP_PORT", "/v2/models/add_sub/ready"), "the model is loaded")

    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    with tritonclient.http.InferenceServerClient(
        f"127.0.0.1:{stack.settings['HTTP_PORT']}"
    ) as client:
        inputs = [tritonclient.http.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        for each in inputs:
            each.set_data_from_numpy(rows)
        answer = client.infer("add_sub", inputs)
    assert answer.as_numpy("OUTPUT0").tolist() == (rows + rows).tolist()

    wait_until(lambda: '"InferRequest"' in stack.log("collector"), "the collector has a span")
    assert '"service.name","value":{"stringValue":"shoal"}' in stack.log("collector")

    def target_is_up():
        targets = (stack.ask("targets") or {}).get("activeTargets", ())
        return [target["health"] for target in targets] == ["up"]

    def requests_counted():
        found = stack.ask("query?query=nv_inference_request_success{model=%22add_sub%22}")
        return found and found["result"] and found["result"][0]["value"][1] == "1"

    wait_until(target_is_up, "Prometheus finds the server by its name")
    wait_until(requests_counted, "Prometheus has the metrics")
    rules = [rule for group in stack.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    assert stack.ask("alerts")["alerts"] == []

    (name,) = containers("podman", "ps", "--quiet", "--filter", "name=shoal.shoal").stdout.split()
    stack("stop", "shoal")
    assert containers("podman", "wait", name).stdout.strip() == "0"

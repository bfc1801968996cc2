"""deploy/helm/shoal: a server with the arguments of the chart, and what the chart asks of it.

manifests --paths of the container become folders here--> shoal serve --> probes, helm test, metrics
"""

from __future__ import annotations

import http.client
import json
import re
import runpy
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shoal.cli import pull
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.keys import bearer, key_of, write_keys
from tests.support.repositories import add_onnx

pytestmark = pytest.mark.helm

SETTINGS = (
    'repository={"source": "image", "controlMode": "explicit", "loadModels": ["*"]}',
    'apiKeys={"existingSecret": "keys", "header": "X-Api-Key"}',
    'tls={"existingSecret": "tls", "clientCertificates": true}',
    'test={"model": "sum", "clientCertificateSecret": "client"}',
    "drain.drainSecs=0",
    'monitoring.serviceMonitor={"enabled": true, "apiKey": {"secretName": "metrics"}}',
    'autoscaling={"kind": "keda", "timeToDrainSecs": 1}',
)


def secret(folder, **files):
    """A folder as the kubelet mounts a Secret: links to files, behind a link that is replaced."""
    data = folder / "..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, source in files.items():
        entry = name.replace("_", ".")
        (data / entry).write_bytes(source.read_bytes())
        (data / entry).chmod(0o440)
        (folder / entry).symlink_to(f"..data/{entry}")


def localised(words, root):
    """Arguments whose folders of the container are folders in `root`."""
    return [re.sub(r"(^|=)/(?=models|etc|var)", rf"\g<1>{root}/", word) for word in words]


class RunningServer:
    """`shoal serve` with the arguments of a container, on free ports; mounted folders are in `root`."""

    def __init__(self, words, root):
        ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics", "health")]
        addresses = [f"--{name}-address=127.0.0.1" for name in ("http", "grpc")]
        program = "import sys; from shoal.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *localised(words, root), *ports, *addresses],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        self.ports = {}

    def wait_until_ready(self):
        for line in self.process.stderr:
            self.log.append(line)
            if listening := re.search(r"listening for (\w+) on \S+:(\d+)", line):
                self.ports[listening[1]] = int(listening[2])
            if "the server is ready" in line:
                return
        raise AssertionError("".join(self.log))

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=WAIT_SECS)
        self.log.append(rest)
        return self.process.returncode


@pytest.fixture(scope="module")
def objects(tool):
    return tool("check_chart").render(None, *SETTINGS).objects


@pytest.fixture(scope="module")
def container(objects):
    (found,) = (each for each in objects if each["kind"] == "Deployment")
    return found["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(scope="module")
def running(container, certificates, tmp_path_factory):
    root = tmp_path_factory.mktemp("container")
    add_onnx(root / "models", "sum", onnx_models.add_sub("INT32"))
    keys = root / "api-keys"
    write_keys(keys, test={}, prometheus={"apis": ("metrics",)})
    secret(root / "etc" / "shoal" / "keys", **{"api-keys_jsonl": keys})
    own = {"tls_crt": certificates / "own.pem", "tls_key": certificates / "own.key"}
    secret(root / "etc" / "shoal" / "tls", **own, ca_crt=certificates / "root.pem")
    server = RunningServer(container["args"], root)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def test_the_init_container_fills_the_folder_that_is_served(tool, tmp_path, monkeypatch):
    """It downloads an archive from this machine."""
    add_onnx(tmp_path / "remote", "sum", onnx_models.add_sub("INT32"))
    shutil.make_archive(tmp_path / "www" / "models", "zip", tmp_path / "remote")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "www")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        addresses = json.dumps([f"http://127.0.0.1:{web.server_port}/models.zip"])
        settings = f'repository={{"source": "pull", "addresses": {addresses}}}'
        (deployment,) = (
            each
            for each in tool("check_chart").render(None, settings).objects
            if each["kind"] == "Deployment"
        )
        pod = deployment["spec"]["template"]["spec"]
        command, *words = pod["initContainers"][0]["args"]
        assert command == "pull"
        assert pull.run(localised(words, tmp_path)) == 0
        web.shutdown()
    served = localised(pod["containers"][0]["args"], tmp_path)[1]
    assert [path.name for path in Path(served).iterdir()] == ["sum"]
    assert Path(served, "sum", "1", "model.onnx").is_file()


def get(connection, path, headers=None):
    connection.request("GET", path, headers=headers or {})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_probes_are_answered_without_certificate_and_key(running, container):
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} == {"health"}
    for probe in probes:
        plain = http.client.HTTPConnection("127.0.0.1", running.ports["health"], timeout=WAIT_SECS)
        assert get(plain, probe["path"])[0] == 200, probe


def test_the_pod_of_helm_test_passes(running, objects, certificates, tmp_path, monkeypatch, capsys):
    (pod,) = (each for each in objects if each["kind"] == "Pod")
    (test,) = pod["spec"]["containers"]
    assert test["command"] == ["python", "-c"]
    environment = {entry["name"]: entry["value"] for entry in test["env"]}
    assert environment["SHOAL_HTTP"] == "https://rel-shoal.models.svc:8000"
    assert environment["SHOAL_GRPC"] == "grpcs://rel-shoal.models.svc:8001"
    own = {"tls_crt": certificates / "own.pem", "tls_key": certificates / "own.key"}
    secret(tmp_path / "etc" / "shoal" / "tls", ca_crt=certificates / "root.pem")
    secret(tmp_path / "etc" / "shoal" / "client", **own)
    here = {
        "SHOAL_HTTP": f"https://localhost:{running.ports['http']}",
        "SHOAL_GRPC": f"grpcs://localhost:{running.ports['grpc']}",
        "SHOAL_API_KEY": key_of("test"),
    }
    for name, value in {**environment, **here}.items():
        monkeypatch.setenv(name, value.replace("/etc/", f"{tmp_path}/etc/"))
    script = tmp_path / "smoke_test.py"
    script.write_text(*test["args"])

    def run():
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        return ended.value.code, capsys.readouterr().out

    code, output = run()
    assert (code, output.count("model 'sum' answered with OUTPUT0, OUTPUT1")) == (0, 2), output

    monkeypatch.setenv("SHOAL_MODEL", "another")
    code, output = run()
    assert (code, output.count("model 'another' did not answer")) == (1, 2), output

    monkeypatch.setenv("SHOAL_API_KEY", "wrong")
    assert run()[0] == 1

    monkeypatch.setenv("SHOAL_HTTP", f"https://localhost:{running.ports['health']}")
    assert run()[0] == 1


def test_prometheus_gets_the_metrics_that_scaling_needs(running, objects, certificates):
    (monitor,) = (each for each in objects if each["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    (scaler,) = (each for each in objects if each["kind"] == "ScaledObject")
    context = ssl.create_default_context(cafile=certificates / "root.pem")
    context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    connection = http.client.HTTPSConnection(
        "localhost", running.ports["metrics"], timeout=WAIT_SECS, context=context
    )
    assert get(connection, endpoint["path"])[0] == 401
    status, text = get(connection, endpoint["path"], bearer("prometheus"))
    assert status == 200
    asked = set(re.findall(r"\b(?:nv|shoal)_\w+", json.dumps(scaler)))
    assert len(asked) == 2
    for name in asked:
        assert re.search(rf'^{name}{{.*model="sum".*}} ', text, re.MULTILINE), name


def test_it_stops_with_0_and_has_nothing_to_complain_about(running):
    """The last test of this module."""
    assert running.stop() == 0
    entries = [json.loads(line) for text in running.log for line in text.splitlines()]
    problems = [entry for entry in entries if entry["level"] != "info"]
    assert problems == []

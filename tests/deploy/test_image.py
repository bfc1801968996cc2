"""The image `cpu`: built by `make image`, run by podman as an operator would, without privileges."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import shoal
from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until

pytestmark = pytest.mark.image

LARGEST_MB = 350
# No writable file but volumes, not even in /tmp; no capabilities, no way to get any.
STRICT = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)
PORTS = (8000, 8001, 8002)


class Container:
    """A running container of the image."""

    def __init__(self, containers, name):
        self._containers = containers
        self.name = name
        self.ports = {}
        for line in containers("podman", "port", name).stdout.splitlines():
            inner, outer = re.fullmatch(r"(\d+)/tcp -> (?:.*):(\d+)", line).groups()
            self.ports[int(inner)] = int(outer)

    def address(self, port=8000):
        return f"127.0.0.1:{self.ports[port]}"

    def get(self, path, data=None, port=8000, headers=None):
        """The status and the body of an answer; 0 where no connection is accepted."""
        url = f"http://{self.address(port)}{path}"
        request = urllib.request.Request(url, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, http.client.HTTPException):
            return 0, b""

    def podman(self, command, *words, check=True):
        return self._containers("podman", command, self.name, *words, check=check)

    @property
    def log(self):
        done = self.podman("logs")
        return done.stdout + done.stderr

    def until_ready(self):
        wait_until(lambda: self.get("/v2/health/ready")[0] == 200, "the server is ready")
        return self

    def is_healthy(self):
        done = self._containers("podman", "healthcheck", "run", self.name, check=False)
        return done.returncode == 0

    def exit_code(self):
        return int(self.podman("wait").stdout)


@pytest.fixture
def start(containers, image, models, tmp_path):
    """Start a container of the image with these arguments of podman and of the image."""
    with contextlib.ExitStack() as stack:
        gate = tmp_path / "gate"
        gate.mkdir()
        gate.chmod(0o777)

        def begin(*words, options=()):
            name = f"shoal-test-{len(started)}"
            started.append(name)
            volumes = (f"--volume={models}:/models:ro", f"--volume={gate}:/gate")
            ports = [f"--publish=127.0.0.1::{port}" for port in PORTS]
            containers(
                *("podman", "run", "--detach", f"--name={name}", *STRICT, *ports, *volumes),
                *(*options, image, *words),
            )
            stack.callback(containers, *("podman", "rm", "--force", "--volumes", name), check=False)
            return Container(containers, name)

        started = []
        yield begin


@pytest.fixture(scope="module")
def details(containers, image):
    return containers.inspect(image)


def once(containers, image, *words, check=True):
    """Run a container until it ends."""
    return containers("podman", "run", "--rm", *STRICT, image, *words, check=check)


def test_what_the_image_declares(details):
    declared = details["Config"]
    assert declared["User"] == "1000:1000"
    assert set(declared["Volumes"]) == {"/models", "/var/cache/shoal"}
    assert set(declared["ExposedPorts"]) == {f"{port}/tcp" for port in PORTS}
    check = ["CMD", "/opt/shoal/bin/python", "/opt/shoal/healthcheck.py"]  # by no shell
    assert details["Healthcheck"]["Test"] == check
    labels = {name.rpartition(".")[2]: value for name, value in details["Labels"].items()}
    assert labels["title"] == "Shoal"
    assert shoal.__version__.startswith(labels["version"])  # which may name the commit
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}|", labels["revision"])


def test_the_image_is_small(details):
    megabytes = details["Size"] / 1e6
    print(f"the image has {megabytes:.0f} MB")
    assert megabytes <= LARGEST_MB


def test_the_bill_of_materials(containers, image):
    document = json.loads(once(containers, image, "cat", "/opt/shoal/sbom.cdx.json").stdout)
    assert document["bomFormat"] == "CycloneDX"
    names = {component["name"] for component in document["components"]}
    assert {"shoal", "onnxruntime", "numpy", "libc6", "libssl3"} <= names
    assert all(component["version"] for component in document["components"])


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--model-repository=/models",),
        ("tritonserver", "--model-repository=/models"),
        ("shoal", "serve", "/models"),
    ],
    ids=" ".join,
)
def test_ways_to_start_the_server(start, words):
    server = start(*words).until_ready()
    assert server.get("/v2/models/add_sub/ready")[0] == 200
    server.podman("stop")
    assert server.exit_code() == 0


def test_other_programs(containers, image, details):
    version = details["Labels"]["org.opencontainers.image.version"]
    assert once(containers, image, "shoal", "--version").stdout == f"shoal {version}\n"
    wrong = once(containers, image, "sevre", check=False)
    assert wrong.returncode == 127
    assert "there is no program 'sevre' in this image; write 'tritonserver" in wrong.stderr
    wrong = once(containers, image, "--http-prot=1", check=False)
    assert wrong.returncode == 1
    assert "--http-prot" in wrong.stderr


def test_requests_of_every_kind(start, root):
    server = start().until_ready()
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    for client in (tritonclient.http, tritonclient.grpc):
        inputs = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for each in inputs:
            each.set_data_from_numpy(rows)
        port = 8000 if client is tritonclient.http else 8001
        with client.InferenceServerClient(server.address(port)) as connected:
            answer = connected.infer("add_sub", inputs)
        assert answer.as_numpy("OUTPUT0").tolist() == (rows + rows).tolist()
    photo = (root / "demo" / "shoal_demo" / "cat.jpg").read_bytes()
    status, body = server.get("/classify", photo, headers={"Content-Type": "image/jpeg"})
    assert status == 200, body
    assert "cat" in json.loads(body)["images"][0]["labels"][0]["label"]
    status, body = server.get("/metrics", port=8002)
    assert b'nv_inference_request_success{model="add_sub",version="1"} 2' in body


def test_the_server_has_no_privileges(start):
    server = start().until_ready()
    assert server.podman("exec", "id", "-u").stdout == "1000\n"
    state = dict(
        line.split(":\t", 1)
        for line in server.podman("exec", "cat", "/proc/1/status").stdout.splitlines()
        if ":\t" in line
    )
    assert state["Name"] == "tritonserver"
    assert (int(state["CapEff"], 16), state["NoNewPrivs"]) == (0, "1")
    assert server.podman("exec", "touch", "/tmp/file", check=False).returncode != 0
    assert server.podman("exec", "touch", "/opt/shoal/file", check=False).returncode != 0
    assert server.podman("exec", "touch", "/models/file", check=False).returncode != 0
    server.podman("exec", "touch", "/var/cache/shoal/file")


@pytest.mark.parametrize(
    "words", [(), ("--http-port=9000",), ("--health-port=9001", "--allow-http=false")], ids=" ".join
)
def test_the_health_check_finds_the_server(start, words):
    server = start("--model-repository=/models", *words)
    wait_until(lambda: "the server is ready" in server.log, "the server is ready")
    assert server.is_healthy()


def test_the_health_check_fails_for_a_server_that_is_not_ready(start, tmp_path):
    (tmp_path / "gate" / "broken").mkdir()
    (tmp_path / "gate" / "broken" / "config.pbtxt").write_text('backend: "identity" no')
    server = start("--model-repository=/gate", "--exit-on-error=false")
    wait_until(lambda: server.get("/v2/health/live")[0] == 200, "the server is alive")
    assert server.get("/v2/health/ready")[0] != 200
    assert not server.is_healthy()


@pytest.mark.parametrize("words", [(), ("--frontend-processes=2",)], ids=["one", "several"])
def test_a_request_is_answered_after_sigterm(start, tmp_path, words):
    server = start("--model-repository=/models", *words).until_ready()
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [7]}]}
    ).encode()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.get, "/v2/models/held/infer", body)
        wait_until((tmp_path / "gate" / "running").exists, "the request runs")
        server.podman("kill", "--signal=TERM")
        wait_until(lambda: "SIGTERM: stopping" in server.log, "the server stops")
        (tmp_path / "gate" / "open").touch()
        status, answer = waiting.result(WAIT_SECS)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [7])
    assert server.exit_code() == 0

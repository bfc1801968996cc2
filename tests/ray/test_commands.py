"""Commands of people, with a real Ray: `shoal ray up`, `serve run` and `serve deploy`, to their end.

Ray asks for a token, as clusters of more than one machine should. Clients send requests meanwhile. What was accepted is answered, and nothing is left: no process, no
port, no folder.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.chaos.schedule import long_run
from tests.ray.cluster import WAIT_SECS, Application, Clients, wait_for, write_model

pytestmark = [long_run, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SERVE = [sys.executable, "-m", "ray.serve.scripts"]
SHOAL_RAY = [sys.executable, "-m", "shoal", "ray"]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "models", "double", secs=0.2)
    return tmp_path / "models"


@pytest.fixture
def application(free_ports):
    return Application("shoal", *free_ports(2))


@pytest.fixture
def config(repository, application, tmp_path):
    """A file for `serve`, in JSON, which is YAML, too."""
    arguments = {
        "repository": str(repository),
        "groups": [{"cpus": 0.5, "drain_secs": 0.5}],
        "ingress": {
            "host": "127.0.0.1",
            "http_port": application.http_port,
            "grpc_port": application.grpc_port,
            "metrics_port": 0,
        },
    }
    path = tmp_path / "cluster.yaml"
    document = {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": "shoal",
                "import_path": "shoal.ray:app",
                "route_prefix": None,
                "args": arguments,
            }
        ],
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def folder():
    """For all that Ray and Shoal write; its name is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as place:
        yield Path(place)


@pytest.fixture
def environment(folder):
    """The environment of people who have Ray's token."""
    token = folder / "token"
    token.write_text(secrets.token_hex())
    return {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


@pytest.fixture
def run(tmp_path, environment):
    """Starts a program in a session of its own, as a terminal does."""
    started = []

    def begin(words):
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                words,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("command", ["shoal ray up", "serve run"])
@pytest.mark.parametrize("end", ["Ctrl-C", "SIGKILL"])
def test_it_ends_with_its_command(run, folder, application, repository, config, command, end):
    words = {
        "shoal ray up": [*SHOAL_RAY, "up", "--config", str(config)],
        "serve run": [*SERVE, "run", str(config)],
    }[command]
    process = run(words)
    application.wait_for_replicas(1)
    with Clients(application, "double", 4) as clients:
        clients.wait_for_answers(12)
        assert not clients.errors
        if end == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)  # a terminal's sends it to all of them
            assert process.wait(WAIT_SECS) == 0
        else:
            process.kill()
            process.wait()
        wait_for(lambda: not left_of(folder, repository), "all processes end")
    assert clients.counts["wrong"] == 0
    if end == "Ctrl-C":
        assert [one for one in clients.errors if not is_refusal(*one)] == []
    assert not list(folder.glob("shoal-ray-*"))
    with pytest.raises(ConnectionRefusedError):
        application.call("GET", "/v2/health/live")


def test_serve_deploy_and_shutdown(
    run, folder, environment, application, repository, config, free_ports
):
    gcs, dashboard, agent, client = free_ports(4)
    head = run(
        [
            *RAY,
            "start",
            "--head",
            "--block",
            f"--port={gcs}",
            f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={agent}",
            f"--ray-client-server-port={client}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--num-cpus=2",
        ]
    )
    address = f"http://127.0.0.1:{dashboard}"

    def serve(*words):
        ran = call(environment, *SERVE, *words, "--address", address)
        return ran.returncode == 0 and (ran.stdout or "done")

    status = [*SHOAL_RAY, "status", f"--address=127.0.0.1:{gcs}"]
    wait_for(lambda: serve("status"), "Ray's dashboard answers")
    assert serve("deploy", str(config))
    before = application.wait_for_replicas(1)
    wait_for(lambda: "status: RUNNING" in serve("status"), "the application runs")
    assert "shoal: RUNNING" in call(environment, *status).stdout
    without = {name: environment[name] for name in environment if "AUTH" not in name}
    refused = call({**without, "HOME": str(folder)}, *status)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "set RAY_AUTH_MODE=token here, too" in refused.stderr
    with Clients(application, "double", 3) as clients:
        clients.wait_for_answers(6)
        changed = config.read_text().replace('"drain_secs": 0.5', '"drain_secs": 0.6')
        config.write_text(changed)
        assert serve("deploy", str(config))
        application.wait_for_replicas(1, other_than=before)
        clients.wait_for_answers(6)
    assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors
    assert serve("shutdown", "--yes")
    wait_for(lambda: not left_of(folder, repository, "haproxy"), "replicas and HAProxy end")
    assert not list(folder.glob("shoal-ray-*"))
    head.terminate()
    assert head.wait(WAIT_SECS) is not None
    wait_for(lambda: not left_of(folder, repository), "Ray ends")


def call(environment, *words):
    """A program that has ended."""
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def left_of(folder, repository, *names):
    """The processes that name a folder or the repository; with names, those that have one, too."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            text = " ".join(process.cmdline())
            is_of = str(repository) in text or str(folder) in text
            if is_of and process.pid != os.getpid() and all(name in text for name in names):
                found.append(text)
    return found


def is_refusal(status, text):
    """Whether a request was not accepted: no connection, or no replica for it."""
    return status == 503 or (status == 0 and "ConnectionRefused" in text)

"""A real server for real clients, on each of the gRPC transports."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from shoal.core.dtypes import ALL
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import FakeBackend
from tests.support.repositories import add_fake, add_onnx

OTHER_PROCESSES = os.environ.get("SHOAL_SERVERS") == "processes"
LABELLED = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }
"""
# Any three windows will do, however little they agree: whether a busy machine gives steady numbers
# is not what is tested here. On such a machine a window may be empty, so there may be many. They are
# of time: perf_analyzer counts requests only once a second. And the load goes on meanwhile, because
# of a fixed number of requests all may have been sent before perf_analyzer begins to look, which it
# takes for a failure.
WINDOWS = (
    "--measurement-interval",
    "200",
    "--stability-percentage",
    "1000000",
    "--max-trials",
    "100",
)
# The only warning that depends on the machine.
LONE_REQUEST = "WARNING: Pass contained only one request"


def fill(folder):
    for datatype in ALL:
        built = onnx_models.identity(datatype.name)
        add_onnx(folder, f"echo_{datatype.name}", built, "max_batch_size: 8")
    several = "max_batch_size: 8 version_policy { all { } }"
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), several, versions=(1, 3))
    add_onnx(
        folder,
        "scores",
        onnx_models.identity("FP32", dims=(4,)),
        LABELLED,
        files={"labels.txt": b"kraken\nwhale\neel\n"},
    )
    if OTHER_PROCESSES:
        add_onnx(folder, "held", onnx_models.identity("INT32"))
    else:
        add_fake(folder, "held")


class NoBackend:
    """In place of a backend whose executions a test holds, where models are in other processes."""

    def registry(self):
        return None

    def __getattr__(self, name):
        pytest.skip("holds executions, which are in another process")


def held_backend():
    return NoBackend() if OTHER_PROCESSES else FakeBackend()


@pytest.fixture(scope="module", params=["native", "grpcio"])
def world(request, tmp_path_factory):
    """The server, and the backend whose executions a test can hold."""
    folder = tmp_path_factory.mktemp("models")
    fill(folder)
    fake = held_backend()
    with running_server(
        folder,
        backends=fake.registry(),
        grpc_transport=request.param,
        model_control_mode="explicit",
        load_model=("*",),
    ) as running:
        yield SimpleNamespace(running=running, fake=fake, address=running.grpc_address)


@pytest.fixture
def address(world):
    return world.address


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """A server for HTTP clients: the models above, and one for each thing only they do."""
    folder = tmp_path_factory.mktemp("models")
    fill(folder)
    batched = "max_batch_size: 8 dynamic_batching { }"
    add_onnx(folder, "guessed", onnx_models.add_sub("FP32", dims=(3,)))
    add_onnx(folder, "mine", onnx_models.identity("FP32"), batched)
    add_onnx(folder, "wide", onnx_models.identity("FP32"), batched)
    add_onnx(folder, "texts", onnx_models.string_join(), batched)
    add_onnx(folder, "name with 100% oddities", onnx_models.identity("FP32"), batched)
    fake = held_backend()
    with running_server(
        folder,
        backends=fake.registry(),
        model_control_mode="explicit",
        load_model=("*",),
    ) as running:
        yield SimpleNamespace(
            running=running, fake=fake, address=running.http_address, folder=folder
        )
        if not OTHER_PROCESSES:
            fake.gate.set()


@pytest.fixture(params=[httpclient, grpcclient], ids=["http", "grpc"])
def kit(request):
    """NVIDIA's client library for one of the protocols."""
    return request.param


@pytest.fixture
def client(running, kit):
    """A client of that library for the `running` server of the test's file."""
    if kit is httpclient:
        made = kit.InferenceServerClient(running.http_address, concurrency=16)
    else:
        made = kit.InferenceServerClient(running.grpc_address)
    with made:
        yield made


@pytest.fixture(scope="session")
def perf_analyzer():
    """NVIDIA's perf_analyzer with these words; what it printed, once it has ended well."""

    def run(*words):
        done = subprocess.run(
            ["perf_analyzer", *map(str, words), *WINDOWS],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stderr.splitlines(keepends=True)
        done.stderr = "".join(line for line in lines if not line.startswith(LONE_REQUEST))
        return done

    return run


@pytest.fixture
def memory_key():
    """The key of a region of shared memory that no other run of these tests uses."""
    return f"/shoal_test_{os.getpid()}"

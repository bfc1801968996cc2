"""One repository of Python models, served by Shoal and by NVIDIA's Triton, for the same tests.

The tritonserver is the one in the wheel `nvidia-pytriton`: in the environment that SHOAL_TRITON
names, or the one the benchmarks make. Where there is none, its tests are left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.client import Client, ClientError
from shoal.testing.server import running_server
from tests.support.repositories import add_model

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_SECS = 60
DATATYPES = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("FP16", "FP32", "FP64", "STRING"),
)

PRELUDE = """
import numpy as np
import triton_python_backend_utils as utils


def tensor(request, name):
    return utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(**arrays):
    return utils.InferenceResponse([utils.Tensor(name, array) for name, array in arrays.items()])

"""
ADD_SUB = """
class TritonPythonModel:
    def execute(self, requests):
        rows = [(tensor(request, "INPUT0"), tensor(request, "INPUT1")) for request in requests]
        return [answer(OUTPUT0=one + two, OUTPUT1=one - two) for one, two in rows]
"""
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            seen = np.array([request.parameters().encode()], dtype=object)
            same = {"OUT_" + given.name(): given.as_numpy() for given in request.inputs()}
            made.append(answer(SEEN=seen, **same))
        return made
"""
SCORES = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(OUTPUT=tensor(request, "INPUT")) for request in requests]
"""
WORDS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in tensor(request, "TEXT")[0].split():
                if word == b"bad":
                    error = utils.TritonError("this is a bad word")
                    sender.send(utils.InferenceResponse([], error=error))
                else:
                    sender.send(answer(WORD=np.array([word], dtype=object)))
            sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTER = """
class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        made = []
        for request in requests:
            number = int(tensor(request, "CORRID").reshape(-1)[0])
            if tensor(request, "START").any():
                self.totals[number] = 0
            self.totals[number] += int(tensor(request, "INPUT").reshape(-1)[0])
            ended = int(tensor(request, "END").reshape(-1)[0])
            total = np.array([[self.totals[number]]], np.int32)
            made.append(answer(TOTAL=total, ENDED=np.array([[ended]], np.int32)))
        return made
"""


def io(kind, name, datatype, dims, more=""):
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}\n'


def control(name, more):
    return (
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {more} }} }}\n'
    )


def fill(folder):
    """The models every server here serves."""
    switch = "int32_false_true: [ 0, 1 ]"
    models = {
        "add_sub": (
            ADD_SUB,
            "max_batch_size: 8\n"
            + "".join(io("input", f"INPUT{i}", "INT32", 16) for i in range(2))
            + "".join(io("output", f"OUTPUT{i}", "INT32", 16) for i in range(2)),
        ),
        "echo": (
            ECHO,
            "max_batch_size: 0\n"
            + "".join(io("input", kind, kind, -1, "optional: true") for kind in DATATYPES)
            + "".join(io("output", f"OUT_{kind}", kind, -1) for kind in DATATYPES)
            + io("output", "SEEN", "STRING", 1),
        ),
        "scores": (
            SCORES,
            "max_batch_size: 4\n"
            + io("input", "INPUT", "FP32", 4)
            + io("output", "OUTPUT", "FP32", 4, 'label_filename: "labels.txt"'),
        ),
        "words": (
            WORDS,
            "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n"
            + io("input", "TEXT", "STRING", 1)
            + io("output", "WORD", "STRING", 1),
        ),
        "counter": (
            COUNTER,
            "max_batch_size: 4\n"
            + io("input", "INPUT", "INT32", 1)
            + io("output", "TOTAL", "INT32", 1)
            + io("output", "ENDED", "INT32", 1)
            + "sequence_batching {\n  oldest { max_candidate_sequences: 4 }\n"
            + "  max_sequence_idle_microseconds: 60000000\n"  # a busy machine may be slow to ask
            + control("START", switch)
            + control("END", switch)
            + control("CORRID", "data_type: TYPE_UINT64")
            + "}\n",
        ),
    }
    for name, (code, config) in models.items():
        files = {"1/model.py": (PRELUDE + code).encode(), "labels.txt": b"kraken\nwhale\neel\n"}
        group = "instance_group { count: 1 kind: KIND_CPU }\n"
        add_model(folder, name, f'backend: "python"\n{config}{group}', files)


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    fill(folder)
    return folder


@contextlib.contextmanager
def shoal(repository):
    with running_server(repository, model_control_mode="explicit", load_model=("*",)) as running:
        yield SimpleNamespace(
            kind="shoal", http=running.http_address, grpc=f"grpc://{running.grpc_address}"
        )


def triton_packages():
    """Where the wheel lies, or None."""
    environment = Path(os.environ.get("SHOAL_TRITON", ROOT / ".tools" / "bench" / "triton"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / f"python{version}" / "site-packages"
    home = packages / "pytriton" / "tritonserver"
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    return packages if stub.exists() and (home / "bin" / "tritonserver").exists() else None


def backends(home, version, folder):
    """A folder of backends with the stub for this Python; the wheel's own stays as it is."""
    place = folder / "backends" / "python"
    shutil.copytree(
        home / "backends" / "python",
        place,
        ignore=lambda _, names: [name for name in names if name.endswith("_stub")],
    )
    stub = place / "triton_python_backend_stub"
    shutil.copy(home / "python_backend_stubs" / version / stub.name, stub)
    stub.chmod(0o755)
    return place.parent


@contextlib.contextmanager
def triton(repository):
    packages = triton_packages()
    if packages is None:
        pytest.skip("needs the wheel nvidia-pytriton; name its environment with SHOAL_TRITON")
    home = packages / "pytriton" / "tritonserver"
    version = packages.parent.name.removeprefix("python")
    ports = free_ports(3)
    options = [f"--model-repository={repository}", "--model-control-mode=explicit"]
    options += ["--load-model=*", "--allow-metrics=false"]
    for name, port in zip(("http", "grpc"), ports, strict=False):
        options += [f"--{name}-port={port}", f"--{name}-address=127.0.0.1"]
    libraries = (packages / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR"))
    programs = packages.parent.parent.parent / "bin"
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory() as scratch:
        options.append(f"--backend-directory={backends(home, version, Path(scratch))}")
        log = Path(scratch, "log")
        with log.open("wb") as words:
            process = subprocess.Popen(
                [home / "bin" / "tritonserver", *options],
                env=variables,
                stdout=words,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until_ready(process, f"127.0.0.1:{ports[0]}", log)
            yield SimpleNamespace(
                kind="triton", http=f"127.0.0.1:{ports[0]}", grpc=f"grpc://127.0.0.1:{ports[1]}"
            )
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(process, address, log):
    deadline = time.monotonic() + READY_WITHIN_SECS
    with Client(address) as client:
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()[-4000:]
            with contextlib.suppress(ClientError):
                if client.ready():
                    return
            time.sleep(0.05)  # another program: there is no event to wait for
    pytest.fail(f"tritonserver was not ready in {READY_WITHIN_SECS} s: {log.read_text()[-4000:]}")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


@pytest.fixture(scope="session", params=["shoal", pytest.param("triton", marks=pytest.mark.triton)])
def server(request, repository):
    """Shoal, then Triton, with the same models."""
    with {"shoal": shoal, "triton": triton}[request.param](repository) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def url(request, server):
    return getattr(server, request.param)


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client

"""Tensors through the memory of a GPU: another process owns it, and shares it by its handle.

Needs an NVIDIA GPU with its driver, and nothing else: the client is this file's own, made of ctypes.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.core.inbox import LoopInbox
from shoal.frontends.grpc.service import GrpcService
from shoal.instance import device
from shoal.testing.server import running_server, wait_until
from shoal.wire.proto import messages
from tests.support.fakes import WAIT_SECS
from tests.support.grpc_calls import start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not device.gpus(), reason="there is no NVIDIA GPU here"),
]

SIZE = 1 << 20
ROW = np.arange(16, dtype=np.float32)
CONFIG = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""

# The owner of the memory. It answers lines of JSON: [what, offset, bytes in base64 or a size].
OWNER = r"""
import base64, ctypes, json, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_ubyte, c_void_p

kind, size = sys.argv[1], int(sys.argv[2])
class Handle(ctypes.Structure):
    _fields_ = [("bytes", c_ubyte * 64)]
handle, place = Handle(), c_uint64()
def check(code):
    assert code == 0, code
if kind == "driver":
    cuda = ctypes.CDLL("libcuda.so.1")
    number, context = c_int(), c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(byref(number), 0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), number))
    check(cuda.cuCtxPushCurrent_v2(context))
    check(cuda.cuMemAlloc_v2(byref(place), c_size_t(size)))
    check(cuda.cuIpcGetMemHandle(byref(handle), place))
    write = lambda at, data: cuda.cuMemcpyHtoD_v2(c_uint64(at), data, c_size_t(len(data)))
    read = lambda data, at: cuda.cuMemcpyDtoH_v2(data, c_uint64(at), c_size_t(len(data)))
else:
    cuda = ctypes.CDLL(kind)
    check(cuda.cudaSetDevice(c_int(0)))
    check(cuda.cudaMalloc(byref(place), c_size_t(size)))
    check(cuda.cudaIpcGetMemHandle(byref(handle), place))
    write = lambda at, data: cuda.cudaMemcpy(c_uint64(at), data, c_size_t(len(data)), 1)
    read = lambda data, at: cuda.cudaMemcpy(data, c_uint64(at), c_size_t(len(data)), 2)
print(base64.b64encode(bytes(handle.bytes)).decode(), flush=True)
for line in sys.stdin:
    what, offset, value = json.loads(line)
    if what == "write":
        data = base64.b64decode(value)
        check(write(place.value + offset, data))
        print("ok", flush=True)
    else:
        data = (c_ubyte * value)()
        check(read(data, place.value + offset))
        print(base64.b64encode(bytes(data)).decode(), flush=True)
"""


class Owner:
    """A process with memory on the GPU."""

    def __init__(self, kind):
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWNER, kind, str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.handle = self._process.stdout.readline().strip()
        assert self.handle, "the owner of the memory did not start"

    def _ask(self, *words):
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def write(self, offset, array):
        assert self._ask("write", offset, base64.b64encode(array.tobytes()).decode()) == "ok"

    def read(self, offset, count):
        found = base64.b64decode(self._ask("read", offset, 4 * count))
        return np.frombuffer(found, np.float32)

    def end(self):
        self._process.stdin.close()
        self._process.wait(WAIT_SECS)
        self._process.stdout.close()


def runtime():
    """The name of CUDA's runtime library, where there is one beside the driver."""
    found = [
        str(path) for root in sys.path for path in Path(root).glob("nvidia/*/lib/libcudart.so.*")
    ]
    for name in [*found, "libcudart.so.13", "libcudart.so.12", "libcudart.so"]:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ""


@pytest.fixture(params=["driver", "runtime"])
def owner(request):
    kind = request.param if request.param == "driver" else runtime()
    if not kind:
        pytest.skip("CUDA's runtime library is not installed")
    made = Owner(kind)
    yield made
    made.end()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "echo" / "1").mkdir(parents=True)
    (folder / "echo" / "config.pbtxt").write_text(CONFIG)
    with running_server(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_registered(running):
    yield
    assert running.post("/v2/cudasharedmemory/unregister").status == 200


def register(running, owner, name="gpu", byte_size=SIZE, device_id=0):
    body = {
        "raw_handle": {"b64": owner.handle},
        "device_id": device_id,
        "byte_size": byte_size,
    }
    return running.post(f"/v2/cudasharedmemory/region/{name}/register", body)


def place(name, offset, byte_size):
    return {
        "shared_memory_region": name,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def infer(running, offset, to, size=64):
    body = {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "FP32",
                "shape": [1, size // 4],
                "parameters": place("gpu", offset, size),
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": place("gpu", to, size)}],
    }
    return running.post("/v2/models/echo/infer", body)


def test_the_server_reports_that_it_can(running):
    assert "cuda_shared_memory" in running.get("/v2").json["extensions"]


def test_inputs_are_read_and_outputs_written(running, owner):
    assert register(running, owner).status == 200
    for number in range(3):
        owner.write(128, ROW + number)
        answer = infer(running, 128, 4096)
        assert answer.status == 200, answer
        assert "data" not in answer.json["outputs"][0]
        np.testing.assert_array_equal(owner.read(4096, 16), ROW + number)


def test_large_tensors(running, owner):
    assert register(running, owner).status == 200
    many = np.random.default_rng(1).random(SIZE // 16, np.float32)
    owner.write(0, many)
    assert infer(running, 0, SIZE // 2, many.nbytes).status == 200
    np.testing.assert_array_equal(owner.read(SIZE // 2, len(many)), many)


def test_the_status(running, owner):
    assert register(running, owner, byte_size=1000).status == 200
    row = {"name": "gpu", "device_id": 0, "byte_size": 1000}
    assert running.get("/v2/cudasharedmemory/status").json == [row]
    assert running.get("/v2/cudasharedmemory/region/gpu/status").json == [row]
    assert running.get("/v2/systemsharedmemory/status").json == []
    answer = running.get("/v2/systemsharedmemory/region/gpu/status")
    assert "is registered as CUDA shared memory, not system" in answer.error
    assert register(running, owner).error == "shared memory region 'gpu' already in manager"
    assert running.post("/v2/cudasharedmemory/region/gpu/unregister").status == 200
    assert running.get("/v2/cudasharedmemory/status").json == []
    assert infer(running, 0, 64).error == "Unable to find shared memory region: 'gpu'"


def test_the_same_memory_may_be_registered_twice(running, owner):
    assert register(running, owner, "gpu").status == 200
    assert register(running, owner, "other").status == 200
    assert running.post("/v2/cudasharedmemory/region/other/unregister").status == 200
    owner.write(0, ROW)
    assert infer(running, 0, 64).status == 200
    np.testing.assert_array_equal(owner.read(64, 16), ROW)


def test_wrong_uses(running, owner):
    answer = register(running, owner, byte_size=1 << 50)
    assert (answer.status, "invalid args" in answer.error) == (400, True)
    answer = register(running, owner, device_id=99)
    assert (answer.status, "GPU 99 cannot be used" in answer.error) == (400, True)
    junk = {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}}
    answer = running.post(
        "/v2/cudasharedmemory/region/x/register", {**junk, "device_id": 0, "byte_size": 8}
    )
    assert (answer.status, "failed to open CUDA IPC handle" in answer.error) == (400, True)
    junk = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}
    answer = running.post("/v2/cudasharedmemory/region/x/register", junk)
    assert answer.error == "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    assert running.get("/v2/cudasharedmemory/status").json == []
    assert register(running, owner, byte_size=100).status == 200
    assert "Invalid offset + byte size" in infer(running, 64, 0).error
    owner.write(0, ROW)


def test_an_owner_that_exits_first(running):
    made = Owner("driver")
    assert register(running, made).status == 200
    made.end()
    assert running.post("/v2/cudasharedmemory/unregister").status == 200
    assert running.get("/v2/health/live").status == 200


def test_over_grpc(running, owner):
    """The whole service but for its transport."""

    async def make():
        inbox = LoopInbox(asyncio.get_running_loop())
        return GrpcService(running.server.engine, inbox, memory=running.server.ports.memory)

    service = running.run(make())

    def call(name, message, response=None):
        async def begin():
            made = start(service, name)
            made.message(message).half_close()
            return made

        made = running.run(begin())
        wait_until(lambda: made.status is not None, name)
        assert made.status == 0, made.text
        return response.FromString(made.sent[0]) if response is not None else None

    call(
        "CudaSharedMemoryRegister",
        messages.CudaSharedMemoryRegisterRequest(
            name="gpu", raw_handle=base64.b64decode(owner.handle), device_id=0, byte_size=SIZE
        ),
    )
    owner.write(256, ROW)
    request = messages.ModelInferRequest(model_name="echo")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    wanted = request.outputs.add(name="OUTPUT0")
    for entry, offset in ((tensor, 256), (wanted, 512)):
        entry.parameters["shared_memory_region"].string_param = "gpu"
        entry.parameters["shared_memory_offset"].int64_param = offset
        entry.parameters["shared_memory_byte_size"].int64_param = 64
    call("ModelInfer", request)
    np.testing.assert_array_equal(owner.read(512, 16), ROW)
    status = call(
        "CudaSharedMemoryStatus",
        messages.CudaSharedMemoryStatusRequest(),
        messages.CudaSharedMemoryStatusResponse,
    )
    assert status.regions["gpu"].byte_size == SIZE
    call("CudaSharedMemoryUnregister", messages.CudaSharedMemoryUnregisterRequest(name="gpu"))
    assert running.get("/v2/cudasharedmemory/status").json == []
    service.close()

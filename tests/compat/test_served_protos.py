"""The .proto files that a server hands out: protoc makes stubs of them, and the stubs work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.demo import repository
from shoal.testing.server import running_server

# In a process of its own: tritonclient has put the same names into this one's pool.
PROGRAM = """
import struct, sys
import grpc
import grpc_service_pb2 as messages
import grpc_service_pb2_grpc as services
import health_pb2, health_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = services.GRPCInferenceServiceStub(channel)
    assert stub.ServerLive(messages.ServerLiveRequest()).live
    config = stub.ModelConfig(messages.ModelConfigRequest(name="add_sub")).config
    assert config.name == "add_sub" and config.backend == "onnxruntime"
    request = messages.ModelInferRequest(model_name="add_sub", id="7")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        request.raw_input_contents.append(struct.pack("<16i", *range(16)))
    answer = stub.ModelInfer(request)
    sums = struct.unpack("<16i", answer.raw_output_contents[0])
    assert sums == tuple(2 * number for number in range(16)), sums
    streamed = [each.infer_response.id for each in stub.ModelStreamInfer(iter([request] * 3))]
    assert streamed == ["7"] * 3
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert check.status == health_pb2.HealthCheckResponse.SERVING
print("all is well")
"""


@pytest.mark.parametrize("transport", ["native", "grpcio"])
def test_stubs_made_of_the_servers_protos(tmp_path, transport):
    with running_server(Path(repository()), grpc_transport=transport) as running:
        names = running.get("/proto").json["files"]
        for name in names:
            (tmp_path / name).write_bytes(running.get(f"/proto/{name}").body)
        command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
        made = subprocess.run(
            [*command, "--python_out=.", "--grpc_python_out=.", *names],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (made.returncode, made.stderr) == (0, "")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, running.grpc_address],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout == "all is well\n", done.stderr

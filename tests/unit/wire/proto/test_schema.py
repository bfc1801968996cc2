"""The schema: true to its .proto files and to the wire, and no trouble for other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import shoal
from shoal.wire.proto import build, messages, schema


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(shoal.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )


def test_checked_in_schema_is_what_the_proto_files_say():
    checked_in = FileDescriptorSet.FromString(schema.BINARY.read_bytes())
    assert build.compile_schema() == checked_in, "run python -m shoal.wire.proto.build"


def test_files_come_after_what_they_import():
    seen = set()
    for file in schema.file_protos():
        assert set(file.dependency) <= seen
        seen.add(file.name)
    assert seen == set(build.SOURCES)


def message_facts(messages_of, prefix):
    """Everything the wire depends on, by full name."""
    facts = {}
    for message in messages_of:
        name = f"{prefix}.{message.name}"
        groups = [group.name for group in message.oneof_decl]
        for field in message.field:
            group = groups[field.oneof_index] if field.HasField("oneof_index") else ""
            kind = (field.number, field.type, field.label, field.type_name, group)
            facts[f"{name}.{field.name}"] = kind
        facts |= enum_facts(message.enum_type, name)
        facts |= message_facts(message.nested_type, name)
    return facts


def enum_facts(enums, prefix):
    return {
        f"{prefix}.{enum.name}.{value.name}": value.number for enum in enums for value in enum.value
    }


def file_facts(files):
    facts = {}
    for file in files:
        facts |= message_facts(file.message_type, file.package)
        facts |= enum_facts(file.enum_type, file.package)
        for service in file.service:
            for method in service.method:
                facts[f"{file.package}.{service.name}/{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return facts


def test_names_and_numbers_are_those_of_tritonclient():
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = []
    for module in (model_config_pb2, service_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        theirs.append(file)
    ours = file_facts(schema.file_protos())
    for name, fact in file_facts(theirs).items():
        assert ours.get(name) == fact, name


def test_the_service_has_twenty_methods():
    service = schema.pool().FindServiceByName("inference.GRPCInferenceService")
    assert len(service.methods) == 20
    streaming = [method.name for method in service.methods if method.client_streaming]
    assert streaming == ["ModelStreamInfer"]
    assert schema.pool().FindServiceByName("grpc.health.v1.Health").methods_by_name["Check"]


OURS = "from shoal.wire.proto import messages\nours = messages.ModelInferRequest\n"
THEIRS = "import tritonclient.grpc\nfrom tritonclient.grpc import service_pb2\n"
EXCHANGE = """
sent = ours(model_name="simple", id="7")
sent.inputs.add(name="IN", datatype="BYTES", shape=[1, 2]).parameters["a"].int64_param = 3
sent.raw_input_contents.append(b"xyz")
received = service_pb2.ModelInferRequest.FromString(sent.SerializeToString())
assert str(received) == str(sent)
assert ours.FromString(received.SerializeToString()) == sent
config = messages.ModelConfig(name="m")
assert config.SerializeToString()
"""


@pytest.mark.parametrize("code", [OURS + THEIRS, THEIRS + OURS], ids=["ours first", "theirs first"])
def test_lives_beside_tritonclient(code):
    run = run_python(code + EXCHANGE)
    assert run.returncode == 0, run.stderr


def test_import_loads_no_protobuf():
    code = (
        "import sys, shoal.wire.proto.messages\n"
        "sys.exit(any(name.startswith('google.protobuf') for name in sys.modules))"
    )
    run = run_python(code)
    assert run.returncode == 0, run.stderr


def test_messages_are_attributes():
    request = messages.ModelInferRequest(model_name="simple")
    assert type(request) is messages.ModelInferRequest
    assert request.DESCRIPTOR.full_name == "inference.ModelInferRequest"
    assert messages.ModelInferRequest.InferInputTensor(name="a").name == "a"
    assert messages.HealthCheckRequest.DESCRIPTOR.full_name == "grpc.health.v1.HealthCheckRequest"


def test_enums_are_attributes():
    assert messages.DataType.Name(11) == "TYPE_FP32"
    assert messages.DataType.Value("TYPE_BF16") == 14


def test_an_unknown_message_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ModelInferRequst'"):
        messages.ModelInferRequst  # noqa: B018 the access is the test
    assert not hasattr(messages, "__wrapped__")


def test_build_writes_the_schema(tmp_path, monkeypatch, capsys):
    for name in build.SOURCES:
        (tmp_path / name).write_bytes(schema.BINARY.with_name(name).read_bytes())
    target = tmp_path / "schema.binpb"
    monkeypatch.setattr(build, "BINARY", target)
    build.main()
    assert FileDescriptorSet.FromString(target.read_bytes()).file
    assert str(target) in capsys.readouterr().out


def test_build_refuses_a_broken_file(tmp_path, monkeypatch, capfd):
    for name in build.SOURCES:
        (tmp_path / name).write_text("message {")
    monkeypatch.setattr(build, "BINARY", tmp_path / "schema.binpb")
    with pytest.raises(RuntimeError, match="could not compile"):
        build.compile_schema()

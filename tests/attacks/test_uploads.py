"""Loading code is a privilege: who may upload models, and what a client's config may name."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from shoal.config.options import Options
from shoal.config.options.option import NamedSetting
from shoal.errors import Forbidden
from shoal.frontends.uploads import UploadRule
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import echo, outputs
from tests.support.repositories import add_model, add_onnx

CONFIG = {
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}
REFUSED = (
    "this client may not upload model files, which the server would run: only clients on the same "
    "machine may; start the server with --allow-model-upload=true to let all clients do it"
)
PYTHON = """
from pathlib import Path
Path({mark!r}).touch()
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def execute(self, requests):
        return []
"""


@pytest.fixture
def content():
    return onnx_models.identity("FP32").SerializeToString()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    add_onnx(folder, "echo", onnx_models.identity("FP32"), "max_batch_size: 8")
    return folder


@pytest.fixture
def start(repository):
    def serve(**options):
        return running_server(repository, model_control_mode="explicit", **options)

    return serve


def parameters(content):
    return {
        "config": json.dumps(CONFIG),
        "file:1/model.onnx": base64.b64encode(content).decode(),
    }


def upload(server, content, name="sent", headers=None):
    body = {"parameters": parameters(content)}
    return server.post(f"/v2/repository/models/{name}/load", body, headers)


def upload_grpc(server, content, name="sent", headers=None):
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        files = {"file:1/model.onnx": content}
        client.load_model(name, headers=headers, config=json.dumps(CONFIG), files=files)


# ---- who may upload


@pytest.mark.parametrize("peer", ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "unix:/x"])
@pytest.mark.parametrize("prefix", ["", "ipv4:", "ipv6:"])
def test_peers_on_this_machine(peer, prefix):
    if peer.startswith("unix"):
        prefix = ""
    UploadRule("auto").check(prefix + peer)
    with pytest.raises(Forbidden):
        UploadRule("false").check(prefix + peer)


@pytest.mark.parametrize(
    "peer",
    ["10.0.0.1:5", "ipv4:10.0.0.1:5", "[fe80::1]:5", "ipv6:[2001:db8::1]:5", "", "unknown", "x:y"],
)
def test_peers_elsewhere(peer):
    with pytest.raises(Forbidden) as refused:
        UploadRule("auto").check(peer)
    assert refused.value.message == REFUSED
    UploadRule("auto").check(peer, has_key=True)
    UploadRule("true").check(peer)


def test_a_client_on_this_machine_may(start, content):
    with start() as server:
        assert upload(server, content).status == 200
        assert outputs(echo(server, "sent"))["OUTPUT0"].tolist() == [[7]]
        upload_grpc(server, content, "other")
        assert outputs(echo(server, "other"))["OUTPUT0"].tolist() == [[7]]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_proxy_on_this_machine_speaks_for_others(start, content, header):
    with start() as server:
        answer = upload(server, content, headers={header: "10.0.0.1"})
        assert (answer.status, answer.error) == (403, REFUSED)
        with pytest.raises(InferenceServerException, match="--allow-model-upload"):
            upload_grpc(server, content, headers={header.lower(): "10.0.0.1"})
        assert server.states("sent") == {}


@pytest.mark.parametrize("transport", ["native", "grpcio"])
def test_nobody_may(start, content, transport):
    with start(allow_model_upload="false", grpc_transport=transport) as server:
        answer = upload(server, content)
        assert answer.status == 403
        assert answer.error == (
            "this server takes no model files from clients (--allow-model-upload=false)"
        )
        with pytest.raises(InferenceServerException) as refused:
            upload_grpc(server, content)
        assert refused.value.status() == str(grpc.StatusCode.PERMISSION_DENIED)
        assert refused.value.message() == answer.error
        # What runs nothing new stays possible.
        assert server.load("echo").status == 200
        assert server.load("echo", config={**CONFIG, "max_batch_size": 4}).status == 200
        assert server.config("echo")["max_batch_size"] == 4


def test_a_client_elsewhere_may_not(start, content, monkeypatch):
    """The peer's address as the connection reports it."""
    monkeypatch.setattr("shoal.frontends.http.protocol._address", lambda _: "10.0.0.1:5000")
    monkeypatch.setattr("shoal.frontends.grpc.transport._peer", lambda _: "ipv4:10.0.0.1:5000")
    with start() as server:
        assert upload(server, content).error == REFUSED
        with pytest.raises(InferenceServerException) as refused:
            upload_grpc(server, content)
        assert refused.value.message() == REFUSED
        assert server.load("echo").status == 200
    with start(allow_model_upload="true") as server:
        assert upload(server, content).status == 200
        upload_grpc(server, content, "other")
    with start(cors=("https://home.example",)) as server:  # behind another exchange
        assert upload(server, content, headers={"Origin": "https://home.example"}).status == 403


# ---- what a config may name


def evil(tmp_path, name="evil.py"):
    """A file outside the repository, and the mark that it leaves when it runs."""
    mark = tmp_path / "it-ran"
    path = tmp_path / name
    path.write_text(PYTHON.format(mark=str(mark)))
    return path, mark


@pytest.mark.parametrize("backend", ["python", "function", "onnxruntime", "generation", "pytorch"])
@pytest.mark.parametrize("form", ["absolute", "relative"])
@pytest.mark.parametrize("field", ["default_model_filename", "cc_model_filenames"])
def test_model_files_elsewhere(start, repository, tmp_path, backend, form, field):
    path, mark = evil(tmp_path)
    name = str(path) if form == "absolute" else "../../../evil.py"
    value = name if field == "default_model_filename" else {"7.5": name}
    with start() as server:
        answer = server.load("echo", config={**CONFIG, "backend": backend, field: value})
        assert answer.status >= 400
        assert "outside model directory" in answer.error
    assert not mark.exists()


@pytest.mark.parametrize("form", ["absolute", "relative", "home"])
def test_libraries_elsewhere(start, tmp_path, form):
    library = tmp_path / "ops.so"
    library.write_bytes(b"no library")
    name = {"absolute": str(library), "relative": "../../ops.so", "home": "1/../../../ops.so"}[form]
    config = {**CONFIG, "model_operations": {"op_library_filename": [name]}}
    with start() as server:
        answer = server.load("echo", config=config)
        assert answer.status >= 400
        assert "model_operations.op_library_filename[0]" in answer.error
        assert "inside the model's folder" in answer.error


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("EXECUTION_ENV_PATH", "{tmp}/env"),
        ("EXECUTION_ENV_PATH", "../../env"),
        ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/../../env"),
        ("CPU_EXTENSION_PATH", "{tmp}/library.so"),
        ("openai_chat_template", "{tmp}/template"),
        ("openai_tokenizer", "../../tokenizer.json"),
        ("ep.context_file_path", "{tmp}/written"),
        ("session.optimized_model_filepath", "/tmp/written"),
        ("CACHE_DIR", "{tmp}/cache"),
        ("some_folder", "/etc"),
    ],
)
def test_parameters_that_name_files_elsewhere(start, tmp_path, key, value):
    written = value.replace("{tmp}", str(tmp_path))
    config = {**CONFIG, "parameters": {key: {"string_value": written}}}
    with start() as server:
        answer = server.load("echo", config=config)
        assert answer.status >= 400
        assert f"parameters['{key}']" in answer.error
        assert "inside the model's folder" in answer.error


def test_accelerators_that_write_files_elsewhere(start, tmp_path):
    accelerator = {"name": "tensorrt", "parameters": {"trt_engine_cache_path": str(tmp_path)}}
    accelerators = {"gpu_execution_accelerator": [accelerator]}
    with start() as server:
        config = {**CONFIG, "optimization": {"execution_accelerators": accelerators}}
        answer = server.load("echo", config=config)
        assert answer.status >= 400
        assert "trt_engine_cache_path" in answer.error


def test_parameters_that_name_no_files(start):
    values = {
        "note": "see https://example.com/a/../b",
        "path": "inner/file",
        "env_dir": "$$TRITON_MODEL_DIRECTORY/env",
    }
    with start() as server:
        given = {key: {"string_value": value} for key, value in values.items()}
        answer = server.load("echo", config={**CONFIG, "parameters": given})
        assert answer.status == 200, answer


def test_the_operators_own_configs_may_name_any_library(repository, tmp_path):
    """Only what clients send is bound to the folder; Triton's users have such configs."""
    folder = add_model(repository, "mine", None, {"1/model.onnx": b""})
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime" parameters { key: "some_path" value { string_value: "/etc/x" } }'
    )
    (folder / "1" / "model.onnx").write_bytes(onnx_models.identity("FP32").SerializeToString())
    with running_server(repository) as server:
        assert server.states("mine") == {"1": "READY"}


def test_a_client_may_send_back_what_the_operator_wrote(start, repository):
    """Clients change a config by reading it, changing a field and sending all of it."""
    parameter = 'parameters { key: "some_path" value { string_value: "/etc/x" } }'
    add_onnx(repository, "mine", onnx_models.identity("FP32"), f"max_batch_size: 8 {parameter}")
    with start(load_model=("mine",)) as server:
        config = {**server.config("mine"), "max_batch_size": 16}
        assert server.load("mine", config=config).status == 200
        assert server.config("mine")["max_batch_size"] == 16
        config["parameters"]["some_path"]["string_value"] = "/etc/y"
        assert server.load("mine", config=config).status >= 400


@pytest.mark.parametrize("place", ["../x", "/tmp/x", "1/../../x", "..", "1\\..\\x", "a\0b"])
def test_files_elsewhere_over_grpc(start, content, place):
    with start() as server, tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        with pytest.raises(InferenceServerException, match="outside the model's folder"):
            client.load_model("sent", config=json.dumps(CONFIG), files={f"file:{place}": content})
        for name in ("../sent", "/tmp/sent", ".."):
            with pytest.raises(InferenceServerException, match="invalid model name"):
                client.load_model(
                    name, config=json.dumps(CONFIG), files={"file:1/model.onnx": content}
                )


# ---- what stays


def folders():
    """The folders of uploaded files."""
    return {path for path in Path(tempfile.gettempdir()).glob("shoal-*") if path.is_dir()}


@pytest.fixture
def private_tmp(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.usefixtures("private_tmp")
def test_uploaded_files_are_deleted_with_their_model(start, content):
    with start() as server:
        assert upload(server, content).status == 200
        (first,) = folders()
        assert first.stat().st_mode & 0o077 == 0  # other users cannot read it
        assert upload(server, content).status == 200
        (second,) = folders()
        assert second != first  # that of the version before is gone
        assert server.unload("sent").status == 200
        assert folders() == set()
        assert server.load("sent").status >= 400  # nothing is left of it
        assert upload(server, content).status == 200
        assert len(folders()) == 1
    assert folders() == set()


@pytest.mark.usefixtures("private_tmp")
def test_nothing_stays_of_an_upload_that_fails(start, content):
    with start(allow_model_upload="false") as server:
        upload(server, content)
        assert folders() == set()
    with start() as server:
        assert upload(server, b"no model").status >= 400
        assert folders() == set()
        assert upload(server, content, name="echo").status == 200
        assert upload(server, b"no model", name="echo").status >= 400
        assert len(folders()) == 1  # the version before serves on
        assert outputs(echo(server, "echo"))["OUTPUT0"].tolist() == [[7]]
        assert server.load("echo").status == 200  # from the repository again
        assert folders() == set()


# ---- the warning at start


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"model_control_mode": "explicit"}, "--http-address, --grpc-address"),
        ({"model_control_mode": "lazy"}, "--http-address, --grpc-address"),
        ({"model_control_mode": "explicit", "http_address": "127.0.0.1"}, "--grpc-address"),
        ({"model_control_mode": "explicit", "allow_grpc": False}, "--http-address"),
        ({}, ""),
        (
            {
                "model_control_mode": "explicit",
                "http_address": "127.0.0.1",
                "grpc_address": "localhost",
            },
            "",
        ),
    ],
)
def test_a_warning_where_model_control_is_open(options, warned):
    lines = [line for line in Options(**options).warnings() if "can load and unload" in line]
    assert bool(lines) is bool(warned)
    if warned:
        assert lines[0].startswith(f"anyone who can reach {warned} can load and unload models")
        assert "docs/security" not in lines[0]


def test_restricted_control_needs_no_warning():
    secret = (NamedSetting("model-repository", "admin-key", "secret"),)
    options = Options(
        model_control_mode="explicit", http_restricted_api=secret, grpc_restricted_protocol=secret
    )
    assert options.warnings() == []

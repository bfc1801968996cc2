"""deploy/kserve: the files are KServe's, and Shoal does what its runtimes and its agent expect."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import arguments
from shoal.cli.serve import with_repositories
from shoal.testing import WAIT_SECS
from shoal.testing.server import HttpCall, running_server, wait_until
from tests.support import onnx_models
from tests.support.repositories import add_onnx

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

SDK = Path(__file__).parents[1] / "compat" / "kserve_sdk.py"
# As config/runtimes/kserve-tritonserver.yaml of KServe 0.21 has them.
TRITONSERVER = (
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
)
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}


@pytest.fixture(scope="module")
def documents(tool):
    """Every document, after its place."""
    return list(tool("kserve_crds").documents())


@pytest.fixture(scope="module")
def runtimes(documents):
    found = [each for _, each in documents if each["kind"] == "ClusterServingRuntime"]
    return {each["metadata"]["name"]: each["spec"] for each in found}


def only_container(spec):
    (container,) = spec["containers"]
    assert container["name"] == "kserve-container"
    return container


# ---- the files


@pytest.mark.kserve
def test_kserves_own_classes_know_every_field(documents):
    planted = json.loads(json.dumps(documents[0][1]))
    planted["spec"]["multimodel"] = True
    planted["spec"]["protocolVersions"] = "v2"
    asked = [*[each for _, each in documents], planted]
    done = subprocess.run(
        ["kserve-python", SDK, "validate"],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
    )
    *found, wrong = [each["wrong"] for each in json.loads(done.stdout)]
    assert found == [[]] * len(documents)
    assert wrong == [
        ".spec.protocolVersions: 'v2' is no list[str]",
        ".spec: V1alpha1ServingRuntimeSpec has no field 'multimodel'",
    ]


def test_kubernetes_knows_every_field_of_their_pods(documents):
    pods = 0
    for _, document in documents:
        spec = document["spec"]
        for part in (spec, *[spec.get(name, {}) for name in ("predictor", "transformer")]):
            containers = part.get("containers", [])
            if "model" in part and document["kind"] == "InferenceService":
                own = {"modelFormat", "runtime", "protocolVersion", "storageUri"}
                model = {key: value for key, value in part["model"].items() if key not in own}
                containers = [{"name": "kserve-container", **model}]
            if containers:
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "pod"},
                    "spec": {"containers": containers, "volumes": part.get("volumes", [])},
                }
                kubernetes_validate.validate(pod, "1.33", strict=True)
                pods += 1
    assert pods >= 10


def test_the_examples_name_runtimes_that_support_them(documents, runtimes):
    for place, document in documents:
        if document["kind"] != "InferenceService":
            continue
        model = document["spec"]["predictor"]["model"]
        if model["runtime"] == "kserve-tritonserver":
            continue
        runtime = runtimes[model["runtime"]]
        formats = {each["name"] for each in runtime["supportedModelFormats"]}
        assert model["modelFormat"]["name"] in formats, place
        assert model["protocolVersion"] in runtime["protocolVersions"], place
        words = [*only_container(runtime)["args"][1:], *model.get("args", ())]
        arguments.parse([word.replace("{{.Name}}", "a") for word in words])  # or it raises
        ports = model.get("ports", [])
        if model["protocolVersion"] == "grpc-v2":
            assert [(port["name"], port["containerPort"]) for port in ports] == [("h2c", 9000)]


def test_the_runtimes_keep_kserves_contract(runtimes):
    assert set(runtimes) == {"kserve-shoal", "kserve-shoal-full", "kserve-shoal-multi-model"}
    images = set()
    for name, spec in runtimes.items():
        container = only_container(spec)
        options = arguments.parse(
            [word.replace("{{.Name}}", "a") for word in container["args"][1:]]
        )
        assert container["args"][0] == "tritonserver"
        assert (options.http_port, options.grpc_port) == (8080, 9000)
        assert options.model_repository == ("/mnt/models",)
        assert spec["annotations"] == {
            "prometheus.kserve.io/port": str(options.metrics_port),
            "prometheus.kserve.io/path": "/metrics",
        }
        probe = container["readinessProbe"]["httpGet"]
        assert probe == {"path": "/v2/health/ready", "port": options.http_port}
        assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
        secure = container["securityContext"]
        assert (secure["runAsUser"], secure["runAsNonRoot"]) == (1000, True)
        assert secure["readOnlyRootFilesystem"]
        assert secure["capabilities"] == {"drop": ["ALL"]}
        assert spec.get("multiModel", False) == (options.model_control_mode == "explicit")
        # What a replica needs to stop fits into the 30 seconds that Kubernetes gives it.
        assert options.drain_secs + options.exit_timeout_secs < 30
        images.add(container["image"].rpartition("-")[0])
        assert name.startswith("kserve-shoal")
    assert len(images) == 1  # all of one version


def test_misspelled_fields_are_found(tool):
    tool_of_schemas = tool("kserve_crds")
    schema = tool_of_schemas.strict(
        {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "properties": {"runtime": {"type": "string"}}},
                "metadata": {"type": "object"},
                "free": {
                    "properties": {},
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        }
    )
    known = {("v1", "Thing"): schema}
    document = {"apiVersion": "v1", "kind": "Thing"}
    schema["properties"] |= {"apiVersion": {}, "kind": {}}
    right = {"spec": {"runtime": "a"}, "metadata": {"name": "b"}, "free": {"c": 1}}
    assert tool_of_schemas.errors({**document, **right}, known) == []
    (error,) = tool_of_schemas.errors({**document, "spec": {"runTime": "a"}}, known)
    assert error.startswith("spec: Additional properties are not allowed ('runTime'")
    assert tool_of_schemas.errors({"apiVersion": "v2", "kind": "Thing"}, known)


def test_the_table_of_the_protocol_names_tests(root):
    page = (root / "docs" / "deploy" / "kserve.md").read_text()
    table = page[page.index("## Open Inference Protocol") :]
    source = (root / "tests" / "compat" / "test_open_inference_protocol.py").read_text()
    named = set(re.findall(r"`(test_\w+)`", table))
    assert named == set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))


# ---- the server


def ask(port, model):
    body = json.dumps(BODY).encode()
    answer = HttpCall(port, "POST", f"/v2/models/{model}/infer", body).response()
    assert answer.status == 200, answer
    return answer.json["outputs"][0]["data"]


def test_the_arguments_of_kserves_runtime_for_triton(tmp_path):
    """The program itself, with other ports and another folder: a repository, as the storage
    initializer leaves it."""
    add_onnx(tmp_path, "net", onnx_models.plus(1), "max_batch_size: 8")
    add_onnx(tmp_path, "bare", onnx_models.plus(2))
    (tmp_path / "net" / "SUCCESS.71f376a9daa07a04").touch()  # of KServe's agent
    ports = {}
    with contextlib.ExitStack() as held:
        for value in ("8080", "9000", "8002"):
            reserved = held.enter_context(socket.socket())
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            ports[value] = reserved.getsockname()[1]
        replaced = {"/mnt/models": str(tmp_path), **ports}
        words = [word.partition("=") for word in TRITONSERVER[1:]]
        given = [f"{flag}={replaced.get(value, value)}" for flag, _, value in words]
        given += [f"--metrics-port={ports['8002']}", "--http-address=127.0.0.1"]
        program = "import sys; from shoal.cli.main import tritonserver; sys.exit(tritonserver())"
        process = subprocess.Popen([sys.executable, "-c", program, *given], stderr=-3)
    try:

        def listens():
            assert process.poll() is None
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", ports["8080"])) == 0

        wait_until(listens, "KServe's TCP probe succeeds")
        assert ask(ports["8080"], "net") == [6]  # models may be loading still: it waits
        assert ask(ports["8080"], "bare") == [7]
    finally:
        process.terminate()
        assert process.wait(WAIT_SECS) == 0


def test_the_arguments_of_our_runtime(tmp_path, runtimes):
    """One model file, under the name of the InferenceService."""
    (tmp_path / "model.onnx").write_bytes(onnx_models.plus(1).SerializeToString())
    replaced = {"/mnt/models": str(tmp_path), "{{.Name}}": "digits"}
    words = [word.partition("=") for word in only_container(runtimes["kserve-shoal"])["args"][1:]]
    options = arguments.parse([f"{flag}={replaced.get(text, text)}" for flag, _, text in words])
    options = with_repositories(options, "tritonserver")
    with running_server(*options.model_repository) as running:
        assert ask(running.server.http_port, "digits") == [6]


def test_kserves_agent_loads_and_unloads(tmp_path):
    """It puts a model's folder into an empty repository and posts `{}`; at the end it deletes the
    folder first."""

    def post(running, action):
        answer = running.post(
            f"/v2/repository/models/digits/{action}", b"{}", {"Content-Type": "application/json"}
        )
        assert answer.status == 200, answer

    with running_server(tmp_path, model_control_mode="explicit") as running:
        assert running.get("/v2/health/ready").status == 200
        add_onnx(tmp_path, "digits", onnx_models.plus(1), "max_batch_size: 8")
        (tmp_path / "digits" / "SUCCESS.71f376a9daa07a04").touch()
        post(running, "load")
        assert running.get("/v2/models/digits/ready").status == 200
        assert running.post("/v2/models/digits/infer", BODY).json["outputs"][0]["data"] == [6]
        shutil.rmtree(tmp_path / "digits")
        post(running, "unload")
        wait_until(lambda: running.get("/v2/models/digits/ready").status != 200)
        assert running.get("/v2/health/ready").status == 200

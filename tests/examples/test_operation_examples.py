from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.cli.demo import repository
from shoal.config.options import NamedSetting
from shoal.server import ModelsFailed
from shoal.testing.server import running_server
from tests.support.scripts import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "operation"


def test_traces(tmp_path):
    file = NamedSetting("triton", "file", str(tmp_path / "trace.json"))
    with running_server(repository(), trace_config=(file,)) as running:
        for _ in range(2):
            shown = run_script(FOLDER / "trace_requests.py", running.http_address)
            assert shown.count("COMPUTE_START") == 3
            assert shown.count("us  HTTP_SEND_END") == 3


def test_spans(port):
    settings = (
        NamedSetting("", "mode", "opentelemetry"),
        NamedSetting("", "level", "TIMESTAMPS"),
        NamedSetting("", "rate", "0"),
        NamedSetting("opentelemetry", "url", f"http://127.0.0.1:{port}/v1/traces"),
        NamedSetting("opentelemetry", "bsp_schedule_delay", "10"),
    )
    with running_server(repository(), trace_config=settings) as running:
        shown = run_script(FOLDER / "spans.py", running.grpc_address, port)
    lines = [line.partition(":")[0] for line in shown.splitlines()]
    assert lines == ["  InferRequest", "    add_sub", "      compute"]


def test_log_settings():
    with running_server(repository()) as running:
        assert "'log_verbose_level': 1" in run_script(
            FOLDER / "log_settings.py", running.http_address
        )


def test_restricted_apis():
    closed = (NamedSetting("model-repository,logging", "admin-key", "secret"),)
    with running_server(
        repository(), http_restricted_api=closed, grpc_restricted_protocol=closed
    ) as running:
        shown = run_script(
            FOLDER / "restricted_apis.py", running.http_address, running.grpc_address
        )
    assert shown.count("is restricted, expecting header") == 2
    assert "'state': 'READY'" in shown


def test_sagemaker_client(monkeypatch):
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "add_sub")
    port = {"sagemaker_address": "127.0.0.1", "sagemaker_port": 0}
    with running_server(repository(), allow_sagemaker=True, **port) as running:
        shown = run_script(
            FOLDER / "sagemaker_client.py", f"127.0.0.1:{running.server.sagemaker_port}"
        )
    assert shown == f"{[2 * number for number in range(16)]}\n"


def test_checksums(tmp_path):
    model = shutil.copytree(Path(repository()) / "digits", tmp_path / "digits")
    with (model / "config.pbtxt").open("a") as config:
        config.write(run_script(FOLDER / "checksums.py", model))
    with running_server(tmp_path) as running:
        assert running.states("digits") == {"1": "READY"}
    with (model / "1" / "model.onnx").open("ab") as weights:
        weights.write(b"\0")
    with pytest.raises(ModelsFailed) as caught, running_server(tmp_path):
        pass
    assert "'digits': Mismatched SHA256 hash for file 1/model.onnx" in caught.value.reasons[0]


def test_namespaces(tmp_path):
    run_script(FOLDER / "namespaces.py", tmp_path)
    with running_server(
        *(tmp_path / "eel", tmp_path / "crab"),
        model_namespacing=True,
        metrics_config=(NamedSetting("", "summary_latencies", "true"),),
    ) as running:
        shown = run_script(FOLDER / "namespaces.py", running.http_address, running.metrics_address)
    assert "There are 2 identifiers of model 'add_sub'" in shown
    for team in ("eel", "crab"):
        labels = f'_team="{team}",model="add_sub",namespace="{(tmp_path / team).as_posix()}"'
        assert f"nv_inference_count{{{labels}" in shown


def test_lazy_models(tmp_path):
    run_script(FOLDER / "lazy_models.py", tmp_path)
    with running_server(tmp_path, model_control_mode="lazy", model_memory_budget="100M") as running:
        shown = run_script(FOLDER / "lazy_models.py", running.http_address)
        assert running.metric("shoal_model_evictions_total", model="cod") == 1
    first, second, third, again = [part.splitlines() for part in shown.split(" responded ")[1:]]
    assert first[2] == "    eel: UNAVAILABLE, not loaded: it loads at its first request"
    assert second[2].startswith("    eel: READY, holds about")
    assert third[3].startswith("    ray: READY")
    assert again[1].startswith("    cod: READY")

"""Servers whose models are in object stores of other projects, and in one that misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import shoal
from shoal.cli import check
from shoal.testing import WAIT_SECS
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.repositories import add_onnx
from tests.support.s3_fixtures import s3, s3_server
from tests.support.s3_server import Fault

__all__ = ["s3", "s3_server"]


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"))
    return folder


@pytest.fixture
def cached(tmp_path):
    return {"repository_cache": str(tmp_path / "cache")}


def states(running):
    return {row["name"]: row.get("state") for row in running.index()}


def address_of(kind, request, models, monkeypatch, tmp_path):
    server = request.getfixturevalue({"s3": "moto", "gs": "moto"}.get(kind, kind))
    bucket = server.bucket()
    server.upload(bucket, models, "team/models/")
    environment = dict(server.environment)
    if kind == "gs":
        credentials = server.google_credentials(tmp_path)
        environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(credentials)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if kind == "azurite":
        return f"as://{environment['AZURE_STORAGE_ACCOUNT']}/{bucket}/team/models"
    scheme = "gs" if kind == "gs" else "s3"
    return f"{scheme}://{bucket}/team/models"


@pytest.mark.parametrize(
    "kind",
    [
        "s3",
        "gs",
        pytest.param("azurite", marks=pytest.mark.azurite),
        pytest.param("rclone", marks=pytest.mark.rclone),
    ],
)
def test_models_of_a_real_store(kind, request, models, monkeypatch, tmp_path, cached, capsys):
    address = address_of(kind, request, models, monkeypatch, tmp_path)
    with running_server(address, **cached) as running:
        assert states(running) == {"sum": "READY"}
        assert running.metric("shoal_repository_downloaded_bytes_total", repository=address) > 0
        assert running.metric("shoal_repository_download_left_bytes", repository=address) == 0
    before = sorted(path.name for path in (tmp_path / "cache/blobs").iterdir())
    assert check.run([address, f"--repository-cache={tmp_path / 'cache'}"]) == 0
    assert "ok    sum" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "cache/blobs").iterdir()) == before
    assert not list((tmp_path / "cache/servers").iterdir())


def test_a_server_in_a_program(s3, models, cached):
    for path in models.rglob("*.onnx"):
        s3.objects[path.relative_to(models.parent).as_posix()] = path.read_bytes()
    with shoal.Server(f"{s3.address}/models", **cached) as server:
        ones = np.ones((1, 16), np.int32)
        outputs = server.infer("sum", {"INPUT0": ones, "INPUT1": ones})
        assert outputs["OUTPUT0"].tolist() == [[2] * 16]


def test_a_server_of_several_processes(s3, models, cached, monkeypatch):
    monkeypatch.setenv("SHOAL_SERVERS", "processes")
    for path in models.rglob("*.onnx"):
        s3.objects[path.relative_to(models.parent).as_posix()] = path.read_bytes()
    address = f"{s3.address}/models"
    with running_server(address, model_control_mode="explicit", **cached) as running:
        assert running.load("sum").status == 200
        assert states(running) == {"sum": "READY"}
        assert running.metric("shoal_repository_downloaded_bytes_total", repository=address) > 0


def test_a_secret_appears_nowhere(s3, models, cached, caplog, capfd):
    for path in models.rglob("*.onnx"):
        s3.objects[path.relative_to(models.parent).as_posix()] = path.read_bytes()
    address = f"s3://http://me:sEcReT@127.0.0.1:{s3.port}/bucket/models"
    with running_server(
        address, model_control_mode="poll", repository_poll_secs=0.1, **cached
    ) as running:
        assert states(running) == {"sum": "READY"}
        s3.faults.append(Fault(key="list", status=403, code="AccessDenied"))
        wait_until(lambda: "may not be read" in caplog.text)
        texts = [
            str(running.index()),
            str(running.get("/v2/health/ready?verbose").json),
            running.metrics(),
            caplog.text,
            *capfd.readouterr(),
        ]
    assert f"s3://http://127.0.0.1:{s3.port}/bucket/models" in texts[0]
    assert not any("sEcReT" in text for text in texts)


def test_a_model_that_is_unloaded_during_its_download_stays_unloaded(s3, models, cached):
    for path in models.rglob("*.onnx"):
        s3.objects[path.relative_to(models.parent).as_posix()] = path.read_bytes()
    arrives = threading.Event()
    s3.faults.append(Fault(key="model.onnx", wait_for=arrives))
    answers = []
    with running_server(f"{s3.address}/models", model_control_mode="explicit", **cached) as running:
        load = threading.Thread(target=lambda: answers.append(running.load("sum")))
        load.start()
        try:
            wait_until(lambda: s3.count("GET", "model.onnx") > 0)
            assert running.unload("sum").status == 200
        finally:
            arrives.set()
            load.join(WAIT_SECS)
        assert answers[0].status == 400
        assert "it was unloaded while its files were downloaded" in answers[0].json["error"]
        assert running.get("/v2/models/sum/ready").status != 200
        assert running.load("sum").status == 200


def test_a_download_that_is_killed_leaves_nothing_half(s3, tmp_path):
    content = os.urandom(40 << 20)
    s3.objects["models/a/1/model.bin"] = content
    third = threading.Event()

    class Held(threading.Event):
        def wait(self, timeout=None):
            third.set()
            return super().wait(timeout)

    released = Held()
    real = s3.fault
    s3.fault = lambda method, key: (
        Fault(wait_for=released) if s3.count("GET", "a/1/") > 2 else real(method, key)
    )
    program = (
        "import sys; from shoal.storage import transfer; from shoal.storage.mirrors import *\n"
        "transfer._WHOLE_BYTES = transfer._RANGE_BYTES = 8 << 20\n"
        "Mirrors(StorageSettings(cache=sys.argv[2], threads=1)).local(sys.argv[1])"
    )
    arguments = [f"{s3.address}/models", str(tmp_path / "cache")]
    child = subprocess.Popen([sys.executable, "-c", program, *arguments])
    try:
        assert third.wait(WAIT_SECS)
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_SECS)
    finally:
        child.kill()
        released.set()
        del s3.fault
    assert not list((tmp_path / "cache/blobs").iterdir())
    s3.requests.clear()
    done = subprocess.run(
        [sys.executable, "-c", program + "\nprint('done')", *arguments],
        capture_output=True,
        timeout=WAIT_SECS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert s3.count("GET", "a/1/") == 3  # of five ranges: the other two were there
    (blob,) = (tmp_path / "cache/blobs").iterdir()
    assert blob.read_bytes() == content

"""Encrypted loads, and loads through Unix sockets."""

from __future__ import annotations

import tempfile

import pytest

from shoal.cli import perf
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_onnx

FEW = ("--request-count", "30", "--concurrency-range", "8")


@pytest.fixture(scope="module")
def running(tmp_path_factory, certificates):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_onnx(folder, "wide", onnx_models.identity("FP32", [-1]), "max_batch_size: 8")
    with (
        tempfile.TemporaryDirectory() as sockets,
        running_server(
            folder,
            https_cert=str(certificates / "own.pem"),
            https_key=str(certificates / "own.key"),
            http_unix_socket=f"{sockets}/http",
            grpc_unix_socket=f"{sockets}/grpc",
            grpc_use_ssl_mutual=True,
            grpc_server_cert=str(certificates / "own.pem"),
            grpc_server_key=str(certificates / "own.key"),
            grpc_root_cert=str(certificates / "root.pem"),
        ) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def https(running):
    """`host:port` of HTTPS."""
    return running.http_address


@pytest.mark.parametrize("model", [("sum",), ("wide", "--shape", "INPUT0:100000")])
@pytest.mark.parametrize("streaming", [(), ("--streaming",)])
def test_grpc(running, certificates, capsys, model, streaming):
    code = perf.run(
        [
            *("-m", *model, "-i", "grpc", "-u", running.grpc_address, *FEW, *streaming),
            *("--ssl-grpc-use-ssl", "true"),
            *("--ssl-grpc-root-certifications-file", str(certificates / "root.pem")),
            *("--ssl-grpc-private-key-file", str(certificates / "own.key")),
            *("--ssl-grpc-certificate-chain-file", str(certificates / "own.pem")),
        ]
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "Request count: 30\n" in printed.out


@pytest.mark.parametrize("model", [("sum",), ("wide", "--shape", "INPUT0:100000")])
@pytest.mark.parametrize("checked", [True, False])
def test_http(https, certificates, capsys, model, checked):
    trust = ("--ssl-https-ca-certificates-file", str(certificates / "root.pem"))
    careless = ("--ssl-https-verify-peer", "0", "--ssl-https-verify-host", "0")
    line = ["-m", *model, "-u", f"https://{https}", *FEW, *(trust if checked else careless)]
    code = perf.run(line)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "Request count: 30\n" in printed.out


def test_a_certificate_nobody_vouches_for(https, capsys):
    assert perf.run(["-m", "sum", "-u", f"https://{https}"]) == perf.FAILED
    assert "certificate" in capsys.readouterr().err


def test_files_that_cannot_be_used(https, capsys):
    words = ["--ssl-https-ca-certificates-file", "nowhere.pem"]
    assert perf.run(["-m", "sum", "-u", f"https://{https}", *words]) == perf.FAILED
    assert "nowhere.pem" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_unix_sockets(running, capsys, protocol):
    path = getattr(running.server.options, f"{protocol}_unix_socket")
    code = perf.run(["-m", "sum", "-i", protocol, "-u", f"unix://{path}", *FEW])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "Request count: 30\n" in printed.out

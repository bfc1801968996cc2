"""Encrypted loads: gRPC by the server itself, HTTP through a proxy, as servers are run."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

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
    with running_server(
        folder,
        grpc_use_ssl_mutual=True,
        grpc_server_cert=str(certificates / "own.pem"),
        grpc_server_key=str(certificates / "own.key"),
        grpc_root_cert=str(certificates / "root.pem"),
    ) as server:
        yield server


@pytest.fixture(scope="module")
def https(running, certificates):
    """`host:port` of a proxy that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "own.pem", certificates / "own.key")

    async def pass_on(reader, writer):
        with contextlib.suppress(OSError):  # the load may end with an answer on its way
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def connect(reader, writer):
        theirs = await asyncio.open_connection("127.0.0.1", running.server.http_port)
        await asyncio.gather(pass_on(reader, theirs[1]), pass_on(theirs[0], writer))

    async def start():
        return await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)

    async def stop():
        proxy.close()

    proxy = running.run(start())
    yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    running.run(stop())


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

"""HTTPS: requests over TLS, certificates of clients, and certificates that are renewed."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import ssl

import grpc
import numpy as np
import pytest

from shoal import reloads
from shoal.ask.askers import find
from shoal.cli.main import main
from shoal.client import ConnectionFailed, InvalidInput
from shoal.errors import InvalidArgument
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.http_listener import read_all
from tests.support.repositories import add_onnx
from tests.support.tls import issue

LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "echo", onnx_models.identity("FP32", [-1]))
    return folder


def https_options(folder, **more):
    names = {"https_cert": "own.pem", "https_key": "own.key"} | more
    return {name: str(folder / file) for name, file in names.items()}


@pytest.fixture(scope="module")
def running(repository, certificates):
    with running_server(repository, **https_options(certificates)) as server:
        yield server


@pytest.fixture(scope="module")
def trust(certificates):
    return ssl.create_default_context(cafile=str(certificates / "root.pem"))


def ask(port, context, path="/v2/health/ready", body=None, headers=None):
    """One request on a connection of its own."""
    client = http.client.HTTPSConnection("localhost", port, timeout=WAIT_SECS, context=context)
    with contextlib.closing(client):
        client.request("POST" if body else "GET", path, body, headers or {})
        answer = client.getresponse()
        return answer.status, answer.read()


def binary(array):
    """Body and headers of a request for `echo`."""
    raw = array.tobytes()
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, array.size]}
    entry["parameters"] = {"binary_data_size": len(raw)}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    document = json.dumps({"inputs": [entry], "outputs": [output]}).encode()
    return document + raw, {"Inference-Header-Content-Length": str(len(document))}


@pytest.mark.parametrize("count", [4, 100_000, 3_000_000])
def test_inference(running, trust, count):
    values = np.arange(count, dtype=np.float32)
    body, headers = binary(values)
    client = http.client.HTTPSConnection(
        "localhost", running.server.http_port, timeout=WAIT_SECS, context=trust
    )
    with contextlib.closing(client):
        for _ in range(3):  # the later ones match the template of the first
            client.request("POST", "/v2/models/echo/infer", body, headers)
            answer = client.getresponse()
            data = answer.read()
            assert answer.status == 200, data[:200]
            assert data.endswith(values.tobytes())


def test_metrics_are_encrypted_too(running, trust):
    status, body = ask(running.server.metrics_port, trust, "/metrics")
    assert status == 200
    assert b"nv_inference_request_success" in body


def test_what_is_negotiated(running):
    with socket.create_connection(("localhost", running.server.http_port), WAIT_SECS) as plain:
        context = ssl.create_default_context(cafile=None)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(plain) as client:
            assert client.selected_alpn_protocol() == "http/1.1"
            assert client.version() == "TLSv1.3"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(running):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("localhost", running.server.http_port), WAIT_SECS) as plain,
        pytest.raises(OSError, match=r"(?i)version|eof|reset|protocol"),
    ):
        context.wrap_socket(plain)


@pytest.mark.parametrize("size", [0, 200_000])
def test_plain_http_gets_an_answer(running, size):
    address = ("localhost", running.server.http_port)
    with socket.create_connection(address, WAIT_SECS) as client:
        client.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * size)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body)["error"] == (
        "this port speaks HTTPS, not plain HTTP: use https://, or a secure channel for gRPC"
    )


# ---- certificates of clients


def test_clients_need_a_certificate(repository, certificates, trust):
    known = ssl.create_default_context(cafile=str(certificates / "root.pem"))
    known.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    options = https_options(certificates, https_client_ca="root.pem")
    with running_server(repository, **options) as running:
        for port in (running.server.http_port, running.server.metrics_port):
            assert ask(port, known, "/v2/health/ready")[0] == 200
            with pytest.raises(OSError, match=r"(?i)certificate|eof|reset|closed"):
                ask(port, trust, "/v2/health/ready")


def test_certificates_of_other_authorities_are_refused(repository, certificates, tmp_path):
    issue(tmp_path, 1)
    stranger = ssl.create_default_context(cafile=str(certificates / "root.pem"))
    stranger.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    options = https_options(certificates, https_client_ca="root.pem")
    with (
        running_server(repository, **options) as running,
        pytest.raises(OSError, match=r"(?i)certificate|unknown ca|eof|reset|closed"),
    ):
        ask(running.server.http_port, stranger)


# ---- files


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"https_cert": "/nowhere"}, "--https-cert=/nowhere cannot be read"),
        ({"https_key": "/nowhere"}, "--https-key=/nowhere cannot be read"),
        ({"https_client_ca": "/nowhere"}, "--https-client-ca=/nowhere cannot be read"),
    ],
)
def test_files_that_are_missing(repository, certificates, change, text):
    options = https_options(certificates) | change
    with pytest.raises(InvalidArgument, match=text), running_server(repository, **options):
        pass


class Renewed:
    """A server whose certificate is replaced, over HTTPS or gRPC."""

    def __init__(self, running, folder):
        self.running = running
        self.folder = folder

    def trust(self):
        """A context for the certificate that is in the file now."""
        return ssl.create_default_context(cafile=str(self.folder / "cert.pem"))

    def certificate(self):
        """That of the file."""
        return ssl.PEM_cert_to_DER_cert((self.folder / "cert.pem").read_text())

    def shown(self, port):
        """That of a new connection."""
        pem = ssl.get_server_certificate(("localhost", port), timeout=WAIT_SECS)
        return ssl.PEM_cert_to_DER_cert(pem)


@pytest.fixture
def renewed(repository, tmp_path, monkeypatch, request):
    monkeypatch.setattr(reloads, "POLL_SECS", 0.01)
    issue(tmp_path, 1)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with running_server(
        repository,
        https_cert=cert,
        https_key=key,
        grpc_use_ssl=True,
        grpc_server_cert=cert,
        grpc_server_key=key,
        grpc_transport=getattr(request, "param", "native"),
    ) as running:
        yield Renewed(running, tmp_path)


@pytest.mark.parametrize("renewed", ["native", "grpcio"], indirect=True)
def test_new_connections_get_the_new_certificate(renewed):
    server = renewed.running.server
    ports = (server.http_port, server.metrics_port, server.grpc_port)
    first = renewed.certificate()
    old = http.client.HTTPSConnection(
        "localhost", server.http_port, timeout=WAIT_SECS, context=renewed.trust()
    )
    root = (renewed.folder / "cert.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(root)
    with (
        contextlib.closing(old),
        grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel,
    ):
        live = channel.unary_unary(LIVE)
        live(b"", timeout=WAIT_SECS)
        old.request("GET", "/v2/health/ready")
        assert old.getresponse().read() == b""
        issue(renewed.folder, 2)
        second = renewed.certificate()
        assert second != first
        for port in ports:
            wait_until(
                lambda port=port: renewed.shown(port) == second, f"the new certificate on {port}"
            )
        assert old.sock.getpeercert(binary_form=True) == first
        old.request("GET", "/v2/health/ready")
        assert old.getresponse().status == 200
        assert live(b"", timeout=WAIT_SECS) == b"\x08\x01"
        assert ask(server.http_port, renewed.trust())[0] == 200


def test_a_request_reads_the_files_at_once(renewed, monkeypatch):
    server = renewed.running.server
    monkeypatch.setattr(reloads, "POLL_SECS", 3600)  # as after SIGHUP, before the next poll
    server.reloads.request()
    issue(renewed.folder, 2)
    server.reloads.request()
    second = renewed.certificate()
    wait_until(lambda: renewed.shown(server.http_port) == second, "the new certificate")


def test_a_broken_file_keeps_the_old_certificate(renewed, caplog):
    server = renewed.running.server
    first = renewed.certificate()
    with caplog.at_level(logging.ERROR, "shoal.reloads"):
        (renewed.folder / "cert.pem").write_text("no certificate")
        wait_until(lambda: len(caplog.messages) == 2, "both protocols have read the file")
    path = renewed.folder / "cert.pem"
    assert sorted(caplog.messages) == [
        f"the certificate of {flag} was not reloaded, and stays as it was: "
        f"{flag}={path} has no certificate in PEM format"
        for flag in ("--grpc-server-cert", "--https-cert")
    ]
    assert renewed.shown(server.http_port) == first
    assert renewed.shown(server.grpc_port) == first
    issue(renewed.folder, 3)
    third = renewed.certificate()
    wait_until(lambda: renewed.shown(server.http_port) == third, "the new certificate")


# ---- the end of connections


def test_the_last_response_is_sent_whole(running, trust):
    values = np.zeros(2_000_000, np.float32)
    body, headers = binary(values)
    with (
        socket.create_connection(("localhost", running.server.http_port), WAIT_SECS) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        lines = [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "Host: localhost", "Connection: close"]
        head = "\r\n".join(["POST /v2/models/echo/infer HTTP/1.1", *lines, "", ""])
        client.sendall(head.encode() + body)
        assert len(read_all(client)) > values.nbytes  # until the server ends the connection


def test_a_client_that_does_not_confirm_the_end_delays_no_exit(repository, certificates, trust):
    options = https_options(certificates) | {"exit_timeout_secs": WAIT_SECS}
    with contextlib.ExitStack() as stack:
        with running_server(repository, **options) as running:
            address = ("localhost", running.server.http_port)
            plain = stack.enter_context(socket.create_connection(address, WAIT_SECS))
            client = stack.enter_context(trust.wrap_socket(plain, server_hostname="localhost"))
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert running.run(running.server.stop())
        # It reads nothing until here, and finds a proper end.
        assert client.recv(1) == b""


# ---- our own commands


def test_shoal_ask_and_its_authorities(running, certificates):
    here = {"port": None, "model": "", "timeout_secs": WAIT_SECS}
    url = f"https://{running.http_address}"
    settings = {"ca": str(certificates / "root.pem"), "cert": None, "key": None, "verify": True}
    with contextlib.closing(find("localhost", http=url, tls=settings, **here)) as asker:
        assert asker.description == f"{running.http_address} over HTTPS"
    with pytest.raises(ConnectionFailed, match="is not trusted"):
        find("localhost", http=url, **here)
    with pytest.raises(InvalidInput, match="add --http https://"):
        find("localhost", http="", tls=settings, **here)


@pytest.mark.parametrize("trusting", [True, False])
def test_shoal_image_and_its_authorities(running, certificates, tmp_path, capsys, trusting):
    (tmp_path / "a.png").write_bytes(b"")
    words = ["image", "-u", f"https://{running.http_address}", "-m", "none", tmp_path / "a.png"]
    words += ["--ca", certificates / "root.pem"] if trusting else []
    assert main([str(word) for word in words]) == 1
    error = capsys.readouterr().err
    assert ("unknown model: 'none'" in error) is trusting, error
    assert ("is not trusted" in error) is not trusting


def test_no_check_if_asked_for(running, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"")
    url = f"https://{running.http_address}"
    assert main(["image", "-u", url, "-m", "none", "--insecure", str(tmp_path / "a.png")]) == 1
    assert "is not trusted" not in capsys.readouterr().err

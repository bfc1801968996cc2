"""Credentials that machines and pods ask for: roles of instances, containers and web identities."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shoal.storage.errors import StorageError

ROLE = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ROLEKEY",
    "SecretAccessKey": "sEcReT",
    "Token": "session",
    "LastUpdated": "2026-01-01T00:00:00Z",
    "Expiration": "2099-01-01T00:00:00Z",
}
STS = """<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>PODKEY</AccessKeyId><SecretAccessKey>sEcReT</SecretAccessKey>
<SessionToken>session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
TOKEN = {
    "access_token": "bearer-token",
    "expires_in": 3600,
    "expires_on": "4070908800",
    "token_type": "Bearer",
}


class _Metadata(BaseHTTPRequestHandler):
    """What the clouds answer to machines that ask who they are."""

    def log_message(self, *_):
        pass

    def do_PUT(self):
        self.do_GET()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.seen.append((self.command, path, dict(self.headers)))
        answers = {
            "/latest/api/token": "imds-token",
            "/latest/meta-data/iam/security-credentials/": "my-role",
            "/latest/meta-data/iam/security-credentials/my-role": json.dumps(ROLE),
            "/v2/credentials/x": json.dumps(ROLE),
            "/": STS,
            "/computeMetadata/v1/instance/service-accounts/default/token": json.dumps(TOKEN),
            "/msi": json.dumps(TOKEN),
        }
        body = answers.get(path, "").encode()
        self.send_response(200 if body else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def metadata(s3, monkeypatch, tmp_path):
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
    server.daemon_threads = True
    server.seen = []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def signed_by(s3):
    headers = {name.lower(): value for name, value in s3.headers[-1].items()}
    return headers["authorization"], headers.get("x-amz-security-token")


def listed(mirrors, address):
    mirror = mirrors().open(address)
    mirror.refresh()
    return sorted(mirror.models)


def test_the_role_of_an_instance(metadata, mirrors, s3, monkeypatch):
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.url)
    s3.objects["models/a/1/model.bin"] = b""
    assert listed(mirrors, f"{s3.address}/models") == ["a"]
    authorization, token = signed_by(s3)
    assert "Credential=ROLEKEY/" in authorization
    assert token == "session"
    first, second = metadata.seen[:2]
    assert first[:2] == ("PUT", "/latest/api/token")  # IMDSv2
    assert {name.lower(): value for name, value in second[2].items()}[
        "x-aws-ec2-metadata-token"
    ] == "imds-token"


def test_the_role_of_a_container(metadata, mirrors, s3, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.url}/v2/credentials/x")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    s3.objects["models/a/1/model.bin"] = b""
    assert listed(mirrors, f"{s3.address}/models") == ["a"]
    assert "Credential=ROLEKEY/" in signed_by(s3)[0]


def test_the_web_identity_of_a_pod(metadata, mirrors, s3, monkeypatch, tmp_path, certificates):
    (tmp_path / "token").write_text("jwt")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # the exchange of tokens is always encrypted
    tls.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    metadata.socket = tls.wrap_socket(metadata.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "root.pem"))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", metadata.url.replace("http:", "https:"))
    s3.objects["models/a/1/model.bin"] = b""
    assert listed(mirrors, f"{s3.address}/models") == ["a"]
    assert "Credential=PODKEY/" in signed_by(s3)[0]


def test_the_service_account_of_a_machine_at_google(metadata, mirrors, s3, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", metadata.url.removeprefix("http://"))
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{s3.port}")
    s3.objects["models/a/1/model.bin"] = b""
    assert listed(mirrors, "gs://bucket/models") == ["a"]
    assert signed_by(s3)[0] == "Bearer bearer-token"


def test_the_managed_identity_of_a_machine_at_azure(metadata, mirrors, s3, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_AUTH_TYPE", "managed_identity")
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{metadata.url}/msi")
    monkeypatch.setenv("IDENTITY_HEADER", "header")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{metadata.url}/account")
    with pytest.raises(StorageError, match="403"):
        listed(mirrors, "as://account/box/models")
    method, path, headers = metadata.seen[-1]
    assert (method, path) == ("GET", "/account/box")
    assert {name.lower(): value for name, value in headers.items()}[
        "authorization"
    ] == "Bearer bearer-token"

"""Floods of wrong keys and forged tokens: each is refused for little more than a served request."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.attacks.conftest import AttackedServer, Neighbour, server_cpu_secs
from tests.support.fakes import WAIT_SECS
from tests.support.keys import bearer, key_of, write_keys

WIRE_BYTES = 1_000_000
MOST_EXTRA_SECS = 0.25
METADATA = "/inference.GRPCInferenceService/ServerMetadata"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    trusted = rsa.generate_private_key(65537, 2048)
    jwks = {"keys": [jwt.algorithms.RSAAlgorithm.to_jwk(trusted.public_key(), as_dict=True)]}
    (folder / "jwks.json").write_text(json.dumps(jwks))
    attacked = AttackedServer(
        folder,
        f"--api-keys={write_keys(folder / 'keys.jsonl', app={})}",
        f"--jwt-jwks={folder / 'jwks.json'}",
        "--jwt-issuer=me",
        "--jwt-audience=you",
    )
    yield attacked
    attacked.stop()


@pytest.fixture
def neighbour(server):
    made = Neighbour(server, headers=bearer("app"))
    yield made
    made.stop()
    print(f"the neighbour's longest wait: {made.longest_secs:.3f} s")


def random_keys():
    while True:
        yield "shoal_" + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def forged_tokens():
    """Well-formed, with another key's signature: the server must compute to refuse them."""
    other = rsa.generate_private_key(65537, 2048)
    claims = {"iss": "me", "aud": "you", "exp": time.time() + 600}
    for number in range(50):
        head, body, signature = jwt.encode({**claims, "n": number}, other, "RS256").split(".")
        for place in range(200):
            yield f"{head}.{body}.{signature[:place]}A{signature[place + 1 :]}"


def request(key):
    return f"GET /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def flood(server, content, count, status):
    """Send the requests on one connection; the CPU time until all are answered."""
    before = server_cpu_secs(server)
    with socket.create_connection(("127.0.0.1", server.http_port), WAIT_SECS) as line:
        sending = threading.Thread(target=line.sendall, args=(content,))
        sending.start()
        answers, received = 0, b""
        while answers < count:
            piece = line.recv(1 << 20)
            assert piece, "the server closed the connection"
            received = received[-20:] + piece
            answers += received.count(status)
            received = received[received.rfind(status) + 1 :] if status in received else received
        sending.join()
    return server_cpu_secs(server) - before


@pytest.mark.parametrize("keys", [random_keys, forged_tokens])
def test_a_flood_of_wrong_keys_over_http(server, neighbour, keys):
    neighbour.check()
    wrong, size = [], 0
    for key in keys():
        wrong.append(request(key))
        size += len(wrong[-1])
        if size > WIRE_BYTES:
            break
    count = len(wrong)
    served = flood(server, request(key_of("app")) * count, count, b"HTTP/1.1 200 ")
    refused = flood(server, b"".join(wrong), count, b"HTTP/1.1 401 ")
    print(f"{count} requests: {served:.2f} s served, {refused:.2f} s refused")
    assert refused < served + MOST_EXTRA_SECS
    neighbour.check()


def test_a_flood_of_wrong_keys_over_grpc(server, neighbour):
    neighbour.check()
    keys = random_keys()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as line:
        call = line.unary_unary(METADATA)
        before = server_cpu_secs(server)
        for _ in range(500):
            wrong = [("authorization", f"Bearer {next(keys)}")]
            outcome = call.future(b"", metadata=wrong, timeout=WAIT_SECS)
            assert outcome.code() is grpc.StatusCode.UNAUTHENTICATED
        refused = server_cpu_secs(server) - before
        before = server_cpu_secs(server)
        for _ in range(500):
            assert call(b"", metadata=list(bearer("app").items()), timeout=WAIT_SECS)
        served = server_cpu_secs(server) - before
    print(f"500 calls: {served:.2f} s served, {refused:.2f} s refused")
    assert refused < served + MOST_EXTRA_SECS
    neighbour.check()

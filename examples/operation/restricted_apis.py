r"""Call restricted APIs with the required header, over both protocols.

shoal serve --demo \
    --http-restricted-api=model-repository,logging:admin-key=secret \
    --grpc-restricted-protocol=model-repository,logging:admin-key=secret
pip install "tritonclient[http,grpc]"
python examples/operation/restricted_apis.py [localhost:8000] [localhost:8001]
"""

from __future__ import annotations

import sys

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

Client = tritonclient.http.InferenceServerClient | tritonclient.grpc.InferenceServerClient


def main(http_server: str, grpc_server: str) -> None:
    with tritonclient.http.InferenceServerClient(http_server) as client:
        ask(client, {"admin-key": "secret"})
    with tritonclient.grpc.InferenceServerClient(grpc_server) as client:
        ask(client, {"triton-grpc-protocol-admin-key": "secret"})


def ask(client: Client, headers: dict[str, str]) -> None:
    assert client.is_server_ready()  # not restricted
    try:
        client.get_model_repository_index()
    except InferenceServerException as refused:
        print("without the header:", refused.message())
    else:
        raise AssertionError("it should have been rejected")
    print("with it:", client.get_model_repository_index(headers=headers))


if __name__ == "__main__":
    addresses = [*sys.argv[1:], *["localhost:8000", "localhost:8001"][len(sys.argv) - 1 :]]
    main(*addresses)

"""What `helm test` runs, in Shoal's own image: health and one inference over HTTP and gRPC.

SHOAL_HTTP, SHOAL_GRPC   addresses of the server, such as https://shoal:8000 and grpcs://shoal:8001
SHOAL_MODEL              the model to ask; empty for the first one that is ready and takes zeros
SHOAL_API_KEY            a key, if clients need one
SHOAL_TLS                a folder with ca.crt, if the server is encrypted
SHOAL_CLIENT_TLS         a folder with tls.crt and tls.key, if clients need a certificate
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from shoal.client import Client, ClientError

TIMEOUT_SECS = 60.0


def connect(url: str) -> Client:
    """A client with the key and the certificates of the environment."""
    options: dict[str, Any] = {"api_key": os.environ.get("SHOAL_API_KEY", "")}
    if folder := os.environ.get("SHOAL_TLS"):
        options["ca"] = f"{folder}/ca.crt"
    if folder := os.environ.get("SHOAL_CLIENT_TLS"):
        options |= {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key"}
    return Client(url, timeout=TIMEOUT_SECS, **options)


def zeros(tensor: dict[str, Any]) -> list[Any]:
    """Zeros or empty text for an input; a size that is open is 1."""
    shape = [1 if int(size) == -1 else int(size) for size in tensor["shape"]]
    value = "" if tensor["datatype"] == "BYTES" else 0
    filled: list[Any] = np.full(shape, value).tolist()
    return filled


def infer(client: Client, name: str) -> str:
    """The names of the model's outputs, after one inference. Raises ClientError."""
    inputs = {tensor["name"]: zeros(tensor) for tensor in client.metadata(name)["inputs"]}
    return ", ".join(sorted(client.infer(name, inputs)))


def check(client: Client, url: str) -> bool:
    """Whether the server is live and ready, and a model answers if there is one."""
    health = {"live": client.live(), "ready": client.ready()}
    print(f"{url}: {health}")
    if not all(health.values()):
        return False
    chosen = os.environ.get("SHOAL_MODEL")
    names = [chosen] if chosen else [entry["name"] for entry in client.index(ready=True)]
    for name in names:
        try:
            print(f"{url}: model '{name}' answered with {infer(client, name)}")
        except ClientError as error:
            print(f"{url}: model '{name}' did not answer: {error}")
        else:
            return True
    if not names:
        print(f"{url}: there is no model to ask")
    return not names


def main() -> int:
    """Check both protocols; the exit status."""
    passed = True
    for url in (os.environ["SHOAL_HTTP"], os.environ["SHOAL_GRPC"]):
        try:
            with connect(url) as client:
                passed &= check(client, url)
        except ClientError as error:
            print(f"{url}: {error}")
            passed = False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

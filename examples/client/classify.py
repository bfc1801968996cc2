"""Classify a drawn digit with three lines of `shoal.client`.

    shoal serve --demo
    python examples/client/classify.py [localhost:8000]

The address may be that of any server of the KServe v2 protocol; "grpc://localhost:8001" uses
gRPC.
"""

from __future__ import annotations

import sys

import numpy as np

from shoal.client import Client, ClientError

ONE = """
    ....##..
    ...###..
    ..####..
    ....##..
    ....##..
    ....##..
    ....##..
    ....##..
"""


def main(server: str) -> None:
    image = np.array([[16.0 * (mark == "#") for mark in "".join(ONE.split())]], np.float32)

    client = Client(server)
    result = client.infer("digits", {"image": image})
    (best,) = result.top_k("probabilities", 3)

    print("probabilities", result["probabilities"].round(3))
    for label in best:
        print(f"{label.name:>6} {label.score:.3f}")
    assert best[0].name == "one"

    # Errors are sentences; those of the server are passed on.
    try:
        client.infer("digits", {"image": image[:, :9]})
    except ClientError as error:
        print(error)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

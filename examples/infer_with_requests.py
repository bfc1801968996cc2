"""Add and subtract two rows of numbers, with plain JSON over HTTP.

pip install requests
python examples/infer_with_requests.py [localhost:8000]
"""

from __future__ import annotations

import sys

import requests


def main(server: str) -> None:
    first = list(range(16))
    second = [10] * 16
    request = {
        "inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": first},
            {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": second},
        ]
    }
    response = requests.post(f"http://{server}/v2/models/add_sub/infer", json=request, timeout=60)
    if not response.ok:
        sys.exit(f"{response.status_code}: {response.json()['error']}")

    outputs = {output["name"]: output["data"] for output in response.json()["outputs"]}
    print("sum       ", outputs["OUTPUT0"])
    print("difference", outputs["OUTPUT1"])
    assert outputs["OUTPUT0"] == [a + b for a, b in zip(first, second, strict=True)]
    assert outputs["OUTPUT1"] == [a - b for a, b in zip(first, second, strict=True)]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

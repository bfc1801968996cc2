"""NVIDIA's client: binary tensors, several requests at once, strings.

pip install "tritonclient[http]"
python examples/infer_with_tritonclient.py [localhost:8000]
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as triton


def main(server: str) -> None:
    with triton.InferenceServerClient(server, concurrency=4) as client:
        assert client.is_server_ready()
        add_and_subtract(client)
        capital_letters(client)


def add_and_subtract(client: triton.InferenceServerClient) -> None:
    """Four requests in flight at once; the server may run them as one batch."""
    rows = [np.full((1, 16), number, np.int32) for number in range(4)]
    ten = triton.InferInput("INPUT1", [1, 16], "INT32")
    ten.set_data_from_numpy(np.full((1, 16), 10, np.int32))

    pending = []
    for row in rows:
        first = triton.InferInput("INPUT0", [1, 16], "INT32")
        first.set_data_from_numpy(row)
        pending.append(client.async_infer("add_sub", [first, ten]))

    for row, request in zip(rows, pending, strict=True):
        result = request.get_result()
        total = result.as_numpy("OUTPUT0")
        difference = result.as_numpy("OUTPUT1")
        print(f"{row[0, 0]} + 10 = {total[0, 0]}, {row[0, 0]} - 10 = {difference[0, 0]}")
        assert np.array_equal(total, row + 10)
        assert np.array_equal(difference, row - 10)


def capital_letters(client: triton.InferenceServerClient) -> None:
    """Strings are sent as BYTES; in numpy they are object arrays."""
    text = triton.InferInput("text", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([["a shoal"], ["of fish"]], dtype=np.object_))
    answer = client.infer("upper", [text]).as_numpy("upper")
    print(b" ".join(answer.ravel()).decode())
    assert answer.tolist() == [[b"A SHOAL"], [b"OF FISH"]]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

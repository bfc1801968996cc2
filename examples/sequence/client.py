"""Two concurrent sequences over HTTP, then one on a gRPC stream without waiting for responses.

pip install "tritonclient[http,grpc]"
python examples/sequence/client.py [localhost:8000] [localhost:8001]
"""

from __future__ import annotations

import queue
import sys
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

NUMBERS = [1, 2, 3, 4, 5]


def main(http_server: str, grpc_server: str) -> None:
    with tritonclient.http.InferenceServerClient(http_server) as client:
        taking_turns(client)
    with tritonclient.grpc.InferenceServerClient(grpc_server) as client:
        sent_ahead(client)


def taking_turns(client: tritonclient.http.InferenceServerClient) -> None:
    """The client chooses an id for each sequence, a number or a string."""
    for sequence_id, factor in ((1, 1), (2, 100)):
        totals = []
        for number in NUMBERS:
            result = client.infer(
                "running_total",
                [number_input(tritonclient.http, number * factor)],
                sequence_id=sequence_id,
                sequence_start=number == NUMBERS[0],
                sequence_end=number == NUMBERS[-1],
            )
            totals.append(int(result.as_numpy("SUM")[0, 0]))
        print(f"sequence {sequence_id}: {totals}")
        assert totals == [factor * total for total in (1, 3, 6, 10, 15)]


def sent_ahead(client: tritonclient.grpc.InferenceServerClient) -> None:
    """On a stream, the client need not wait for responses: the server keeps the order."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in NUMBERS:
        client.async_stream_infer(
            "running_total",
            [number_input(tritonclient.grpc, number)],
            sequence_id="ahead",
            sequence_start=number == NUMBERS[0],
            sequence_end=number == NUMBERS[-1],
        )
    totals = []
    for _ in NUMBERS:
        result, error = answers.get()
        if error is not None:
            raise error
        totals.append(int(result.as_numpy("SUM")[0, 0]))
    print(f"sequence 'ahead': {totals}")
    assert totals == [1, 3, 6, 10, 15]


def number_input(module: ModuleType, number: int) -> Any:
    tensor = module.InferInput("NUMBER", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.array([[number]], np.int64))
    return tensor


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    main(given.get(0, "localhost:8000"), given.get(1, "localhost:8001"))

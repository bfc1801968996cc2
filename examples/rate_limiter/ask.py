"""Call two models that must not run at the same time, and check that they do not.

    pip install numpy "tritonclient[http]"
    shoal serve examples/rate_limiter/models --rate-limit=execution_count
    python examples/rate_limiter/ask.py [localhost:8000]

Each has two instances, and all four need the one `scratch_memory` there is.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import tritonclient.http as triton

SECONDS = 0.05


def main(server: str) -> None:
    with triton.InferenceServerClient(server, concurrency=8) as client:
        asked = [ask(client, model) for model in ("left", "right") * 4]
        spans = sorted(tuple(one.get_result().as_numpy("SPAN")) for one in asked)
    overlaps = sum(after < end for (_, end), (after, _) in pairwise(spans))
    print(f"{len(spans)} executions in {spans[-1][1] - spans[0][0]:.2f} s, {overlaps} overlap")


def ask(client: triton.InferenceServerClient, model: str) -> triton.InferAsyncRequest:
    seconds = triton.InferInput("SECONDS", [1], "FP64")
    seconds.set_data_from_numpy(np.array([SECONDS]))
    return client.async_infer(model, [seconds])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

"""Send the same request three times: the model computes once, the cache serves the other two.

pip install numpy "tritonclient[http]"
shoal serve examples/response_cache/models --cache-config=local,size=64M
python examples/response_cache/ask.py [localhost:8000]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import tritonclient.http as triton

LIMIT = 20_000


def main(server: str) -> None:
    with triton.InferenceServerClient(server) as client:
        took_ms = [ask(client) for _ in range(3)]
        print("took " + ", ".join(f"{ms:.1f} ms" for ms in took_ms))
        (statistics,) = client.get_inference_statistics("primes")["model_stats"]
    counts = {name: entry["count"] for name, entry in statistics["inference_stats"].items()}
    print(f"{counts['success']} responses, {statistics['execution_count']} execution")
    print(f"{counts['cache_hit']} hits, {counts['cache_miss']} miss")


def ask(client: triton.InferenceServerClient) -> float:
    """Return the milliseconds of one request."""
    limit = triton.InferInput("LIMIT", [1, 1], "INT32")
    limit.set_data_from_numpy(np.array([[LIMIT]], np.int32))
    began = time.perf_counter()
    answer = client.infer("primes", [limit])
    took_ms = (time.perf_counter() - began) * 1000
    assert answer.as_numpy("COUNT").tolist() == [[2262]]
    return took_ms


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

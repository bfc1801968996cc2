"""A hundred requests in flight at once, with `AsyncClient`.

shoal serve --demo
python examples/client/many_at_once.py [localhost:8000]
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from shoal.client import AsyncClient


async def main(server: str) -> None:
    row = np.arange(16, dtype=np.int32).reshape(1, 16)
    async with AsyncClient(server) as client:
        results = await asyncio.gather(
            *(client.infer("add_sub", {"INPUT0": row, "INPUT1": row * i}) for i in range(100))
        )
        (statistics,) = await client.statistics("add_sub")
    for i, result in enumerate(results):
        assert (result["OUTPUT0"] == row * (i + 1)).all()
    print(f"{len(results)} responses, all correct")
    print(f"{statistics['inference_count']} rows in {statistics['execution_count']} executions")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"))

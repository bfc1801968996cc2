"""Share tensors with a server on the same machine instead of sending them.

    python examples/client/shared_memory.py

It brings its own server, which listens on this machine only and so allows shared memory.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

import shoal
from shoal.client import Client

Picture = Annotated[npt.NDArray[np.float32], (224, 224)]


@shoal.model(batch=8)
def invert(picture: Picture) -> Picture:
    return 1 - picture


def main() -> None:
    picture = np.linspace(0, 1, 224 * 224, dtype=np.float32).reshape(1, 224, 224)
    with (
        shoal.Server(invert) as server,
        Client(server.http_url) as client,
        client.shared_memory("pictures", 1 << 20) as region,
    ):
        result = client.infer(
            "invert",
            {"picture": region.put(picture)},
            outputs={"output": region.place(picture.nbytes)},
        )
    print("first and last pixel:", result["output"][0, 0, 0], result["output"][0, -1, -1])
    np.testing.assert_allclose(result["output"], 1 - picture)


if __name__ == "__main__":
    main()

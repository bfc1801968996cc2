"""A server inside a script: no second terminal, no ports to choose, gone when the block ends."""

from __future__ import annotations

import urllib.request

import app
import numpy as np

import shoal

with shoal.Server(app.brightness, app.greet, app.count_down) as server:
    print("listening on", server.url, "and, for gRPC, on", server.grpc_url)

    # Without a socket; threads that ask at the same time share batches.
    print(server.infer("greet", {"name": "Ada"})["output"])
    print(server.infer("brightness", {"picture": np.ones((3, 8, 8), np.uint8)}))
    for answer in server.stream("count_down", {"start": 2}):
        print(answer["output"].item().decode())

    # Or as any client would.
    with urllib.request.urlopen(f"{server.url}/v2/models/greet") as reply:  # noqa: S310
        print(reply.read().decode())

# The functions themselves can be called, and tested, as if nothing had happened to them.
assert app.greet("Ada") == "Hello, Ada!"

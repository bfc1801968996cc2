"""A server inside a script, without a second terminal or fixed ports; it stops with the block."""

from __future__ import annotations

import urllib.request

import app
import numpy as np

import shoal

with shoal.Server(app.brightness, app.greet, app.count_down) as server:
    print("listening on", server.url, "and, for gRPC, on", server.grpc_url)

    # Without a socket. Calls of several threads share batches.
    print(server.infer("greet", {"name": "Ada"})["output"])
    print(server.infer("brightness", {"picture": np.ones((3, 8, 8), np.uint8)}))
    for response in server.stream("count_down", {"start": 2}):
        print(response["output"].item().decode())

    # Over HTTP, like any client.
    with urllib.request.urlopen(f"{server.url}/v2/models/greet") as reply:  # noqa: S310
        print(reply.read().decode())

# The functions can still be called and tested as usual.
assert app.greet("Ada") == "Hello, Ada!"

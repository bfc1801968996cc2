"""Call a decoupled model on a stream. The example starts its own server.

python examples/client/stream.py
"""

from __future__ import annotations

from collections.abc import Iterator

import shoal
from shoal.client import Client


@shoal.model
def count_down(start: int) -> Iterator[str]:
    for number in range(start, 0, -1):
        yield f"{number} ..."
    yield "lift-off"


def main() -> None:
    with (
        shoal.Server(count_down) as server,
        Client(f"grpc://{server.grpc_url}") as client,
        client.stream("count_down") as stream,
    ):
        for start in (3, 1):
            stream.send({"start": [start]}, id=f"from {start}")
        for result in stream:  # until both are complete
            print(result.id, result["output"][0].decode())

        # Over HTTP the same responses arrive as JSON.
        with Client(server.http_url) as plain:
            words = [
                answer["output"] for answer in plain.generate_stream("count_down", {"start": 2})
            ]
        print(words)
        assert words == ["2 ...", "1 ...", "lift-off"]


if __name__ == "__main__":
    main()

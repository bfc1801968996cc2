"""The mosec server: one stage, the plain form."""

from __future__ import annotations

from typing import Any

from mosec import Server, Worker

from benchmarks.peers.services.inference import Model, setting


class Inference(Worker):
    """One process with one session."""

    def __init__(self) -> None:
        self.model = Model()

    def deserialize(self, data: bytes) -> bytes:
        """The body as it is."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer as it is."""
        return data

    def forward(self, data: Any) -> Any:
        """One body, or a list of them when batching is on."""
        return self.model.answer_many(data) if isinstance(data, list) else self.model.answer(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Inference,
        num=int(setting("WORKERS")),
        max_batch_size=int(setting("BATCH")),
        max_wait_time=int(setting("WAIT_MS")),
        timeout=60,
    )
    server.run()

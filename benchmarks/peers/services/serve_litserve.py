"""The LitServe server: one API, the plain form.

LitServe reads the annotation of `decode_request`: annotations must not become text here.
"""

from typing import Annotated

import litserve
from fastapi import Body, Response

from benchmarks.peers.services.inference import Model, setting


class Inference(litserve.LitAPI):  # type: ignore[misc]
    """One session per worker process."""

    def setup(self, device: str) -> None:  # noqa: ARG002  LitServe's signature
        """Load the model."""
        self.model = Model()

    def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
        """The body as it is."""
        return request

    def predict(self, body: bytes) -> bytes:
        """Run it."""
        return self.model.answer(body)

    def encode_response(self, output: bytes) -> Response:
        """The answer as it is."""
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    server = litserve.LitServer(
        Inference(),
        accelerator="cpu",
        workers_per_device=int(setting("WORKERS")),
        timeout=60,
    )
    server.run(
        host="127.0.0.1",
        port=int(setting("PORT")),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
    )

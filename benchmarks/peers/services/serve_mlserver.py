"""MLServer's custom runtime: v2 tensors in, v2 tensors out."""

from __future__ import annotations

import base64
from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from benchmarks.peers.services.inference import Model, picture


class Inference(MLModel):  # type: ignore[misc]
    """One session per process."""

    async def load(self) -> bool:
        """Load the model."""
        self.model = Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run it where it is called: each process computes one request at a time."""
        feeds = {one.name: self._array(one) for one in payload.inputs}
        outputs = zip(self.model.outputs, self.model.run(feeds), strict=True)
        return InferenceResponse(
            model_name=self.name,
            outputs=[NumpyCodec.encode_output(name, value) for name, value in outputs],
        )

    def _array(self, tensor: Any) -> Any:
        if not self.model.pictures:
            return NumpyCodec.decode_input(tensor)
        data = tensor.data.root if hasattr(tensor.data, "root") else tensor.data
        first = data[0] if isinstance(data, list) else data
        # gRPC carries the JPEG as it is, JSON as text.
        return picture(base64.b64decode(first) if isinstance(first, str) else first)

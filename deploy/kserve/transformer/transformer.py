"""A transformer for KServe: grey values of digits in, their names out, and Shoal in between.

    client --PIXELS UINT8 [n, 8, 8]--> preprocess --image FP32 [n, 64]--> Shoal (the model "digits")
    client <--DIGIT INT64 [n]-------- postprocess <--probabilities FP32 [n, 10]--'

KServe passes the address of the predictor (`--predictor_host`). Both clients of its package work
with Shoal: REST (`--predictor_protocol=v2`) and gRPC (`grpc-v2`).
"""

import argparse

import numpy as np
from kserve import (
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    Model,
    ModelServer,
    model_server,
)


class DigitTransformer(Model):
    """Prepares inputs and reads outputs of the predictor's model of the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    def preprocess(
        self, payload: InferRequest, headers: dict[str, str] | None = None
    ) -> InferRequest:
        """The model's input: values from 0 to 16 in rows of 64."""
        del headers
        pixels = payload.inputs[0].as_numpy()
        rows = (pixels.reshape(len(pixels), -1) / 255 * 16).astype(np.float32)
        image = InferInput("image", list(rows.shape), "FP32")
        image.set_data_from_numpy(rows, binary_data=True)
        return InferRequest(self.name, [image], request_id=payload.id)

    def postprocess(
        self, response: InferResponse, headers: dict[str, str] | None = None
    ) -> InferResponse:
        """The most probable digit of each row."""
        del headers
        probabilities = response.outputs[0].as_numpy()
        digits = probabilities.argmax(axis=-1).astype(np.int64)
        digit = InferOutput("DIGIT", list(digits.shape), "INT64")
        digit.set_data_from_numpy(digits, binary_data=False)
        return InferResponse(response.id, self.name, [digit])


if __name__ == "__main__":
    arguments, _ = argparse.ArgumentParser(parents=[model_server.parser]).parse_known_args()
    ModelServer().start([DigitTransformer(arguments.model_name)])

"""A Python model: the length of each text, and the verdict of a second model.

It is an ordinary class. The server makes one object of it per instance, calls `initialize` once,
`execute` for every batch and `finalize` at the end; `test_word_lengths.py` does the same.
"""

from __future__ import annotations

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts characters, not bytes."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Declare inputs and outputs, so that no config.pbtxt is needed."""
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "LIKED", "data_type": "TYPE_BOOL", "dims": [1]})
        config.set_max_batch_size(64)
        config.set_dynamic_batching()
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Read parameters and create a metric, which is served with the server's own."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.judge = parameters.get("judge", {}).get("string_value", "")
        self.family = pb_utils.MetricFamily(
            name="word_lengths_characters",
            description="Characters counted",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.characters = self.family.Metric(labels={"model": args["model_name"]})

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Return one response per request; a text that is not UTF-8 fails only its request."""
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        """Make one response."""
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            lengths = [[len(text.decode()) for text in row] for row in texts]
        except UnicodeDecodeError as error:
            message = f"TEXT is not UTF-8: {error}"
            wrong = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=wrong)
        length = np.array(lengths, np.int32)
        self.characters.increment(int(length.sum()))
        outputs = [pb_utils.Tensor("LENGTH", length)]
        if "LIKED" in request.requested_output_names():
            outputs.append(pb_utils.Tensor("LIKED", self.liked(length)))
        return pb_utils.InferenceResponse(outputs)

    def liked(self, length: np.ndarray) -> np.ndarray:
        """Call the model named in the config; without one, all texts are accepted."""
        if not self.judge:
            return length > 3
        question = pb_utils.InferenceRequest(
            model_name=self.judge,
            inputs=[pb_utils.Tensor("LENGTH", length)],
            requested_output_names=["LIKED"],
        )
        response = question.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, "LIKED").as_numpy()

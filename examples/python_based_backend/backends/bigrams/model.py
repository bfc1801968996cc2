"""A Python-based backend. Each of its models continues texts with the words of a text of its own.

The folder of a version has text.txt, from which the model learns, and model.json with its settings.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
from utils.engine import BigramEngine  # utils/engine.py beside this file

import triton_python_backend_utils as pb_utils

INPUTS = [
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
]
OUTPUTS = [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]}]


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Declare the tensors of all models; their configs need no more than the backend."""
        written = config.as_dict()
        for tensor in INPUTS:
            if tensor["name"] not in [known["name"] for known in written["input"]]:
                config.add_input(tensor)
        for tensor in OUTPUTS:
            if tensor["name"] not in [known["name"] for known in written["output"]]:
                config.add_output(tensor)
        config.set_max_batch_size(0)  # the engine runs the requests concurrently
        config.set_model_transaction_policy({"decoupled": True})  # a response for each word
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Start the engine with the files in the version's folder."""
        folder = Path(pb_utils.get_model_dir())
        self.settings = json.loads((folder / "model.json").read_text())
        self.engine = BigramEngine((folder / "text.txt").read_text())
        self.family = pb_utils.MetricFamily(  # it must live as long as its metrics
            name="bigrams_words_total",
            description="Words that were generated",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.words = self.family.Metric(labels=labels)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        pb_utils.Logger.log_info(f"{args['model_name']} knows {len(self.engine)} words")

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Pass the requests to the engine's event loop, which responds later."""
        for request in requests:
            asyncio.run_coroutine_threadsafe(self.respond(request), self.loop)

    async def respond(self, request: pb_utils.InferenceRequest) -> None:
        """Send a response for each word, or one for all of them without `stream`."""
        sender = request.get_response_sender()
        try:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            stream = pb_utils.get_input_tensor_by_name(request, "stream")
            options = json.loads(request.parameters())
            count = int(options.get("max_tokens", self.settings["max_tokens"]))
            text = ""
            async for word in self.engine.generate(prompt.decode(), count):
                if sender.is_cancelled():
                    pb_utils.Logger.log_info("the request was cancelled")
                    break
                self.words.increment(1)
                if stream is not None and stream.as_numpy()[0]:
                    sender.send(text_response(f" {word}"))
                else:
                    text += f" {word}"
            if text:
                sender.send(text_response(text))
        except Exception as error:  # noqa: BLE001 - the client learns what is wrong
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        finally:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self) -> None:
        """Stop the event loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def text_response(text: str) -> pb_utils.InferenceResponse:
    tensor = pb_utils.Tensor("text_output", np.array([text.encode()], np.object_))
    return pb_utils.InferenceResponse([tensor])

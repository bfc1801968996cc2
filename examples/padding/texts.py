"""Send texts of different lengths at once: they are served in a few batches, not one by one.

    pip install numpy "tritonclient[http]"
    python examples/padding/texts.py [localhost:8000]

The server serves what make_model.py wrote. Each answer is as long as its own text.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import tritonclient.http.aio as triton

SENTENCE = "A shoal of fish swims together and yet every fish arrives where it wants to be."
TEXTS = [SENTENCE[:end] for end in range(4, len(SENTENCE) + 1, 3)]


def question(text: str) -> list[triton.InferInput]:
    """Encode the characters of a text; the client sends no mask and no padding."""
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)[None]
    tensor = triton.InferInput("input_ids", list(ids.shape), "INT64")
    tensor.set_data_from_numpy(ids)
    return [tensor]


async def executions(client: triton.InferenceServerClient) -> int:
    (statistics,) = (await client.get_inference_statistics("texts"))["model_stats"]
    return int(statistics["execution_count"])


async def main(server: str) -> None:
    async with triton.InferenceServerClient(server) as client:
        alone = [await client.infer("texts", question(text)) for text in TEXTS]

        before = await executions(client)
        together = await asyncio.gather(*(client.infer("texts", question(t)) for t in TEXTS))
        batches = await executions(client) - before
        print(f"{len(TEXTS)} texts of {len(TEXTS)} lengths took {batches} executions")
        assert batches < len(TEXTS)

        for text, one, other in zip(TEXTS, alone, together, strict=True):
            weights = other.as_numpy("weights")
            assert weights.shape == (1, len(text))
            assert np.allclose(weights, one.as_numpy("weights"), atol=1e-6)
            assert np.allclose(other.as_numpy("summary"), one.as_numpy("summary"), atol=1e-5)
        place = int(weights.argmax())
        print(f"what matters most in the longest one is the {text[place]!r} at {place}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"))

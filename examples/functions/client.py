"""Call the models of app.py, with NVIDIA's client and with plain JSON."""

from __future__ import annotations

import json
import sys
import urllib.request

import numpy as np
import tritonclient.http as triton

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"


def generate(model: str, how: str = "generate", **inputs: object) -> str:
    request = urllib.request.Request(
        f"http://{address}/v2/models/{model}/{how}", json.dumps(inputs).encode()
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310
        return str(response.read().decode())


print(generate("greet", name="Ada"))
print(generate("greet", name="Ada", greeting="Good morning"))
print(generate("Mood", text=["a good day", "bad and sad"]))
print(generate("patient", seconds=0.01))
print(generate("count_down", how="generate_stream", start=3), end="")

pictures = np.zeros((2, 8, 8), np.uint8)
pictures[1, 3, 4] = 255
given = triton.InferInput("picture", list(pictures.shape), "UINT8")
given.set_data_from_numpy(pictures)
with triton.InferenceServerClient(address) as client:
    result = client.infer("brightness", [given])
print("brightest pixels:", result.as_numpy("brightest").reshape(-1).tolist())
assert result.as_numpy("mean").shape == (2, 1)

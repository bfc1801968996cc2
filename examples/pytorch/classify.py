"""Call the flower model in its three formats; the results agree.

    pip install numpy "tritonclient[http]"
    python examples/pytorch/classify.py [localhost:8000]

The server serves what export_model.py wrote.
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as triton

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.3], [6.7, 3.0, 5.2, 2.3]], np.float32)


def main(server: str) -> None:
    lengths = triton.InferInput("lengths", list(FLOWERS.shape), "FP32")
    lengths.set_data_from_numpy(FLOWERS)
    with triton.InferenceServerClient(server) as client:
        found = {
            model: client.infer(model, [lengths]).as_numpy("OUTPUT__0")
            for model in ("exported", "script", "eager")
        }
        assert np.allclose(found["exported"], found["script"], atol=1e-5)
        assert np.allclose(found["exported"], found["eager"], atol=1e-5)
        best = triton.InferRequestedOutput("OUTPUT__0", class_count=1)
        names = client.infer("script", [lengths], outputs=[best]).as_numpy("OUTPUT__0")
        for row, name in zip(FLOWERS, names, strict=True):
            probability, _, word = name[0].decode().split(":")
            print(f"{row.tolist()}: {word} ({float(probability):.0%})")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

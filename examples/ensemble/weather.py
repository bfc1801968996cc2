"""Call an ensemble: one request runs three models without sending tensors back in between.

    pip install numpy "tritonclient[http]"
    python examples/ensemble/weather.py [localhost:8000]

The server serves what make_models.py wrote. Labels come from the model that makes the scores.
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as triton

READINGS = {  # degrees Fahrenheit, percent of humidity, miles per hour of wind
    "Reykjavik": (30.2, 80.0, 22.0),
    "Lisbon": (69.8, 60.0, 9.0),
    "Dubai": (104.0, 55.0, 7.0),
}


def main(server: str) -> None:
    rows = np.array(list(READINGS.values()), np.float32)
    reading = triton.InferInput("READING", list(rows.shape), "FP32")
    reading.set_data_from_numpy(rows)
    outputs = [
        triton.InferRequestedOutput("METRIC"),
        triton.InferRequestedOutput("FEELS_LIKE"),
        triton.InferRequestedOutput("COMFORT", class_count=1),
    ]

    with triton.InferenceServerClient(server) as client:
        answer = client.infer("weather", [reading], outputs=outputs)
        metric, feels = answer.as_numpy("METRIC"), answer.as_numpy("FEELS_LIKE")
        best = [row[0].decode().split(":")[2] for row in answer.as_numpy("COMFORT")]
        for place, (celsius, *_), felt, word in zip(READINGS, metric, feels, best, strict=True):
            print(f"{place:>9}: {celsius:5.1f} °C, feels like {felt[0]:5.1f} °C: {word}")
        assert best == ["cold", "pleasant", "hot"]

        # Only the steps for the requested outputs run: `comfort` does not run here.
        answer = client.infer("weather", [reading], outputs=outputs[1:2])
        assert np.allclose(answer.as_numpy("FEELS_LIKE"), feels)

        for model in ("weather", "to_metric", "comfort", "feels_like"):
            (statistics,) = client.get_inference_statistics(model)["model_stats"]
            print(f"{model}: {statistics['execution_count']} executions")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")

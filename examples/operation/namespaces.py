"""Two teams, each with a repository, and both have a model `add_sub`.

pip install "tritonclient[http]"
python examples/operation/namespaces.py teams          # writes teams/eel and teams/crab
shoal serve teams/eel teams/crab --model-namespacing --metrics-config=summary_latencies=true
python examples/operation/namespaces.py [localhost:8000] [localhost:8002]
"""

from __future__ import annotations

import shutil
import sys
import urllib.request
from importlib.resources import files
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

TEAMS = ("eel", "crab")
# Each team also has an ensemble that uses the add_sub of its own repository.
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 64
input { name: "NUMBERS" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "TWICE" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling { step {
  model_name: "add_sub" model_version: -1
  input_map { key: "INPUT0" value: "NUMBERS" } input_map { key: "INPUT1" value: "NUMBERS" }
  output_map { key: "OUTPUT0" value: "TWICE" }
} }
"""


def make(folder: Path) -> None:
    demo = Path(str(files("shoal_demo") / "models" / "add_sub"))
    for team in TEAMS:
        tag = f'metric_tags {{ key: "team" value: "{team}" }}\n'
        model = shutil.copytree(demo, folder / team / "add_sub")
        (model / "config.pbtxt").write_text((demo / "config.pbtxt").read_text() + tag)
        ensemble = folder / team / f"{team}_twice"
        (ensemble / "1").mkdir(parents=True)
        (ensemble / "config.pbtxt").write_text(ENSEMBLE + tag)


def ask(server: str, metrics: str) -> None:
    with triton.InferenceServerClient(server) as client:
        for team in TEAMS:
            numbers = triton.InferInput("NUMBERS", [1, 16], "INT32")
            numbers.set_data_from_numpy(np.arange(16, dtype=np.int32).reshape(1, 16))
            twice = client.infer(f"{team}_twice", [numbers]).as_numpy("TWICE")
            assert twice[0, 15] == 30
        try:
            client.get_model_metadata("add_sub")
        except InferenceServerException as ambiguous:
            print(ambiguous.message())
        else:
            raise AssertionError("there are two of them")
    with urllib.request.urlopen(f"http://{metrics}/metrics") as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if 'model="add_sub"' in line]
    counts = [line for line in lines if line.startswith("nv_inference_count")]
    medians = [line for line in lines if "request_summary_us" in line and 'quantile="0.5"' in line]
    print("\n".join([*counts, *medians]))
    assert len(counts) == len(medians) == len(TEAMS)


if __name__ == "__main__":
    if len(sys.argv) == 2 and ":" not in sys.argv[1]:
        make(Path(sys.argv[1]))
    else:
        addresses = [*sys.argv[1:], *["localhost:8000", "localhost:8002"][len(sys.argv) - 1 :]]
        ask(*addresses)

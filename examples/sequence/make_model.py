"""Create a model repository with one model that adds up the numbers of each sequence.

    pip install onnx
    python examples/sequence/make_model.py models
    shoal serve models

The model itself remembers nothing: it reads the total so far as an input and writes the new one as
an output. The server carries it from each request of a sequence to the next.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

CONFIG = """\
max_batch_size: 8
input { name: "NUMBER" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "SUM" data_type: TYPE_INT64 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 5000000

  # Batches combine the next requests of up to 64 sequences per instance.
  oldest { max_candidate_sequences: 64 }

  # Each sequence starts with a total of 0. Clients see neither TOTAL nor NEXT_TOTAL.
  state {
    input_name: "TOTAL"
    output_name: "NEXT_TOTAL"
    data_type: TYPE_INT64
    dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT64 dims: [ 1 ] zero_data: true }
  }
}
"""


def main(repository: Path) -> None:
    folder = repository / "running_total"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    onnx.save(running_total(), folder / "1" / "model.onnx")
    print(f"wrote {folder}")


def running_total() -> onnx.ModelProto:
    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 1])

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["NUMBER", "TOTAL"], ["SUM"]),
            helper.make_node("Identity", ["SUM"], ["NEXT_TOTAL"]),
        ],
        "running_total",
        inputs=[tensor("NUMBER"), tensor("TOTAL")],
        outputs=[tensor("SUM"), tensor("NEXT_TOTAL")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models"))

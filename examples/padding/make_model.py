"""Create a repository with one model that reads texts of any length, in padded batches.

    pip install onnx
    python examples/padding/make_model.py text_models
    shoal serve text_models

The model says how much each character of a text matters to it (`weights`, as long as the text) and
sums the text up in eight numbers (`summary`). It looks at characters that its mask shows, and at
no others, so what a batch is padded with makes no difference to anybody's answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

CONFIG = """
max_batch_size: 16
dynamic_batching { max_queue_delay_microseconds: 5000 }

# Texts of different lengths share a batch: shorter ones are padded with zeros.
parameters { key: "padding" value: { string_value: "input_ids=0, attention_mask=0" } }
# Clients need not send a mask: the server generates it, with ones for the characters of each text.
parameters { key: "padding_mask" value: { string_value: "attention_mask" } }
# Short texts share batches with short ones, long texts with long ones.
parameters { key: "batch_by_shape" value: { string_value: "true" } }
"""


def model(characters: int = 256, width: int = 8) -> ModelProto:
    """Attention over the characters of a text, with weights from a fixed seed."""
    random = np.random.default_rng(1)
    constants = {
        "table": random.standard_normal((characters, width)).astype(np.float32),
        "question": random.standard_normal((width, 1)).astype(np.float32),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
        "one": np.array(1, np.float32),
        "much": np.array(1e9, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("MatMul", ["tokens", "question"], ["column"]),
        helper.make_node("Squeeze", ["column", "last"], ["scores"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["mask", "one"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "much"], ["penalty"]),
        helper.make_node("Add", ["scores", "penalty"], ["shown"]),
        helper.make_node("Softmax", ["shown"], ["weights"], axis=1),
        helper.make_node("Unsqueeze", ["weights", "middle"], ["row"]),
        helper.make_node("MatMul", ["row", "tokens"], ["mean"]),
        helper.make_node("Squeeze", ["mean", "middle"], ["summary"]),
    ]
    # The server detects from equal dimension names that `weights` is as long as the text.
    text = ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "texts",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, text)
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("weights", TensorProto.FLOAT, text),
            helper.make_tensor_value_info("summary", TensorProto.FLOAT, ["batch", width]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(folder: Path) -> None:
    version = folder / "texts" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.onnx").write_bytes(model().SerializeToString())
    (folder / "texts" / "config.pbtxt").write_text(CONFIG)
    print(f"{folder} is ready: shoal serve {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "text_models"))

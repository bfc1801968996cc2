"""CLIP as one ONNX file with both encoders, of which a request runs one or both.

    pixel_values [photos, …] --if there are photos--> image_embeds [photos, size]
    input_ids, attention_mask [texts, tokens] --if there are texts--> text_embeds [texts, size]

Each encoder is traced by itself and becomes a branch of an `If`: with no rows it is not run.
"""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.errors import Unsupported
from shoal.export.checkpoint import Checkpoint
from shoal.export.images import CLIP_LIKE, image_settings
from shoal.export.traced import OPSET, write_traced
from shoal.export.writing import ExportOptions, write_json

_CONFIG = """\
# {source}: which of some texts fits a photo. A request has any number of photos and of texts.
backend: "onnxruntime"
max_batch_size: 0
input [
  {{ name: "pixel_values" data_type: TYPE_FP32 dims: [ -1, 3, {side}, {side} ] }},
  {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] }},
  {{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1, -1 ] }}
]
output [
  {{ name: "image_embeds" data_type: TYPE_FP32 dims: [ -1, {size} ] }},
  {{ name: "text_embeds" data_type: TYPE_FP32 dims: [ -1, {size} ] }}
]
parameters {{ key: "task" value {{ string_value: "zero-shot-image-classification" }} }}
"""


def write_clip(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Labels of the caller's choice for photos. Raises a ShoalError."""
    del options
    checkpoint.expect("CLIPModel")
    tokenizer = checkpoint.tokenizer_json()
    model = checkpoint.load("CLIPModel")
    side = int(model.config.vision_config.image_size)
    settings = image_settings(checkpoint, side, CLIP_LIKE)
    (folder / "1").mkdir()
    _write_towers(model, side, folder / "1" / "model.onnx")
    reader = model.config.text_config
    end = reader.eos_token_id if reader.eos_token_id != 2 else None  # 2 is wrong in older files
    settings |= {
        "max_length": int(reader.max_position_embeddings),
        "logit_scale": round(math.exp(float(model.logit_scale)), 4),
    }
    if end is not None:  # texts are padded with their end
        settings["pad_token"] = int(end)
    write_json(folder / "task.json", settings)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    size = int(model.config.projection_dim)
    text = _CONFIG.format(source=checkpoint.name, side=side, size=size)
    (folder / "config.pbtxt").write_text(text, "utf-8")


def _write_towers(model: Any, side: int, path: Path) -> None:
    import onnx
    import torch
    from onnx import TensorProto, helper

    size = int(model.config.projection_dim)
    ids = torch.tensor([[1, 5, 6, 7], [1, 5, 7, 7]]) % int(model.config.text_config.vocab_size)
    towers = {
        "image_embeds": (
            _tower(model, "image"),
            {"pixel_values": (torch.zeros(2, 3, side, side), {0: "photos"})},
        ),
        "text_embeds": (
            _tower(model, "text"),
            {
                "input_ids": (ids, {0: "texts", 1: "tokens"}),
                "attention_mask": (torch.ones_like(ids), {0: "texts", 1: "tokens"}),
            },
        ),
    }
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    nodes, inputs, outputs = [], [], []
    with TemporaryDirectory(prefix="shoal-export-") as scratch:
        for output, (tower, examples) in towers.items():
            traced = Path(scratch) / f"{output}.onnx"
            write_traced(tower, traced, examples, {output: {0: next(iter(examples))}})
            graph = onnx.load(traced).graph
            if graph.ByteSize() > 1_900_000_000:
                raise Unsupported("checkpoints of more than 2 GB are not written")
            inputs += list(graph.input)
            first = graph.input[0].name
            outputs.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, [None, size]))
            encoder = helper.make_graph(
                graph.node, f"{output}_encoder", [], graph.output, graph.initializer
            )
            _rename_output(encoder, output)
            nodes += [
                helper.make_node("Shape", [first], [f"{output}_dims"]),
                helper.make_node("Gather", [f"{output}_dims", "zero"], [f"{output}_rows"]),
                helper.make_node("Equal", [f"{output}_rows", "zero"], [f"{output}_empty"]),
                helper.make_node(
                    "If",
                    [f"{output}_empty"],
                    [output],
                    then_branch=_nothing(output, size),
                    else_branch=encoder,
                ),
            ]
    made = helper.make_model(
        helper.make_graph(nodes, "clip", inputs, outputs, [zero]),
        producer_name="shoal",
        ir_version=8,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.save(made, path)


def _nothing(output: str, size: int) -> Any:
    """A branch that returns no rows."""
    from onnx import TensorProto, helper

    value = helper.make_tensor(f"{output}_no_rows", TensorProto.FLOAT, [0, size], [])
    node = helper.make_node("Constant", [], [f"{output}_nothing"], value=value)
    shape = helper.make_tensor_value_info(f"{output}_nothing", TensorProto.FLOAT, [0, size])
    return helper.make_graph([node], f"{output}_nothing_graph", [], [shape])


def _rename_output(branch: Any, output: str) -> None:
    """A name of a branch must not be one of the graph around it."""
    inner = f"{output}_computed"
    for node in branch.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == output:
                    names[at] = inner
    branch.output[0].name = inner


def _tower(model: Any, which: str) -> Any:
    """One of the two encoders, with its projection, as a module."""
    import torch

    class Tower(torch.nn.Module):  # type: ignore[misc]
        """Calls the model's own function, whose result differs between versions."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> Any:
            features = getattr(self.model, f"get_{which}_features")(**inputs)
            return getattr(features, "pooler_output", features)

    return Tower().eval()

"""OpenVINO models for tests, written in milliseconds.

save_ir(onnx_models.add_sub("FP32"), folder / "1")      model.xml and model.bin
save_identity("BF16", folder / "1")
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import openvino
from onnx import ModelProto
from openvino import opset13

from tests.support import onnx_models

_TYPES = {
    "BOOL": "boolean",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "FP16": "f16",
    "FP32": "f32",
    "FP64": "f64",
    "BF16": "bf16",
    "BYTES": "string",
}


def save_ir(built: ModelProto, folder: Path) -> Path:
    """Convert an ONNX model to IR, its weights as they are."""
    with tempfile.TemporaryDirectory() as scratch:
        source = onnx_models.save(built, Path(scratch) / "model.onnx")
        model = openvino.Core().read_model(str(source))
        return _save(model, folder)


def save_identity(datatype: str, folder: Path, width: int = 3) -> Path:
    """OUTPUT0 = INPUT0, rows of `width` elements of any datatype."""
    kind = getattr(openvino.Type, _TYPES[datatype])
    source = opset13.parameter([-1, width], kind, name="INPUT0")
    source.output(0).set_names({"INPUT0"})
    # An operator between the two, so that each has a name of its own.
    shape = opset13.constant([0, width], openvino.Type.i64)
    target = opset13.reshape(source, shape, special_zero=True)
    target.output(0).set_names({"OUTPUT0"})
    return _save(openvino.Model([opset13.result(target)], [source], "identity"), folder)


def _save(model: openvino.Model, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
    return folder / "model.xml"

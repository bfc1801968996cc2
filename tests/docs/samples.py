"""The files that pages expect in the reader's folder: made once, copied if a page names them.

examples/, demo/, src/  as in a clone
models/                 add_sub, digits and upper of the demo, and `resnet`, a small test classifier
resnet50.onnx           the same model as a single file
mug.jpg                 an image
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from pages import ROOT

DEMO_MODELS = ROOT / "demo" / "shoal_demo" / "models"
LINKED = ("demo", "src")
NAMES = ("examples", *LINKED, "models", "resnet50.onnx", "mug.jpg")
_CLASSES = 1000


def make(folder: Path) -> Path:
    """Fill `folder`. Files that need onnx or Pillow are missing if these are not installed."""
    for name in ("add_sub", "digits", "upper"):
        shutil.copytree(DEMO_MODELS / name, folder / "models" / name)
    unneeded = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=unneeded)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    with suppress(ModuleNotFoundError):  # only pages that name it fail then
        _make_resnet(folder)
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return folder
    Image.linear_gradient("L").convert("RGB").resize((320, 240)).save(folder / "mug.jpg")
    return folder


def lay_out(samples: Path, text: str, folder: Path) -> None:
    """Copy the files that `text` names into `folder`."""
    for name in NAMES:
        path = samples / name
        if not re.search(rf"(?<![\w/.-]){re.escape(name)}\b", text) or not path.exists():
            continue
        if name in LINKED:
            (folder / name).symlink_to(path, target_is_directory=True)
        elif path.is_dir():
            shutil.copytree(path, folder / name)
        else:
            shutil.copy(path, folder / name)


def _make_resnet(folder: Path) -> None:
    import numpy as np
    from onnx import helper

    from tests.support.onnx_models import model, save, value

    weights = np.random.default_rng(7).normal(size=(3, _CLASSES)).astype(np.float32)
    built = model(
        [
            helper.make_node("GlobalAveragePool", ["data"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["prob"]),
        ],
        inputs=[value("data", "FP32", ("batch", 3, 224, 224))],
        outputs=[value("prob", "FP32", ("batch", _CLASSES))],
        constants={"weights": weights},
    )
    file = save(built, folder / "resnet50.onnx")
    version = folder / "models" / "resnet" / "1"
    version.mkdir(parents=True)
    shutil.copy(file, version / "model.onnx")

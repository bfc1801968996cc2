"""Which files of an archive or of a hub's repository are models, and where they belong.

    models/resnet/1/model.onnx   a repository, or a folder around it   resnet/1/model.onnx
    config.pbtxt, 1/model.onnx   one model                             NAME/config.pbtxt, NAME/1/...
    model.onnx, onnx/model.onnx  one model file                        NAME/1/model.onnx

What else is there (a README, images, weights in other formats) is left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence

_CONFIG = "config.pbtxt"
# Model files that are served without a version folder around them, in this order, and their names
# in the version folder. `shoal.config.backends` declares those names.
_BARE = {
    "model.onnx": "model.onnx",
    "model.xml": "model.xml",
    "openvino_model.xml": "model.xml",
    "model.tflite": "model.tflite",
    "model.pt": "model.pt",
}
_BARE_SUFFIXES = {".onnx": "model.onnx", ".tflite": "model.tflite", ".xml": "model.xml"}
_BARE_FOLDERS = ("", "onnx/", "openvino/")
_CHECKPOINT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".ckpt")


def locate(paths: Collection[str], name: str, inside: str = "") -> dict[str, str]:
    """For each file of a model its path in the repository, "model/1/model.onnx", and in `paths`.

    `name` is the name of a model that has none of its own. `inside` is the folder, or the one model
    file, that alone is considered. Empty if there are no models.
    """
    visible = [path for path in paths if not _hidden(path)]
    if inside in visible:
        folder, file = posixpath.split(inside)
        return _bare(visible, f"{folder}/" if folder else "", file, name)
    root = f"{inside}/" if inside else ""
    while True:
        below = {path: path[len(root) :] for path in visible if path.startswith(root)}
        if is_model(below.values()):
            return _one_model(below, name)
        folders: dict[str, list[str]] = {}
        for path in below.values():
            folder, slash, rest = path.partition("/")
            if slash:
                folders.setdefault(folder, []).append(rest)
        models = {folder for folder, inner in folders.items() if is_model(inner)}
        if models:
            return {
                path: given for given, path in below.items() if path.partition("/")[0] in models
            }
        for folder in _BARE_FOLDERS:
            file = _bare_file(_files(below.values(), folder))
            if file:
                return _bare(visible, root + folder, file, name)
        if len(folders) != 1:
            return {}
        root += f"{next(iter(folders))}/"


def checkpoint_files(paths: Collection[str]) -> list[str]:
    """Files with weights that must be exported before they can be served."""
    return sorted(path for path in paths if path.endswith(_CHECKPOINT_SUFFIXES))


def model_files(paths: Collection[str]) -> list[str]:
    """Files that can be served on their own, anywhere."""
    return sorted(path for path in paths if posixpath.splitext(path)[1] in _BARE_SUFFIXES)


def is_model(paths: Collection[str]) -> bool:
    """As `repository.layout.is_model_folder`: a config, or versions that are no models."""
    if _CONFIG in paths:
        return True
    numbers: dict[str, bool] = {}  # folders with a number for a name, and whether they are models
    for path in paths:
        folder, slash, rest = path.partition("/")
        if slash and folder.isdecimal():
            inner, slash, _ = rest.partition("/")
            is_model_itself = rest == _CONFIG or (bool(slash) and inner.isdecimal())
            numbers[folder] = numbers.get(folder, False) or is_model_itself
    return not all(numbers.values())


def _one_model(below: Mapping[str, str], name: str) -> dict[str, str]:
    located = {f"{name}/{path}": given for given, path in below.items()}
    if not any(path.partition("/")[0].isdecimal() for path in below.values()):
        file = _bare_file(_files(below.values(), ""))  # a config, and its model beside it
        if file:
            root = next(given for given, path in below.items() if path == file)[: -len(file)]
            located |= _bare(below, root, file, name)
    return located


def _bare(paths: Collection[str], folder: str, file: str, name: str) -> dict[str, str]:
    """A model file as version 1, with the files that its format has beside it."""
    stem, suffix = posixpath.splitext(file)
    target = _BARE.get(file) or _BARE_SUFFIXES.get(suffix, file)
    located = {f"{name}/1/{target}": folder + file}
    if suffix == ".xml":
        weights = f"{folder}{stem}.bin"
        if weights in paths:
            located[f"{name}/1/{posixpath.splitext(target)[0]}.bin"] = weights
    elif suffix == ".onnx":  # weights in files of their own, which the model names
        for other in _files([path[len(folder) :] for path in paths if path.startswith(folder)], ""):
            if other != file and (other.startswith(file) or other.endswith((".data", ".weight"))):
                located[f"{name}/1/{other}"] = folder + other
    return located


def _bare_file(names: Sequence[str]) -> str:
    """The model file among these names that is served; empty if there is none, or several."""
    for name in _BARE:
        if name in names:
            return name
    candidates = model_files(names)
    return candidates[0] if len(candidates) == 1 else ""


def _files(paths: Collection[str], folder: str) -> list[str]:
    """The names of the files that are directly in a folder."""
    names = [path[len(folder) :] for path in paths if path.startswith(folder)]
    return [name for name in names if "/" not in name]


def _hidden(path: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))

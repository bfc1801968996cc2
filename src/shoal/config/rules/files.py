"""Rules about the files a config names: none of them may lie outside the model's folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from shoal.config.model import ModelConfig
from shoal.config.rules.fault import Fault

_DRIVE = re.compile(r"[A-Za-z]:")


def files(config: ModelConfig) -> Iterator[Fault]:
    """Labels, model files, warm-up data and initial states stay inside the folder."""
    for index, output in enumerate(config.output):
        label = output.label_filename
        if label and escapes("", label):
            yield Fault(
                f"output[{index}].label_filename",
                f"label file path '{label}' for output '{output.name}' in model '{config.name}' "
                "is outside model directory",
                'Put the file beside config.pbtxt and write label_filename: "labels.txt"',
            )
    named = [("default_model_filename", "version", config.default_model_filename)]
    for capability, filename in config.cc_model_filenames.items():
        named.append((f"cc_model_filenames[{capability}]", "version", filename))
    for index, sample in enumerate(config.model_warmup):
        for name, tensor in sample.inputs.items():
            at = f"model_warmup[{index}].inputs[{name}].input_data_file"
            named.append((at, "warmup", tensor.input_data_file or ""))
    if config.sequence_batching is not None:
        for index, state in enumerate(config.sequence_batching.state):
            for place, initial in enumerate(state.initial_state):
                at = f"sequence_batching.state[{index}].initial_state[{place}].data_file"
                named.append((at, "initial_state", initial.data_file or ""))
    for at, folder, filename in named:
        if filename and escapes(folder, filename):
            yield Fault(
                at,
                f"file '{filename}' of model '{config.name}' is outside model directory",
                f"Name a file in the model's {folder} folder",
            )


def escapes(folder: str, filename: str) -> bool:
    """Whether `filename`, seen from `folder` inside the model's folder, leaves the latter."""
    path = filename.replace("\\", "/")  # a separator on Windows; unusual in file names elsewhere
    if path.startswith("/") or _DRIVE.match(path) or "\0" in path:
        return True
    resolved = posixpath.normpath(posixpath.join(folder, path))
    return resolved == ".." or resolved.startswith("../")

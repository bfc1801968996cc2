"""Modules of transformers as ONNX files, by torch.onnx.

    module, example inputs --trace--> model.onnx with the names and dynamic axes that are given

The exporter that traces is used, not the newer one of torch.export: see decision 42.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported

OPSET = 17

Axes = Mapping[int, str]  # the names of the dimensions that may have any length


def write_traced(
    model: Any,
    path: Path,
    inputs: Mapping[str, tuple[Any, Axes]],
    outputs: Mapping[str, Axes],
) -> None:
    """Write what `model` computes as an ONNX file. Raises Unsupported if it cannot be traced.

    `inputs` are examples by the names of the arguments of its `forward`, which returns a tensor, or
    an object with the `outputs` as attributes.
    """
    import torch

    names = list(inputs)

    class Traced(torch.nn.Module):  # type: ignore[misc]
        """The model with inputs in order and outputs as a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            result = self.model(**dict(zip(names, values, strict=True)))
            if isinstance(result, torch.Tensor):
                return result
            return tuple(getattr(result, name) for name in outputs)

    path.parent.mkdir(parents=True, exist_ok=True)
    axes = {name: dict(axes) for name, (_, axes) in inputs.items()}
    axes.update({name: dict(dims) for name, dims in outputs.items()})
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of constants in the trace, which the tests check
            torch.onnx.export(
                Traced().eval(),
                tuple(example for example, _ in inputs.values()),
                str(path),
                input_names=names,
                output_names=list(outputs),
                dynamic_axes={name: dims for name, dims in axes.items() if dims},
                opset_version=OPSET,
                dynamo=False,
            )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        kind = type(model).__name__
        raise Unsupported(f"torch.onnx cannot write a {kind}: {reason}") from error
    finally:
        logging.disable(level)

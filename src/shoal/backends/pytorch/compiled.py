"""AOTInductor packages: `torch._inductor.aoti_compile_and_package(program, package_path=…)`.

Machine code for one kind of device, including the weights. A package knows how its arguments are
nested, not their types, so its config must list the inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shoal.backends.files import short_name
from shoal.backends.pytorch.archive import ProgramKind
from shoal.backends.pytorch.library import clean_message, exclusive, quiet
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import Caller, Program, by_tree, input_names, output_names
from shoal.errors import ConfigError, InvalidArgument

_DEVICE = "AOTI_DEVICE_KEY"


class CompiledProgram(Program):
    """A package that has been unpacked and linked to this process."""

    kind = ProgramKind.COMPILED
    stateful = False  # it depends only on its inputs and constants

    def __init__(self, path: Path, device: torch.device | None, runners: int, file: str) -> None:
        """Load the package for `device`; `runners` threads may run it at once.

        ConfigError when it was compiled for another kind of device.
        """
        try:
            with quiet, exclusive:
                self._compiled = _loaded(path, device, max(1, runners))
                metadata = self._compiled.get_metadata()
                inputs, outputs = self._compiled.loader.get_call_spec()
                self._spec = pytree.treespec_loads(inputs)
                results = pytree.treespec_loads(outputs)
        except Exception as error:
            raise InvalidArgument(
                f"PyTorch {torch.__version__} cannot load '{short_name(path)}': "
                f"{clean_message(error)}. A package runs with the version of PyTorch and the kind "
                "of processor that it was compiled with"
            ) from error
        made_for = metadata.get(_DEVICE, "")
        if device is not None and made_for and made_for != device.type:
            kind = "KIND_GPU" if made_for == "cuda" else "KIND_CPU"
            raise ConfigError(
                f"'{short_name(path)}' was compiled for the device {made_for}, not {device.type}",
                file=file,
                field="instance_group",
                fix=f"Write instance_group [ {{ kind: {kind} }} ], or compile it for {device.type}",
            )
        self.device = device or torch.device(made_for or "cpu")
        self.inputs = tuple(Slot(found) for found in input_names(self._spec, None))
        self.outputs = tuple(Slot(found) for found in output_names(results))

    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """Call the package with arguments nested as they were when it was compiled."""
        compiled: Any = self._compiled
        return by_tree(compiled, self._spec, self.inputs or (), {}, written, model=model, file=file)

    def close(self) -> None:
        """Release the package, which unmaps its code and weights."""
        self._compiled = None


def _loaded(path: Path, device: torch.device | None, runners: int) -> Any:
    """The package, of which `runners` threads may run one execution each."""
    from torch._inductor.package import load_package

    index = device.index if device is not None and device.index is not None else -1
    known = inspect.signature(load_package).parameters
    wanted = {"num_runners": runners, "device_index": index}  # since PyTorch 2.7
    return load_package(str(path), **{key: wanted[key] for key in wanted if key in known})

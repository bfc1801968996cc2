"""TorchScript: `torch.jit.script(model).save("model.pt")`, or `torch.jit.trace`.

The file has the names of the arguments. It has their types only if it was traced, and then those of
the example, which need not be the only ones.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.backends.files import short_name
from shoal.backends.pytorch.archive import ProgramKind, has_traced_inputs
from shoal.backends.pytorch.library import DATATYPES, clean_message, quiet
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import Caller, ModuleProgram
from shoal.core import dtypes
from shoal.errors import ConfigError, InvalidArgument

logger = logging.getLogger(__name__)


class ScriptProgram(ModuleProgram):
    """A TorchScript module."""

    kind = ProgramKind.SCRIPT

    def __init__(self, path: Path, device: torch.device | None) -> None:
        """Load the module onto `device`; None keeps the devices of the file."""
        try:
            with quiet:
                self.module, values = _loaded(path, device)
        except Exception as error:
            raise InvalidArgument(
                f"PyTorch {torch.__version__} cannot load '{short_name(path)}': "
                f"{clean_message(error)}"
            ) from error
        self.module.eval()
        self.device = device or self.device
        schema = self.module.forward.schema
        arguments = list(schema.arguments)[1:]  # without self
        self._takes_dictionary = len(arguments) == 1 and _is_dictionary(arguments[0].type)
        slots = [_slot(*pair) for pair in zip(arguments, values, strict=True)]
        self.inputs = None if self._takes_dictionary else tuple(slots)
        self.outputs = _outputs(schema.returns)
        self.mutates_inputs, self.stateful = _writes(self.module)

    def optimize(self) -> bool:
        """Weights become constants, batch norms a part of them, convolutions are fused.

        PyTorch fuses only convolutions whose weights have the plain layout.
        """
        with quiet:
            if self.channels_last:
                self.module.to(memory_format=torch.contiguous_format)
            try:
                made = torch.jit.optimize_for_inference(torch.jit.freeze(self.module))
                if self.channels_last:
                    _use_channels_last(made.graph)
            finally:
                if self.channels_last:
                    self.module.to(memory_format=torch.channels_last)
        self._replace_module(made)
        return True

    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """Call forward with the tensors, or with one dictionary that has them all."""
        if self._takes_dictionary:
            module = self.module
            return lambda values: module(dict(values))
        for slot in self.inputs or ():
            if slot.required and not (slot.strings or slot.type_name in ("Tensor", "Optional")):
                raise ConfigError(
                    f"the argument '{slot.names[0]}' of forward is {slot.type_name}, which no "
                    "request can carry",
                    file=file,
                    field="input",
                    fix="Have forward take tensors, lists of strings, or one dictionary of tensors",
                )
        return self.by_argument(written, model=model, file=file)


def _loaded(path: Path, device: torch.device | None) -> tuple[Any, list[Any]]:
    """The module on `device`, and the values of its arguments, with types if it was traced.

    PyTorch restores the types from tensors in the file, and cannot put those on a GPU ("CUDA error:
    invalid argument"): for a GPU they come from a second copy of the module.
    """
    traced = has_traced_inputs(path)
    on_gpu = device is not None and device.type == "cuda"
    module = torch.jit.load(str(path), map_location=device, _restore_shapes=traced and not on_gpu)
    source = module
    if traced and on_gpu:
        source = torch.jit.load(str(path), map_location="cpu", _restore_shapes=True)
    return module, list(source.inlined_graph.inputs())[1:]


def _slot(argument: Any, value: Any) -> Slot:
    kind = argument.type
    type_name = str(kind.annotation_str)
    if type_name == "Optional[Tensor]":
        type_name = "Optional"
    datatype, example = None, None
    if type_name == "List[str]":
        datatype = dtypes.BYTES
    elif type_name == "Tensor":
        traced = value.type()
        sizes = traced.sizes()
        if sizes is not None:
            example = tuple(sizes)
            datatype = DATATYPES.get(traced.dtype())
    required = type_name != "Optional" and not argument.has_default_value()
    return Slot(
        (argument.name,),
        datatype=datatype,
        example=example,
        required=required,
        type_name=type_name,
    )


def _outputs(returns: Sequence[Any]) -> tuple[Slot, ...] | None:
    """The results, if their number is known."""
    text = str(returns[0].type.annotation_str) if len(returns) == 1 else ""
    if text == "Tensor":
        return (Slot(("OUTPUT__0", "RESULT")),)
    if text == "List[str]":
        return (Slot(("OUTPUT__0", "RESULT"), type_name=text),)
    if not text.startswith("Tuple["):
        return None
    elements = [str(element.annotation_str) for element in returns[0].type.elements()]
    if any(element not in ("Tensor", "List[str]") for element in elements):
        return None
    return tuple(
        Slot((f"OUTPUT__{index}", f"RESULT[{index}]"), type_name=element)
        for index, element in enumerate(elements)
    )


def _use_channels_last(graph: Any) -> None:
    """Convert the weights of convolutions that are constants."""
    for node in graph.findAllNodes("prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            tensor = node.t("value")
            if tensor.dim() == 4:
                node.t_("value", tensor.contiguous(memory_format=torch.channels_last))


def _is_dictionary(kind: Any) -> bool:
    return str(kind.annotation_str) == "Dict[str, Tensor]"


def _writes(module: Any) -> tuple[bool, bool]:
    """Whether a module may write to its inputs, and whether it may change itself.

    Examines a copy with constants folded for evaluation: a batch norm updates its statistics only
    in training. If that fails, both are assumed.
    """
    try:
        with quiet:
            graph = torch.jit.freeze(module, optimize_numerics=False).inlined_graph.copy()
            aliases = graph.alias_db()
            inputs = any(aliases.has_writers(value) for value in list(graph.inputs())[1:])
            attributes = graph.findAllNodes("prim::GetAttr")
            state = bool(graph.findAllNodes("prim::SetAttr")) or any(
                aliases.has_writers(node.output())
                for node in attributes
                if str(node.output().type()) == "Tensor"
            )
    except Exception as error:  # noqa: BLE001 - the interface is not a public one
        logger.debug("a TorchScript module could not be analysed: %s", clean_message(error))
        return True, True
    return inputs, state

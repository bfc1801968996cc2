"""torch.export programs: `torch.export.save(torch.export.export(...), "model.pt2")`.

The file contains everything: names, datatypes, and which dimensions may vary. Two dimensions with
one symbol have one size, so a symbol that leads all inputs and outputs is the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.backends.files import short_name
from shoal.backends.pytorch.archive import ProgramKind
from shoal.backends.pytorch.fusion import rewritten
from shoal.backends.pytorch.library import DATATYPES, clean_message, exclusive, quiet
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import (
    Caller,
    ModuleProgram,
    by_tree,
    input_names,
    output_names,
)
from shoal.errors import InvalidArgument


class ExportedProgram(ModuleProgram):
    """A program and the graph module that runs it."""

    kind = ProgramKind.EXPORTED

    def __init__(self, path: Path, device: torch.device | None) -> None:
        """Load the program onto `device`; None keeps the devices of the file."""
        try:
            with quiet, exclusive:
                program = torch.export.load(str(path))
                if device is not None:
                    program = _moved(program, device)
                self.module = program.module()
                if device is not None:
                    self.module.to(device)
        except Exception as error:
            raise InvalidArgument(
                f"PyTorch {torch.__version__} cannot load '{short_name(path)}': "
                f"{clean_message(error)}"
            ) from error
        self._spec = program.call_spec.in_spec
        self._flat = False  # whether the module takes and returns tensors without their nesting
        signature = program.graph_signature
        nodes = {node.name: node for node in program.graph.nodes}
        user_inputs = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
        self._constants: dict[int, Any] = {}
        slots: list[Slot] = []
        own = [argument.name for argument in user_inputs]
        for place, found in enumerate(input_names(self._spec, own)):
            value = nodes[own[place]].meta.get("val") if own[place] in nodes else None
            if isinstance(value, torch.Tensor):
                slots.append(_slot(found, value))
            elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                raise InvalidArgument(
                    f"the input '{own[place]}' of '{short_name(path)}' is a number that may vary, "
                    "which requests cannot contain. Have forward take a tensor instead"
                )
            else:  # a number, string or None that was fixed when the model was exported
                fixed = getattr(user_inputs[place], "value", None)
                self._constants[place] = value if fixed is None else fixed
        self.inputs = tuple(slots)
        results = [
            nodes[spec.arg.name].meta.get("val") if spec.arg.name in nodes else None
            for spec in signature.output_specs
            if spec.kind.name == "USER_OUTPUT"
        ]
        outputs = output_names(program.call_spec.out_spec)
        self.outputs = tuple(
            _slot(found, value) if isinstance(value, torch.Tensor) else Slot(found, type_name="?")
            for found, value in zip(outputs, results, strict=True)
        )
        written = _written(program)
        self.mutates_inputs = "input" in written or bool(signature.user_inputs_to_mutate)
        self.stateful = "state" in written or bool(signature.buffers_to_mutate)
        self.device = device or self.device
        self.largest_batch = _largest_batch(program.range_constraints, slots)

    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """Call the graph module with arguments nested as they were when it was exported."""
        return by_tree(
            self.module,
            self._spec,
            self.inputs or (),
            self._constants,
            written,
            model=model,
            file=file,
            flat=self._flat,
        )

    def use_half(self, half: torch.dtype) -> None:
        """The graph names the datatypes it was exported with: only autocast can change them,
        unless it is rewritten by `optimize`."""
        self.half, self.autocast = half, True

    def optimize(self) -> bool:
        """Rewrite the graph, in half precision if that is used."""
        fuse = self.device.type == "cuda"
        with quiet:
            made = rewritten(self.module, half=self.half, fuse=fuse)
        self._replace_module(made)
        self._flat, self.autocast = True, False
        return True

    def revert(self) -> None:
        """Use the graph of the file again."""
        super().revert()
        self._flat, self.autocast = False, self.half is not None

    def compile(self, options: Mapping[str, Any]) -> bool:
        """Compile the graph module."""
        self.module = torch.compile(self.module, **options)
        return True


def _moved(program: Any, device: torch.device) -> Any:
    """The program on `device`, also where its graph names another."""
    where = {str(tensor.device) for tensor in program.state_dict.values()}
    where |= {str(value.device) for value in program.constants.values() if _is_tensor(value)}
    where |= {
        str(node.kwargs["device"]) for node in program.graph.nodes if node.kwargs.get("device")
    }
    if where <= {str(device)}:
        return program
    try:
        from torch.export.passes import move_to_device_pass
    except ImportError:  # PyTorch before 2.5; the module itself can be moved
        return program
    return move_to_device_pass(program, str(device))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _written(program: Any) -> set[str]:
    """What the graph may write to: "input", "state". Only some graphs have it in the signature.

    Follows views from the inputs and from the module's own tensors to operators that write.
    """
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    tags: dict[Any, set[str]] = {}  # node -> the owners of its memory
    written: set[str] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            tags[node] = {"input" if kinds.get(node.name) == "USER_INPUT" else "state"}
            continue
        own = tags[node] = set()
        schema = getattr(node.target, "_schema", None)
        if schema is None:  # no operator: a part of a tuple, or a branch
            own.update(*(tags[other] for other in node.all_input_nodes))
            continue
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is None:
                continue
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            given = value if isinstance(value, list | tuple) else [value]
            nodes = [other for other in given if isinstance(other, torch.fx.Node)]
            touched = {tag for other in nodes for tag in tags[other]}
            own |= touched
            if argument.alias_info.is_write:
                written |= touched
    return written


def _slot(found: tuple[str, ...], value: torch.Tensor) -> Slot:
    symbols = [None if isinstance(size, int) else str(size) for size in value.shape]
    dims = tuple(
        int(size) if symbol is None else -1
        for size, symbol in zip(value.shape, symbols, strict=True)
    )
    return Slot(
        found,
        datatype=DATATYPES.get(value.dtype),
        dims=dims,
        axes=tuple(symbols),
        type_name=str(value.dtype),
    )


def _largest_batch(constraints: Mapping[Any, Any], slots: Sequence[Slot]) -> int | None:
    """The largest first dimension of the inputs, if the program limits it."""
    leading = {slot.axes[0] for slot in slots if slot.axes}
    for symbol, values in constraints.items():
        if str(symbol) in leading:
            upper = values.upper
            bounded = isinstance(upper, int) or getattr(upper, "is_Integer", False)
            return int(upper) if bounded else None
    return None

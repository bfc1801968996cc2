"""A loaded model, independent of its file format: its slots, and a way to call it.

{config name: tensor} --Caller--> whatever forward returns --flatten--> one value per slot
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from shoal.backends.pytorch import names
from shoal.backends.pytorch.archive import ProgramKind
from shoal.backends.pytorch.names import Slot
from shoal.errors import BackendFailure, ConfigError, InvalidArgument

logger = logging.getLogger(__name__)

Caller: TypeAlias = Callable[[Mapping[str, Any]], Any]


class Program(ABC):
    """One model on one device. Unless it is `stateful`, any number of threads may call it."""

    kind: ProgramKind
    inputs: tuple[Slot, ...] | None  # None: any number
    outputs: tuple[Slot, ...] | None  # None: known only after a run
    mutates_inputs: bool = True  # whether it may write to its inputs
    stateful: bool = True  # whether one run may change the next
    largest_batch: int | None = None  # None: no limit
    device: torch.device = torch.device("cpu")  # the device of its inputs
    half: torch.dtype | None = None  # the precision to run it with, if it differs from its own
    autocast: bool = False  # whether autocast does that, without converting the weights
    channels_last: bool = False  # whether images are to have that layout

    @abstractmethod
    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """A function that runs the model on tensors by their names in the config.

        Raises ConfigError if the names do not match the model's inputs.
        """

    def use_half(self, half: torch.dtype) -> None:
        """Run in half precision from now on."""
        self.half, self.autocast = half, True

    def use_channels_last(self) -> None:
        """Lay the weights of convolutions out for inputs in the channels-last format."""
        self.channels_last = True

    @property
    def has_convolutions(self) -> bool:
        """Whether it has weights that look like those of convolutions of images."""
        return False

    def optimize(self) -> bool:
        """Make it faster, with the same results but for rounding; false if there is no way to.

        Raises what PyTorch raises; then it is as it was. `revert` or `accept` has to follow.
        """
        return False

    def revert(self) -> None:
        """Undo `optimize`."""
        return

    def accept(self) -> None:
        """Release what `revert` needs."""
        return

    def compile(self, options: Mapping[str, Any]) -> bool:
        """Let torch.compile compile it at its first run; false if that is impossible."""
        del options
        return False

    @property
    def nbytes(self) -> int | None:
        """The bytes of its weights; None if they are not known."""
        return None

    def close(self) -> None:
        """Release the model; executors must have released their callers."""
        return


class ModuleProgram(Program):
    """A program whose model is an `nn.Module`."""

    module: Any
    _original: Any = None  # the module before `optimize`
    _nbytes: int | None = None  # of its weights, which are constants of the code after `optimize`

    @property
    def nbytes(self) -> int | None:
        """The bytes of parameters and buffers."""
        if self._nbytes is not None:
            return self._nbytes
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return int(sum(tensor.numel() * tensor.element_size() for tensor in tensors))

    def _replace_module(self, module: Any) -> None:
        self._nbytes = self.nbytes
        self._original, self.module = self.module, module

    def revert(self) -> None:
        """Use the module of the file again."""
        self.module, self._original = self._original, None

    def accept(self) -> None:
        """Release the module of the file."""
        self._original = None

    def use_half(self, half: torch.dtype) -> None:
        """Convert parameters and buffers."""
        self.module.to(half)
        self.half = half

    def use_channels_last(self) -> None:
        """Convert the weights."""
        self.channels_last = True
        self.module.to(memory_format=torch.channels_last)

    @property
    def has_convolutions(self) -> bool:
        """Whether it has weights of four dimensions."""
        return any(tensor.dim() == 4 for tensor in self.module.parameters())

    def close(self) -> None:
        """Let go of the module."""
        self.module = self._original = None

    def by_argument(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """As `caller`, for a module whose arguments are the slots."""
        found = names.places("input", written, self.inputs, model=model, file=file)
        module = self.module
        if self.inputs is None:  # *args
            ordered = [name for _, name in sorted(zip(found, written, strict=True))]
            return lambda values: module(*[values[name] for name in ordered])
        taken = dict(zip(found, written, strict=True))
        for place, slot in enumerate(self.inputs):
            if slot.required and place not in taken:
                raise not_given(slot, self.inputs, model, file)
        arguments = [(name, self.inputs[place].names[0]) for place, name in sorted(taken.items())]
        in_order = sorted(taken) == list(range(len(taken)))

        def call(values: Mapping[str, Any]) -> Any:
            if in_order and len(values) == len(arguments):
                return module(*[values[name] for name, _ in arguments])
            return module(**{own: values[name] for name, own in arguments if name in values})

        return call


def by_tree(
    call: Callable[..., Any],
    spec: Any,
    slots: Sequence[Slot],
    constants: Mapping[int, Any],
    written: Sequence[str],
    *,
    model: str,
    file: str,
    flat: bool = False,
) -> Caller:
    """A caller for nested arguments, whose nesting is `spec`; with `flat`, `call` takes its leaves.

    `slots` are its tensors in order; `constants` are the other leaves, by their position among all
    leaves, with their values at export.
    """
    found = names.places("input", written, slots, model=model, file=file)
    taken = dict(zip(found, written, strict=True))
    for place, slot in enumerate(slots):
        if place not in taken:
            raise not_given(slot, slots, model, file)
    ordered = [taken[place] for place in range(len(slots))]
    plain = not constants and _is_plain(spec)
    filled = range(spec.num_leaves)

    def run(values: Mapping[str, Any]) -> Any:
        if len(values) < len(ordered):
            missing = next(name for name in ordered if name not in values)
            raise InvalidArgument(
                f"model '{model}' cannot run without '{missing}': the configuration marks it "
                "optional, but an exported model takes all its inputs. Send it with every request"
            )
        tensors = [values[name] for name in ordered]
        if plain:
            return call(*tensors)
        given = iter(tensors)
        leaves = [constants[place] if place in constants else next(given) for place in filled]
        if flat:
            return call(*leaves)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return call(*args, **kwargs)

    return run


def input_names(spec: Any, arguments: Sequence[str] | None) -> list[tuple[str, ...]]:
    """The possible names of each leaf of nested arguments; `arguments` are their own names."""
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found: list[tuple[str, ...]] = []
    for index, argument in enumerate(args):
        alone = len(args) == 1 and not kwargs
        found += names.walk(argument, f"ARGS[{index}]", keys=alone)
    found += names.walk(dict(kwargs), "KWARGS") if kwargs else []
    if arguments is None:
        return found
    return [
        (own, *others) if others[0].startswith("ARGS[") and others[0].count("[") == 1 else others
        for own, others in zip(arguments, found, strict=True)
    ]


def output_names(spec: Any) -> list[tuple[str, ...]]:
    """The possible names of each leaf of nested results."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found = names.walk(tree, "RESULT")
    return [
        own if not own[0].startswith("RESULT") else (f"OUTPUT__{index}", *own)
        for index, own in enumerate(found)
    ]


def flatten(value: Any) -> list[Any]:
    """The tensors (and lists of strings) in the result of forward, in order."""
    if isinstance(value, torch.Tensor) or names.is_leaf(value):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    return [leaf for part in parts for leaf in flatten(part)]


class Results:
    """Maps the values that forward returns to the outputs of the config."""

    def __init__(
        self, written: Sequence[str], slots: Sequence[Slot] | None, *, model: str, file: str
    ) -> None:
        """Raises ConfigError if the names are known not to match."""
        self._written = tuple(written)
        self._model = model
        self._file = file
        self._places: dict[str, int] = {}
        self._shape: object = None  # the nesting of _places
        self._fixed = slots is not None or all(names.index_of(name) is not None for name in written)
        if self._fixed:
            self._place(slots)

    def _place(self, slots: Sequence[Slot] | None) -> None:
        found = names.places("output", self._written, slots, model=self._model, file=self._file)
        self._places = dict(zip(self._written, found, strict=True))

    def pick(self, result: Any, wanted: Sequence[str]) -> list[Any]:
        """The values of the outputs `wanted`. BackendFailure if one is missing."""
        values = flatten(result)
        if not self._fixed:
            shape = _shape(result)
            if shape != self._shape:
                self._place([Slot(own) for own in names.walk(result, "RESULT")])
                self._shape = shape
        picked: list[Any] = []
        for name in wanted:
            place = self._places[name]
            if place >= len(values):
                raise BackendFailure(
                    f"The output {name} in the model configuration refers to an output index which "
                    f"doesn't exist. This model has {len(values)} outputs"
                )
            picked.append(values[place])
        return picked


def _shape(result: Any) -> object:
    """Equal for results with the same nesting."""
    if isinstance(result, torch.Tensor) or names.is_leaf(result):
        return 1
    if isinstance(result, Mapping):
        return tuple((key, _shape(part)) for key, part in result.items())
    return (type(result), *[_shape(part) for part in result])


def _is_plain(spec: Any) -> bool:
    """Whether all arguments are positional and none is nested."""
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return not kwargs and all(isinstance(argument, int) for argument in args)


def not_given(slot: Slot, slots: Sequence[Slot], model: str, file: str) -> ConfigError:
    """The error for an input that the model needs and the config does not list."""
    every = ", ".join(other.names[0] for other in slots)
    return ConfigError(
        f"unable to load model '{model}': its input '{slot.names[0]}' is missing in the "
        f"configuration (it takes {every})",
        file=file,
        field="input",
        fix=f'Add input {{ name: "{slot.names[0]}" data_type: … dims: […] }}',
    )

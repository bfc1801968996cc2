"""Rules about implicit state: names, types, shapes and what a sequence starts from."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig, ModelSequenceBatching
from shoal.config.rules.fault import Fault


def states(config: ModelConfig) -> Iterator[Fault]:
    """Every state is complete, and its tensors are used by no other."""
    batching = config.sequence_batching
    if batching is None:
        return
    taken = {tensor.name: "input" for tensor in config.input}
    for index, entry in enumerate(batching.control_input):
        at = f"sequence_batching.control_input[{index}].name"
        if taken.get(entry.name) == "input":
            yield Fault(
                at,
                f"control tensor '{entry.name}' is listed in input as well for {config.name}",
                "Remove it from input: the server provides it, not a client",
            )
        taken[entry.name] = "sequence_batching.control_input"
    outputs: set[str] = set()
    for index, state in enumerate(batching.state):
        at = f"sequence_batching.state[{index}]"
        if state.input_name in taken:
            yield Fault(
                f"{at}.input_name",
                f"State input name '{state.input_name}' specified more than once: it is in "
                f"{taken[state.input_name]} too",
                "Keep it in one place: the server provides this input, not a client",
            )
        if state.output_name in outputs:
            yield Fault(
                f"{at}.output_name",
                f"state output name '{state.output_name}' specified more than once",
                "Give each state an output of its own",
            )
        taken[state.input_name] = "another state"
        outputs.add(state.output_name)
        yield from _state(state, at)


def _state(state: ModelSequenceBatching.State, at: str) -> Iterator[Fault]:
    for field, value in (("input_name", state.input_name), ("output_name", state.output_name)):
        if not value:
            yield Fault(
                f"{at}.{field}", f"a state needs its {field}", "Write the name the model has for it"
            )
    name = state.input_name
    if state.data_type == "TYPE_INVALID":
        yield Fault(
            f"{at}.data_type",
            f"state input '{name}' must specify 'data_type'",
            "Write for example data_type: TYPE_FP32",
        )
    for dim in state.dims:
        if dim < 1 and dim != -1:
            yield Fault(
                f"{at}.dims",
                f"a dimension of state input '{name}' must be integer >= 1, or -1 to indicate a "
                f"variable-size dimension, found {dim}",
                "Write -1 where the state grows",
            )
    if state.use_growable_memory and not state.use_same_buffer_for_input_output:
        yield Fault(
            f"{at}.use_growable_memory",
            "in order to use 'use_growable_memory', you must also enable "
            f"'use_same_buffer_for_input_output' for state input '{name}'",
            "Write use_same_buffer_for_input_output: true beside it",
        )
    if len(state.initial_state) > 1:
        yield Fault(
            f"{at}.initial_state",
            f"initial_state field for state input '{name}' must contain exactly one or zero "
            f"element. Found '{len(state.initial_state)}' elements",
            "Keep one of them",
        )
    for initial in state.initial_state:
        yield from _initial(state, initial, f"{at}.initial_state[0]")


def _initial(
    state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState, at: str
) -> Iterator[Fault]:
    name = state.input_name
    if initial.data_type != state.data_type:
        yield Fault(
            f"{at}.data_type",
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            f"state data type: {initial.data_type} is not {state.data_type}",
            f"Write data_type: {state.data_type}",
        )
    if not initial.name:
        yield Fault(
            f"{at}.name",
            f"Field 'name' must be set when using initial_state for state input '{name}'",
            'Write for example name: "start"',
        )
    if initial.zero_data is None and initial.data_file is None:
        yield Fault(
            at,
            f"initial_state setting expects state '{name}' to have state_data set",
            'Write zero_data: true or data_file: "name"',
        )
    if len(initial.dims) != len(state.dims):
        yield Fault(
            f"{at}.dims",
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(initial.dims)} != {len(state.dims)}",
            f"Write {len(state.dims)} of them",
        )
        return
    for want, got in zip(state.dims, initial.dims, strict=True):
        if got < 0:
            yield Fault(
                f"{at}.dims",
                f"'initial_state' field for state input name '{name}' contains variable dimensions",
                "Write the size that a sequence starts with in place of -1",
            )
        elif want not in (-1, got):
            yield Fault(
                f"{at}.dims",
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim "
                f"description. {got} != {want}",
                f"Write dims: {list(state.dims)}",
            )

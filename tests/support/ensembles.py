"""Configs of ensembles.

ensemble(
    ("sum", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM"}),
    inputs=tensors("input", ["A", "B"]),
    outputs=tensors("output", ["SUM"]),
)
chain("first", "second")        fake models, one after the other
"""

from __future__ import annotations

_STEP = 'step { model_name: "%s" model_version: %d %s }\n'


def tensors(kind, names, datatype="INT32", dims="1"):
    """The `input` or `output` entries of a config."""
    return "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n'
        for name in names
    )


def ensemble(*steps, inputs, outputs, max_batch_size=8, more=""):
    """A config. Steps are (model, inputs by name, outputs by name) and perhaps a version."""
    lines = [
        _STEP % (model, (*version, -1)[0], _maps(taken, given))
        for model, taken, given, *version in steps
    ]
    head = f'platform: "ensemble"\nmax_batch_size: {max_batch_size}\n'
    return f"{head}{inputs}{outputs}ensemble_scheduling {{ {more} {''.join(lines)} }}\n"


def chain(*models, first="IN", last="OUT", more="", max_batch_size=8, dims="1"):
    """An ensemble of models from INPUT0 to OUTPUT0, one after the other.

    Its own input is called `first`, its own output `last`.
    """
    names = [first, *(f"t{number}" for number in range(len(models) - 1)), last]
    steps = [
        (model, {"INPUT0": taken}, {"OUTPUT0": given})
        for model, taken, given in zip(models, names, names[1:], strict=False)
    ]
    inputs, outputs = (
        tensors(kind, [name], dims=dims) for kind, name in (("input", first), ("output", last))
    )
    return ensemble(
        *steps, inputs=inputs, outputs=outputs, more=more, max_batch_size=max_batch_size
    )


def _maps(taken, given):
    lines = [f'input_map {{ key: "{own}" value: "{name}" }}' for own, name in taken.items()]
    lines += [f'output_map {{ key: "{own}" value: "{name}" }}' for own, name in given.items()]
    return " ".join(lines)

"""Small ONNX models that show sequences: the control inputs they get, and the state they keep.

    add_onnx(folder, "total", running_total(), total_config("direct { }"))

`running_total` adds INPUT up in a state that the server keeps and repeats its control inputs as
outputs; `history` has a state that grows by one element with each request.
"""

from __future__ import annotations

from onnx import ModelProto, helper

from tests.support.onnx_models import ELEMENT_TYPES, model, value

SWITCHES = ("START", "END", "READY")
_FIELDS = {
    "INT32": "int32_false_true: [ 0, 1 ]",
    "FP32": "fp32_false_true: [ 0, 1 ]",
    "BOOL": "bool_false_true: [ false, true ]",
}


def running_total(
    datatype: str = "INT32", *, switch: str = "INT32", corrid: str = "UINT64", batch: bool = True
) -> ModelProto:
    """TOTAL = INPUT + the TOTAL before, and START, END, READY and CORRID as outputs GOT_….

    `switch` is the type of the first three; an empty `corrid` leaves the last one out.
    """
    shape = ("batch", 1) if batch else (1,)
    controls = dict.fromkeys(SWITCHES, switch) | ({"CORRID": corrid} if corrid else {})
    nodes = [
        helper.make_node("Add", ["INPUT", "TOTAL_BEFORE"], ["TOTAL"]),
        helper.make_node("Identity", ["TOTAL"], ["OUTPUT"]),
        *(helper.make_node("Identity", [name], [f"GOT_{name}"]) for name in controls),
    ]
    return model(
        nodes,
        inputs=[
            *(value(name, datatype, shape) for name in ("INPUT", "TOTAL_BEFORE")),
            *(value(name, kind, shape) for name, kind in controls.items()),
        ],
        outputs=[
            *(value(name, datatype, shape) for name in ("OUTPUT", "TOTAL")),
            *(value(f"GOT_{name}", kind, shape) for name, kind in controls.items()),
        ],
    )


def total_config(
    strategy: str = "direct { }",
    *,
    datatype: str = "INT32",
    switch: str = "INT32",
    corrid: str = "UINT64",
    max_batch_size: int = 4,
    state: str = "",
    more: str = "",
) -> str:
    """The config of `running_total`; `strategy` and `state` go into their blocks.

    A sequence may idle for a minute unless `strategy` has a limit: the default of one second is too
    short on a busy machine.
    """
    controls = [
        f'control_input {{ name: "{name}" '
        f"control {{ kind: CONTROL_SEQUENCE_{name} {_FIELDS[switch]} }} }}"
        for name in SWITCHES
    ]
    outputs = [_output("OUTPUT", datatype)]
    outputs += [_output(f"GOT_{name}", switch) for name in SWITCHES]
    if corrid:
        kind = f"kind: CONTROL_SEQUENCE_CORRID data_type: {_type(corrid)}"
        controls.append(f'control_input {{ name: "CORRID" control {{ {kind} }} }}')
        outputs.append(_output("GOT_CORRID", corrid))
    return "\n".join(
        [
            f"max_batch_size: {max_batch_size}",
            f'input {{ name: "INPUT" data_type: {_type(datatype)} dims: [ 1 ] }}',
            *outputs,
            f"sequence_batching {{\n{_lasting(strategy)}",
            *controls,
            'state { input_name: "TOTAL_BEFORE" output_name: "TOTAL"',
            f"data_type: {_type(datatype)} dims: [ 1 ] {state} }}",
            "}",
            more,
        ]
    )


def history() -> ModelProto:
    """SEEN = what was SEEN before and then INPUT, one INT32 more each time."""
    known: tuple[str, str] = ("batch", "before")
    return model(
        [
            helper.make_node("Concat", ["SEEN_BEFORE", "INPUT"], ["SEEN"], axis=1),
        ],
        inputs=[value("INPUT", "INT32", ("batch", 1)), value("SEEN_BEFORE", "INT32", known)],
        outputs=[value("SEEN", "INT32", ("batch", "after"))],
    )


def history_config(
    strategy: str = "direct { }", *, max_batch_size: int = 4, state: str = ""
) -> str:
    """The config of `history`, whose state is an output too; otherwise as `total_config`."""
    return f"""
max_batch_size: {max_batch_size}
input {{ name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "SEEN" data_type: TYPE_INT32 dims: [ -1 ] }}
sequence_batching {{
  {_lasting(strategy)}
  state {{
    input_name: "SEEN_BEFORE" output_name: "SEEN" data_type: TYPE_INT32 dims: [ -1 ] {state}
  }}
}}
"""


def _lasting(strategy: str) -> str:
    field = "max_sequence_idle_microseconds"
    return strategy if field in strategy else f"{strategy} {field}: 60000000"


def _type(datatype: str) -> str:
    assert datatype in ELEMENT_TYPES
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _output(name: str, datatype: str) -> str:
    return f'output {{ name: "{name}" data_type: {_type(datatype)} dims: [ 1 ] }}'

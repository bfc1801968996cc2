"""Bodies that are JSON alone: the fast path gives the responses of the slow path, and takes what it
should. See `tests.support.http_sides`."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.frontends.http.limits import HttpLimits
from tests.support.http_sides import BROKEN, CONFIGS, MOST_HEADER_BYTES, Side

# ---- requests, as text, so that anything can be wrong with them


@dataclasses.dataclass(frozen=True)
class Ask:
    """One request: its parts can be replaced one by one."""

    model: str = "sum"
    id: str | None = '"1"'  # as JSON
    inputs: tuple[tuple[str, str, str], ...] = ()  # name, the rest before its data, data
    data_first: bool = False  # the data of an input before its shape
    members: tuple[str, ...] = ()  # of the JSON object, after the inputs
    space: str = ""  # after each comma and colon
    edit: tuple[int, bytes, int] | None = None  # (place, new bytes, how many old ones)
    fields: tuple[str, ...] = ()
    length: str = "Content-Length: %d"

    def body(self):
        comma, colon = "," + self.space, ":" + self.space
        entries = []
        for name, rest, data in self.inputs:
            members = [rest.replace(",", comma).replace(":", colon), f'"data"{colon}{data}']
            if self.data_first:
                members.reverse()
            entries.append("{" + comma.join([f'"name"{colon}"{name}"', *members]) + "}")
        members = [f'"inputs"{colon}[{comma.join(entries)}]', *self.members]
        if self.id is not None:
            members.insert(0, f'"id"{colon}{self.id}')
        body = ("{" + comma.join(members) + "}").encode("utf-8", "surrogatepass")
        if self.edit is not None:
            place, new, old = self.edit
            place %= len(body)
            body = body[:place] + new + body[place + old :]
        return body

    def data(self):
        body = self.body()
        lines = [f"POST /v2/models/{self.model}/infer HTTP/1.1", "Host: x", *self.fields]
        return "\r\n".join([*lines, self.length % len(body), "", ""]).encode() + body


def change(one, **changes):
    return dataclasses.replace(one, **changes)


def given_as(datatype, shape):
    return f'"shape":{json.dumps(shape)},"datatype":"{datatype}"'.replace(" ", "")


def ask(model, *datas, datatype="INT32", shape=(1, 3), **more):
    inputs = tuple(
        (f"INPUT{number}", given_as(datatype, shape), data) for number, data in enumerate(datas)
    )
    return Ask(model, inputs=inputs, **more)


BINARY = '"parameters":{"binary_data_output":true}'
SUM = ask("sum", "[1,2,3]", "[4,5,6]")
MIXED = Ask(
    "mixed",
    inputs=(
        ("INPUT0", given_as("FP32", [2]), "[1.5,-2]"),
        ("INPUT1", given_as("BOOL", [2]), "[true,false]"),
        ("INPUT2", given_as("INT64", [1]), "[9007199254740993]"),
    ),
)
SOUND = (
    SUM,
    change(SUM, data_first=True, space=" "),
    change(SUM, id=None, members=('"outputs":[{"name":"OUTPUT1"}]',)),
    change(SUM, members=('"outputs":[{"name":"OUTPUT1"},{"name":"OUTPUT0"}]', '"parameters":{}')),
    change(SUM, members=(BINARY,)),
    change(SUM, members=('"outputs":[{"name":"OUTPUT1","parameters":{"binary_data":true}}]',)),
    ask("sum", "[[1,2,3],[4,5,6]]", "[1,2,3,4,5,6]", shape=(2, 3)),
    ask("free", "[[1.25,2],[3,-4e-3]]", datatype="FP32", shape=(2, 2)),
    ask("finds", "[1,2,3]", datatype="INT16", shape=(3,)),
    ask("moody", "[0,7]", shape=(1, 2)),
    ask("full", "[0,7]", shape=(1, 2)),
    ask("shaped", "[[[1,2],[3,4]]]", datatype="INT64", shape=(1, 2, 2)),
    ask("says", "[0,7]", shape=(1, 2)),
    ask("half", "[1,2,3]", datatype="FP32"),
    ask("endless", "[1,2,3]", datatype="FP32"),
    MIXED,
    *(ask(name.lower(), "[1,2,3]", datatype=name) for name in ("UINT8", "UINT64", "INT8", "INT64")),
    *(ask(name.lower(), "[1,2.5,-3e2]", datatype=name) for name in ("FP32", "FP64")),
    ask("bool", "[true,false,true]", datatype="BOOL"),
)

FINITE = {"allow_nan": False, "allow_infinity": False}
integers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from(
        [BROKEN, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1]
    ),
).map(str)
numbers = st.one_of(
    integers,
    st.floats(**FINITE).map(repr),
    st.sampled_from(("3.4028235677973366e38", "3.4e38", "1e300", "1e999", "-0", "-0.0", "1E2")),
)
oddities = st.sampled_from(
    (
        *("true", "false", "null", '"1"', '""', "{}", "[]", "[1]", "[[2]]", '{"data":[1]}', "NaN"),
        *(
            "-Infinity",
            "01",
            "+1",
            "1.",
            ".5",
            "1e",
            "0x1",
            "1]",
            "[1",
            "1],[2",
            "",
            " ",
            "\\u0031",
        ),
        *('1],"data":[2', '1],"shape":[1', '1]},{"name":"x"', "/*1*/", "\x00", "é"),
    )
)


FITTING = {
    "BOOL": st.sampled_from(("true", "false")),
    **{name: st.integers(0, 127).map(str) for name in ("UINT8", "UINT64", "INT8", "INT64")},
    **{name: st.integers(-128, 127).map(str) for name in ("INT16", "INT32")},
    "FP32": st.one_of(st.integers(-9, 9).map(str), st.floats(width=32, **FINITE).map(repr)),
    "FP64": st.floats(**FINITE).map(repr),
}


@st.composite
def lists(draw, rest):
    """The text of a list for an input, most often one that fits it."""
    described = json.loads("{" + rest + "}")
    count = int(np.prod(described["shape"]))
    kind = draw(st.integers(0, 15))
    if kind == 0:
        count += draw(st.integers(-1, 2))
    fitting = FITTING[described["datatype"]]
    elements = draw(st.lists(fitting, min_size=count, max_size=count))
    if kind <= 4 and elements:
        odd = draw(st.one_of(integers, numbers, oddities))
        elements[draw(st.integers(0, len(elements) - 1))] = odd
    comma = draw(st.sampled_from((",", ",", ", ", " ,\n")))
    if kind == 5 and len(elements) > 1:
        half = len(elements) // 2
        halves = (comma.join(elements[:half]), comma.join(elements[half:]))
        elements = [f"[{text}]" for text in halves]
    text = f"[{comma.join(elements)}]"
    if kind == 6:
        depth = draw(st.sampled_from((1, 2, 8, 9, 99, 100, 1100)))
        text = "[" * depth + text + "]" * depth
    if kind == 7:
        return draw(st.sampled_from(("5", "null", '"x"', "{}", " " + text + " ")))
    return text


ids = st.one_of(
    st.none(),
    st.integers(0, 10**6).map(lambda n: f'"{n}"'),
    st.sampled_from(
        (
            *('""', '"a b"', '"\\u0041"', '"\\""', '"é"', "7", "null", '"x" "y"', '"1","id":"2"'),
            *('"NaN"', '"%d %b"', '"{}"', '"\t"', '"' + "9" * MOST_HEADER_BYTES + '"'),
        )
    ),
)
more_members = st.sampled_from(
    (
        '"parameters":{"binary_data_output":false}',
        '"parameters":{"priority":1}',
        '"parameters":{"sequence_id":3,"sequence_start":true,"sequence_end":true}',
        '"parameters":{"x":"\\"data\\":[1]"}',
        '"parameters":{"data":[1,2,3]}',
        '"outputs":[{"name":"OUTPUT0","parameters":{"classification":2}}]',
        '"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}},{"name":"OUTPUT1"}]',
        '"outputs":[{"name":"NONE"}]',
        *('"x":{"data":[1,2]}', '"data":[1]', '"id":"2"', '"inputs":[]', '"x":NaN', '"x":"\\\\"'),
    )
)
edits = st.tuples(
    st.integers(0, 400),
    st.one_of(
        st.just(b""), st.binary(max_size=2), st.sampled_from([b" ", b"]", b'"data":[', b"0"])
    ),
    st.integers(0, 2),
)
heads = st.sampled_from(
    (
        *(
            "Content-Length:%d",
            "content-length: %d",
            "Content-Length:   %d ",
            "Content-Length: 0%d",
        ),
        "Content-Length: " + "0" * 20 + "%d",
        "X: %d",
    )
)
fields = st.sampled_from(
    (
        ("Connection: close",),
        ("Accept-Encoding: gzip",),
        ("Content-Type: application/json",),
        ("Content-Encoding: identity",),
        ("X-Content-Length: 3",),
        ("Inference-Header-Content-Length: 0",),
        ("Inference-Header-Content-Length: 200",),
        ("Expect: 100-continue",),
    )
)


@st.composite
def variants(draw, sound):
    """`sound` itself, with another id and other numbers, or with something odd about it."""
    changes = {"id": draw(st.one_of(st.integers(0, 99).map(lambda n: f'"{n}"'), ids))}
    kind = draw(st.integers(0, 15))
    if kind == 0:
        changes["members"] = (*sound.members, draw(more_members))
    elif kind == 1:
        changes["edit"] = draw(edits)
    elif kind == 2:
        changes["space"] = draw(st.sampled_from((" ", "\n", "  ")))
    elif kind == 3:
        changes["data_first"] = not sound.data_first
    elif kind == 4:
        changes["length"] = draw(heads)
    elif kind == 5:
        changes["fields"] = draw(fields)
    elif kind == 6:
        changes["model"] = draw(st.sampled_from([name for name in CONFIGS if name != "half"]))
    else:
        changes["inputs"] = tuple((name, rest, draw(lists(rest))) for name, rest, _ in sound.inputs)
    return dataclasses.replace(sound, **changes)


@st.composite
def conversations(draw):
    """Rounds of requests: few different ones, so that each comes again."""
    # Numbers beyond the range of halves make numpy warn.
    sound = [one for one in SOUND if one.model != "half"]
    bases = draw(st.lists(st.sampled_from(sound), min_size=1, max_size=2, unique=True))
    one = st.sampled_from(bases).flatmap(variants)
    rounds = draw(st.lists(st.lists(one, min_size=1, max_size=4), min_size=1, max_size=5))
    return [bases, *rounds]


@pytest.mark.timeout(300)  # seconds of computing, which a busy machine stretches
@given(conversation=conversations())
@example(conversation=[[SUM], [change(SUM, id='"2"')], [SUM, SUM, SUM]])
def test_whatever_is_asked_both_ways_answer_alike(world, conversation):
    sides = world.sides()
    try:
        for one_round in conversation:
            world.compare(sides, [one.data() for one in one_round])
    finally:
        for side in sides:
            side.close()


# ---- what takes the fast path, and what must not


def by_fast_path(world, sides, *requests):
    """Have both sides answer, and count what took the fast path."""
    before = world.planned
    answers = world.compare(sides, [one.data() for one in requests])
    return answers, world.planned - before


@pytest.mark.parametrize("one", SOUND, ids=lambda one: one.model)
def test_a_request_that_came_before_takes_the_fast_path(world, sides, one):
    assert by_fast_path(world, sides, one)[1] == 0
    again = [change(one, id=f'"another {number}"') for number in range(3)]
    if one.id is None:
        again = [one] * 3
    answers, count = by_fast_path(world, sides, *again)
    assert count == 3
    if one.model != "half":  # which cannot be written as JSON
        assert any(answer.startswith(b"HTTP/1.1 200") for answer in answers)


def test_numbers_of_any_length_match(world, sides):
    world.compare(sides, [SUM.data()])
    one = ask("sum", "[ 100000,\n-5, 0]", "[1,2,-2147483648]", id='"an id of another length"')
    (answer,), count = by_fast_path(world, sides, one)
    assert count == 1
    assert answer.endswith(
        b'{"id":"an id of another length","model_name":"sum","model_version":"2","outputs":['
        b'{"name":"OUTPUT0","datatype":"INT32","shape":[1,3],"data":[100001,-3,-2147483648]},'
        b'{"name":"OUTPUT1","datatype":"INT32","shape":[1,3],"data":[99999,-7,-2147483648]}]}'
    )


def test_every_batch_answers_each_request_with_its_own(world, sides):
    world.compare(sides, [SUM.data()])
    requests = [ask("sum", f"[{number},0,0]", "[0,0,0]", id=f'"{number}"') for number in range(4)]
    answers, count = by_fast_path(world, sides, *requests)
    assert count == 4
    for number, answer in enumerate(answers):
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert document["id"] == str(number)
        assert [output["data"][0] for output in document["outputs"]] == [number, number]


FLOATS = ask("fp32", "[1,2.5,-3e2]", datatype="FP32")


@pytest.mark.parametrize(
    ("sound", "data"),
    [
        *((SUM, data) for data in ("[1,2,3.0]", "[1,2,true]", "[1,2,2147483648]", "[1,2]")),
        *((SUM, data) for data in ("[1,2,3,4]", "[1,[2],3]", "[[1,2],[3],{}]", '[[1,2,3],""]')),
        *(
            (SUM, data)
            for data in ("[1,2,null]", '[1,2,"3"]', "[1,2,NaN]", "[]", "{}", "[1,2,1e0]")
        ),
        *((FLOATS, data) for data in ("[1,true,2]", "[1,2,false]", "[1,2,null]", "[1,2,NaN]")),
        *((FLOATS, data) for data in ("[1,2,1e300]", "[1,2,1e999]", "[1,2]", "[1,2,3,4]")),
        (SUM, "[" * 99 + "1,2,3" + "]" * 99),
        (ask("bool", "[true,false,true]", datatype="BOOL"), "[true,false,1]"),
        (ask("uint8", "[1,2,3]", datatype="UINT8"), "[1,2,-3]"),
    ],
)
def test_a_list_that_needs_a_rule_is_left_to_the_slow_path(world, sides, sound, data):
    world.compare(sides, [sound.data()])
    odd = change(sound, inputs=((*sound.inputs[0][:2], data), *sound.inputs[1:]))
    assert by_fast_path(world, sides, odd)[1] == 0
    assert by_fast_path(world, sides, sound)[1] == 1


@pytest.mark.parametrize(
    "odd",
    [
        change(SUM, space=" "),
        change(SUM, id='"2","id":"3"'),
        change(SUM, id='"\\u0032"'),
        change(SUM, id="2"),
        change(SUM, id=None),
        change(SUM, model="nobody"),
        change(SUM, members=('"id":"3"',)),
        change(SUM, fields=("Accept-Encoding: gzip",)),
        change(SUM, fields=("Connection: close",)),
        change(SUM, fields=("Inference-Header-Content-Length: 100",)),
        change(SUM, length="Content-Length: " + "0" * 20 + "%d"),
        change(SUM, edit=(-1, b"} ", 1)),
        change(SUM, edit=(0, b" {", 1)),
    ],
)
def test_what_is_almost_the_same_does_not(world, sides, odd):
    world.compare(sides, [SUM.data()])
    assert by_fast_path(world, sides, odd)[1] == 0


@pytest.mark.parametrize(
    "member",
    [
        '"x":{"data":[1,2]}',  # a list that belongs to no input
        '"parameters":{"x":"\\"data\\":[1]"}',
        '"parameters":{"sequence_id":3,"sequence_start":true,"sequence_end":true}',
        '"outputs":[{"name":"OUTPUT0","parameters":{"classification":2}}]',
        '"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}},{"name":"OUTPUT1"}]',
    ],
)
def test_such_bodies_have_no_template(world, sides, member):
    one = change(SUM, members=(member,))
    for _ in range(2):
        assert by_fast_path(world, sides, one)[1] == 0


def test_outputs_that_are_not_finite_are_written_one_by_one(world, sides):
    one = ask("endless", "[1,2,3]", datatype="FP32")
    world.compare(sides, [one.data()])
    zero = ask("endless", "[1,0,3]", datatype="FP32")
    answers, count = by_fast_path(world, sides, one, zero, one)
    assert count == 3
    assert b'"data":[1.0,-Infinity,3.0]' in answers[1]
    assert b'"data":[1.0,2.0,3.0]' in answers[2]


def test_one_that_fails_fails_alone(world, sides):
    world.compare(sides, [SUM.data()])
    bad = ask("sum", f"[{BROKEN},2,3]", "[4,5,6]")
    answers, count = by_fast_path(world, sides, SUM, bad, SUM)
    assert count == 3
    assert [answer[9:12] for answer in answers] == [b"200", b"500", b"200"]


def test_tensors_may_arrive_as_bytes_and_leave_as_json(world, sides):
    """And in one batch with those that arrive as JSON."""
    header = (
        b'{"id":"1","inputs":[{"name":"INPUT0","shape":[1,3],"datatype":"INT32",'
        b'"parameters":{"binary_data_size":12}},{"name":"INPUT1","shape":[1,3],"datatype":"INT32",'
        b'"parameters":{"binary_data_size":12}}]}'
    )
    head = b"POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % (
        len(header) + 24
    )
    head += b"Inference-Header-Content-Length: %d\r\n\r\n" % len(header)
    data = head + header + np.arange(6, dtype="i4").tobytes()
    world.compare(sides, [data, SUM.data()])
    before = world.planned
    answers = world.compare(sides, [data, SUM.data(), data])
    assert world.planned == before + 3
    assert b'"data":[3,5,7]' in answers[0]
    assert b'"data":[5,7,9]' in answers[1]


def test_a_replaced_model_is_asked_anew(world, sides):
    world.compare(sides, [SUM.data()])
    try:
        world.replace("floats")
        (answer,), count = by_fast_path(world, sides, SUM)
        assert (answer[9:12], count) == (b"400", 0)
    finally:
        world.replace("as it was")
    by_fast_path(world, sides, SUM)
    assert by_fast_path(world, sides, SUM)[1] == 1


def test_what_is_not_taken_as_a_group_is_validated_again(world, sides, monkeypatch):
    world.compare(sides, [SUM.data()])
    monkeypatch.setattr(world.engine, "infer_group", lambda requests, model: requests)
    answers = world.compare(sides, [SUM.data()] * 2)
    assert [answer[9:12] for answer in answers] == [b"200", b"200"]


# ---- limits


def test_a_body_beyond_the_limit_of_json_is_refused(world, sides):
    world.compare(sides, [SUM.data()])
    long = change(SUM, id='"' + "9" * MOST_HEADER_BYTES + '"')
    (answer,), count = by_fast_path(world, sides, long)
    assert (answer[9:12], count) == (b"400", 0)
    spaced = ask("sum", "[1,2," + " " * MOST_HEADER_BYTES + "3]", "[4,5,6]")
    (answer,), count = by_fast_path(world, sides, spaced)
    assert (answer[9:12], count) == (b"400", 0)


def test_a_body_beyond_the_limit_of_the_listener_is_refused(world):
    limits = HttpLimits(max_body_bytes=len(SUM.body()) + 1)
    sides = [Side(world, plans=plans, limits=limits) for plans in (True, False)]
    world.compare(sides, [SUM.data()])
    longer = ask("sum", "[1,2,33]", "[4,5,6]")
    assert by_fast_path(world, sides, longer)[1] == 1
    (answer,), count = by_fast_path(world, sides, ask("sum", "[1,2,333]", "[4,5,6]"))
    assert (answer[9:12], count) == (b"413", 0)
    for side in sides:
        side.close()


def test_long_bodies_are_answered_alike(world):
    """In pieces or in one, on the loop or on a thread; from 64 KB on they take the slow path."""
    sides = world.sides(max_input_bytes=1 << 22)
    for count, planned in ((1000, 1), (20_000, 0), (100_000, 0)):
        numbers = np.arange(count) * 0.25
        for _ in range(3):
            texts = json.dumps(numbers.tolist())
            one = ask("free", texts, datatype="FP32", shape=(count // 2, 2))
            (answer,), taken = by_fast_path(world, sides, one)
            numbers += 0.5
            document = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert document["outputs"][0]["data"] == json.loads(texts)
        assert taken == planned
    for side in sides:
        side.close()


def test_numbers_that_do_not_match_add_no_pattern(world, sides):
    odd = ask("sum", "[1,2,2147483648]", "[4,5,6]")
    world.compare(sides, [SUM.data()])
    world.compare(sides, [SUM.data()])
    for _ in range(5):
        assert by_fast_path(world, sides, odd)[1] == 0
    assert len(sides[0].application.fast_path.candidates(odd.data())) == 1

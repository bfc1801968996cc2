"""The fast path gives the responses of the slow path, whatever is requested and whatever came before.

Two applications serve one engine, one with templates and caches and one without; see
`tests.support.http_sides`. Bodies that are JSON alone are in test_json_fast_path.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import weakref

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.frontends.http.fast_path import HttpFastPathCall
from shoal.wire import template
from tests.support.fakes import WAIT_SECS
from tests.support.http_sides import BROKEN, CONFIGS, MOST_HEADER_BYTES, REPLACEMENTS, Client

# ---- requests, as text, so that anything can be wrong with them


def member(name, text):
    return f'"{name}":{text}'


def entry(name, datatype, shape, size):
    return {
        "name": name,
        "shape": shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": size},
    }


@dataclasses.dataclass(frozen=True)
class Ask:
    """One request: its parts can be replaced one by one."""

    model: str = "sum"
    version: str = ""
    id: str | None = '"1"'  # as JSON
    id_at: int = 0  # before which member
    members: tuple[str, ...] = ()  # of the JSON object
    tail: bytes = b""
    space: str = ""  # after each comma and colon between members
    length: str = "exact"
    edit: tuple[int, bytes, int] | None = None  # (place, new bytes, how many old ones)
    request_line: str = "HTTP/1.1"
    fields: tuple[str, ...] = ()
    chunked: bool = False

    def header(self):
        members = list(self.members)
        if self.id is not None:
            members.insert(self.id_at, member("id", self.space + self.id))
        text = "{" + ("," + self.space).join(members) + "}"
        header = text.encode("utf-8", "surrogatepass")
        if self.edit is not None:
            place, new, old = self.edit
            place %= len(header)
            header = header[:place] + new + header[place + old :]
        return header

    def data(self):
        header = self.header()
        body = header + self.tail
        version = f"/versions/{self.version}" if self.version else ""
        lines = [f"POST /v2/models/{self.model}{version}/infer {self.request_line}", "Host: x"]
        lines += self.fields
        lines += _length_lines(self.length, len(header), len(body))
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body


def _length_lines(how, header, body):
    value = {
        "exact": f"{header}",
        "one more": f"{header + 1}",
        "one less": f"{header - 1}",
        "all": f"{body}",
        "beyond": f"{body + 1}",
        "zero": "0",
        "padded": f"{header:05d}",
        "padded far": f"{header:019d}",
        "padded further": f"{header:021d}",
        "word": f"{header} bytes",
        "signed": f"+{header}",
    }.get(how, "")
    name = "Inference-Header-Content-Length"
    if how == "absent":
        return []
    if how == "twice":
        return [f"{name}: {header}", f"{name}: {header}"]
    return [f"{name}: {value}"]


def ask(model, inputs, outputs=None, parameters=None, **more):
    """A sound request. `inputs` are (name, array) pairs."""
    entries = [
        entry(name, dtypes.from_numpy(array.dtype).name, list(array.shape), array.nbytes)
        for name, array in inputs
    ]
    parts = [member("inputs", json.dumps(entries, separators=(",", ":")))]
    if outputs is not None:
        parts.append(member("outputs", json.dumps(outputs, separators=(",", ":"))))
    if parameters is not None:
        parts.append(member("parameters", json.dumps(parameters, separators=(",", ":"))))
    tail = b"".join(array.tobytes() for _, array in inputs)
    return Ask(model, members=tuple(parts), tail=tail, **more)


def binary(*names):
    return [{"name": name, "parameters": {"binary_data": True}} for name in names]


ALL_BINARY = {"binary_data_output": True}


def row(*values, datatype=np.int32):
    return np.array([values], datatype)


SUM = ask("sum", [("INPUT0", row(1, 2, 3)), ("INPUT1", row(4, 5, 6))], binary("OUTPUT0", "OUTPUT1"))
SOUND = (
    SUM,
    ask("sum", [("INPUT1", row(1, 2, 3)), ("INPUT0", row(4, 5, 6))], None, ALL_BINARY),
    ask(
        "sum",
        [("INPUT0", np.ones((4, 3), "i4")), ("INPUT1", np.ones((4, 3), "i4"))],
        binary("OUTPUT1"),
    ),
    ask("free", [("INPUT0", np.ones((3, 2), "f4"))], binary("OUTPUT0")),
    ask("free", [("INPUT0", np.ones((0, 2), "f4"))], binary("OUTPUT0")),
    ask("finds", [("INPUT0", np.array([0, 1, 2], "i2"))], binary("FOUND")),
    ask("both", [("INPUT0", np.array([0, 1, 2], "i2"))], None, ALL_BINARY),
    ask("says", [("INPUT0", row(1, 20))], binary("TEXT")),
    ask("moody", [("INPUT0", row(0, 1))], None, ALL_BINARY),
    ask("full", [("INPUT0", row(0, 1))], None, ALL_BINARY),
    ask("full", [("INPUT0", row(0, 1))], None, {**ALL_BINARY, "priority": 1, "timeout": 10**7}),
    ask("shaped", [("INPUT0", np.ones((1, 2, 2), "i8"))], binary("OUTPUT0")),
    ask("chain", [("IN", np.ones((1, 2, 2), "i8"))], binary("OUT")),
    ask(
        "steps",
        [("INPUT0", row(1, 2))],
        binary("OUTPUT0"),
        {"sequence_id": 3, "sequence_start": True},
    ),
    ask(
        "steps",
        [("INPUT0", row(1, 2))],
        binary("OUTPUT0"),
        {"sequence_id": "a sequence", "sequence_start": True, "sequence_end": True},
    ),
    ask("steps", [("INPUT0", row(1, 2))], binary("OUTPUT0")),
    ask("reads", [("INPUT0", np.array([[b"a", b"bc"]], object))], binary("OUTPUT0")),
    ask("free", [("INPUT0", np.ones((10_000, 2), "f4"))], binary("OUTPUT0")),  # not copied
)

ODD_IDS = (
    *('""', '"a b"', '"\\u0041"', '"\\""', '"é"', '"鯨"', '"\x7f"', '"a\\/b"', '"a/b<c>&\'"'),
    *("7", "null", "[]", '"x" "y"', '"1","id":"2"', '"1","\\u0069d":"2"', '"1","inputs":[]'),
    *('"NaN"', '"Infinity"', '"%d %b %s"', '"{}"', '"\t"', '"\ud800"', '"' + "9" * 300 + '"'),
    '"' + "9" * (MOST_HEADER_BYTES - 100) + '"',
)
ids = st.one_of(
    st.none(),
    st.integers(0, 10**6).map(lambda n: f'"{n}"'),
    st.sampled_from(ODD_IDS),
    st.text(max_size=12).map(json.dumps),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(
        lambda text: '"' + text + '"'
    ),
)
spoken_members = st.sampled_from(
    (
        member("parameters", '{"binary_data_output":true}'),
        member("parameters", '{"binary_data_output":false}'),
        member("parameters", '{"binary_data_output":true,"x":1}'),
        member("parameters", '{"priority":2,"binary_data_output":true}'),
        member("parameters", '{"timeout":-1}'),
        *(
            member(
                "parameters",
                f'{{"sequence_id":{name},"sequence_start":true,"sequence_end":true,"binary_data_output":true}}',
            )
            for name in (
                *("3", "4", "12345", "0", "07", "7.0", "7e1", "-1", "18446744073709551616"),
                *('"a"', '"b c"', '""', '"a\\u0041"', "null", "3 ", '3,"sequence_id":4'),
            )
        ),
        member("parameters", '{"sequence_id": 5, "sequence_start": true, "sequence_end": true}'),
        member("x", '{"sequence_id":6}'),
        member("x", '"sequence_id"'),
        member("parameters", '{"triton_x":1}'),
        member("outputs", "[]"),
        member("outputs", '[{"name":"OUTPUT0"}]'),
        member("outputs", '[{"name":"OUTPUT0","parameters":{"binary_data":false}}]'),
        member("outputs", '[{"name":"OUTPUT0","parameters":{"classification":2}}]'),
        member(
            "outputs",
            '[{"name":"OUTPUT0","parameters":{"classification":2,"binary_data":true}}]',
        ),
        member("outputs", '[{"name":"NONE","parameters":{"binary_data":true}}]'),
        member("outputs", '[{"name":"OUTPUT0","parameters":{"binary_data":true,"x":NaN}}]'),
        member("id", '"another"'),
        member("\\u0069d", '"another"'),
        member("x", "1e999"),
        member("x", "NaN"),
        member("x", '"id"'),
        member("x", '"\\\\"'),
        member("inputs", "[]"),
    )
)
lengths = st.sampled_from(
    (
        *("one more", "one less", "all", "beyond", "zero", "padded", "padded far"),
        *("padded further", "word", "signed", "absent", "twice"),
    )
)
edits = st.tuples(
    st.integers(0, 400),
    st.one_of(st.just(b""), st.binary(max_size=2), st.sampled_from([b" ", b"\\", b'"id"', b"0"])),
    st.integers(0, 2),
)
tails = st.one_of(
    st.binary(max_size=4).map(lambda more: lambda tail: tail + more),
    st.integers(0, 4).map(lambda less: lambda tail: tail[less:]),
    st.binary(min_size=4, max_size=4).map(lambda first: lambda tail: first + tail[4:]),
    st.integers(0, 6).map(lambda mood: lambda tail: mood.to_bytes(4, "little") + tail[4:]),
)


@st.composite
def variants(draw, sound):
    """`sound` itself, with another id or other values, or with something odd about it."""
    changes = {"id": draw(ids)}
    kind = draw(st.integers(0, 12))
    if kind == 0:
        changes["id_at"] = draw(st.integers(0, 3))
    elif kind == 1:
        place = draw(st.integers(0, len(sound.members)))
        members = list(sound.members)
        members.insert(place, draw(spoken_members))
        changes["members"] = tuple(members)
    elif kind == 2:
        changes["members"] = (sound.members[0], draw(spoken_members))
    elif kind == 3:
        changes["length"] = draw(lengths)
    elif kind == 4:
        changes["edit"] = draw(edits)
    elif kind == 5:
        changes["space"] = draw(st.sampled_from((" ", "  ", "\n", "\t")))
    elif kind == 6:
        changes["model"] = draw(st.sampled_from((*CONFIGS, "nobody", "s%75m")))
        changes["version"] = draw(st.sampled_from(("", "1", "2", "3", "01")))
    elif kind == 7:
        changes["request_line"] = draw(st.sampled_from(("HTTP/1.0", "HTTP/1.1")))
        changes["fields"] = draw(
            st.sampled_from(
                (
                    (),
                    ("Connection: close",),
                    ("Connection: keep-alive",),
                    ("Accept-Encoding: gzip",),
                    ("Accept-Encoding: identity",),
                    ("Accept-Encoding: identity;q=0",),
                    ("Accept-Encoding: identity", "Accept-Encoding: gzip"),
                    ("Content-Encoding: identity",),
                    ("Content-Encoding: br",),
                )
            )
        )
    elif kind == 8:
        changes["chunked"] = True
    elif kind <= 10:
        changes["tail"] = draw(tails)(sound.tail)
    return dataclasses.replace(sound, **changes)


@st.composite
def conversations(draw):
    """Rounds of requests: few different ones, so that each comes again."""
    bases = draw(st.lists(st.sampled_from(SOUND), min_size=1, max_size=2, unique=True))
    one = st.sampled_from(bases).flatmap(variants)
    return draw(st.lists(st.lists(one, min_size=1, max_size=4), min_size=1, max_size=6))


EMPTY = Ask(
    model="free",
    id=None,
    members=(
        (
            '"inputs":[{"name":"INPUT0","shape":[0,2],"datatype":"FP32",'
            '"parameters":{"binary_data_size":0}}]'
        ),
        '"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]',
    ),
)


@pytest.mark.timeout(300)  # seconds of computing, which a busy machine stretches
@settings(max_examples=2 * settings.default.max_examples)
@given(conversation=conversations())
@example(conversation=[[EMPTY], [dataclasses.replace(EMPTY, length="beyond")]])
@example(conversation=[[SUM], [dataclasses.replace(SUM, id='"2"')], [SUM, SUM, SUM]])
def test_whatever_is_asked_both_ways_answer_alike(world, conversation):
    sides = world.sides()
    try:
        for one_round in conversation:
            world.compare(sides, [one.data() for one in one_round])
    finally:
        for side in sides:
            side.close()


@pytest.mark.timeout(300)  # seconds of computing, which a busy machine stretches
@settings(max_examples=8)
@given(
    steps=st.lists(
        st.one_of(
            st.sampled_from(("unload", *REPLACEMENTS)), variants(SUM), st.sampled_from(SOUND[:3])
        ),
        min_size=2,
        max_size=8,
    )
)
def test_so_they_do_while_models_come_and_go(world, steps):
    sides = world.sides()
    try:
        for step in [SUM, *steps, SUM]:
            if step == "unload":
                world.run(world.off_loop(world.repository.unload, "sum"))
                world.changed = True
            elif isinstance(step, str):
                world.replace(step)
            else:
                world.compare(sides, [step.data()])
    finally:
        for side in sides:
            side.close()
        if world.changed:
            world.replace("as it was")


# ---- what takes the fast path, and what must not


def change(one, **changes):
    return dataclasses.replace(one, **changes)


@pytest.mark.parametrize("one", SOUND, ids=lambda one: one.model)
def test_a_request_that_came_before_takes_the_fast_path(world, sides, one):
    before = world.planned
    (first,) = world.compare(sides, [one.data()])
    assert world.planned == before
    again = world.compare(sides, [change(one, id='"another one"').data()] * 3)
    served = sum(answer.startswith(b"HTTP/1.1 200") for answer in again)
    if one.model in ("reads", "steps") or not first.startswith(b"HTTP/1.1 200"):
        assert world.planned == before  # strings and sequences are checked every time
    else:
        assert served
        assert world.planned == before + 3  # a full queue refuses planned requests, too


def step(id):
    parameters = {"sequence_id": id, "sequence_start": True, "sequence_end": True}
    return ask("steps", [("INPUT0", row(1, 2))], binary("OUTPUT0"), parameters)


def test_sequences_take_the_slow_path_whatever_their_ids(world, sides):
    before = world.planned
    world.compare(sides, [step(7).data(), step("s").data()])
    world.compare(sides, [step(name).data() for name in (8, 9_007_199_254_740_993, "t u")])
    world.compare(sides, [step(name).data() for name in (0, 2**64 - 1, 2**64, "")])
    assert world.planned == before


@pytest.mark.parametrize(
    "odd",
    [
        change(SUM, length="padded far"),  # more digits than the field may have
        change(SUM, id='"' + "9" * MOST_HEADER_BYTES + '"'),  # more JSON than the server reads
        change(SUM, id='"2","id":"3"'),
        change(SUM, id='"2","\\u0069d":"3"'),
        change(SUM, id='"2"', members=(*SUM.members, member("id", '"3"'))),
        change(SUM, id='"\\u0032"'),
        change(SUM, id='"é"'),
        change(SUM, id="2"),
        change(SUM, id=None),
        change(SUM, id_at=1),
        change(SUM, space="\n"),
        change(SUM, tail=SUM.tail + b"x"),
        change(SUM, tail=SUM.tail[1:]),
        change(SUM, length="one less"),
        change(SUM, length="one more"),
        change(SUM, length="absent"),
        change(SUM, length="twice"),
        change(SUM, version="1"),
        change(SUM, model="shaped"),
        change(SUM, model="nobody"),
        change(SUM, fields=("Accept-Encoding: gzip",)),
        change(SUM, fields=("Content-Encoding: gzip",)),
        change(SUM, edit=(0, b"", 9)),  # the header as it is once the id has been taken out
    ],
    ids=lambda odd: repr(odd.id if odd.id != SUM.id else odd.length)[:30],
)
def test_what_is_almost_the_same_does_not(world, sides, odd):
    world.compare(sides, [SUM.data()])
    before = world.planned
    world.compare(sides, [odd.data()])
    assert world.planned == before


def test_an_empty_id_is_an_id_that_differs(world, sides):
    """So do Triton's clients say that they have none."""
    world.compare(sides, [SUM.data()])
    before = world.planned
    (answer,) = world.compare(sides, [change(SUM, id='""').data()])
    assert b'"id"' not in answer
    assert world.planned == before + 1
    world.compare(sides, [change(SUM, id='""').data(), SUM.data()])
    assert world.planned == before + 3


@pytest.mark.parametrize("name", ["Accept-Encoding", "Content-Encoding"])
def test_asking_for_no_coding_is_as_good_as_not_asking(world, sides, name):
    world.compare(sides, [SUM.data()])
    before = world.planned
    world.compare(sides, [change(SUM, fields=(f"{name}: identity",)).data()])
    assert world.planned == before + 1


def test_an_id_may_be_spaced_in_the_two_usual_ways(world, sides):
    world.compare(sides, [SUM.data()])
    before = world.planned
    header = SUM.header()
    spaced = header.replace(b'{"id":"1",', b'{"id": "2", ')
    data = SUM.data().replace(header, spaced)
    data = data.replace(b"Length: %d" % len(header), b"Length: %d" % len(spaced))
    total = len(header) + len(SUM.tail)
    data = data.replace(b"Length: %d" % total, b"Length: %d" % (total + 2))
    (answer,) = world.compare(sides, [data])
    assert b'{"id":"2",' in answer
    assert world.planned == before + 1


def test_a_header_that_only_the_lenient_reader_takes_teaches_nothing(world, sides):
    # The token in the id makes the lenient reader have a look, and it takes 1e999 for a number.
    endless = change(SUM, id='"NaN"', members=(*SUM.members, member("x", "1e999")))
    (answer,) = world.compare(sides, [endless.data()])
    assert answer.startswith(b"HTTP/1.1 200")
    (answer,) = world.compare(sides, [change(endless, id='"2"').data()])
    assert answer.startswith(b"HTTP/1.1 400")


def test_an_id_less_header_is_no_header_that_lost_its_id(world, sides):
    bare = change(SUM, id=None)
    world.compare(sides, [bare.data()])
    # Taking the id out leaves exactly the text of the bare header, brace included.
    wrapped = change(bare, edit=(0, b'{"id":"1",{', 1))
    (answer,) = world.compare(sides, [wrapped.data()])
    assert answer.startswith(b"HTTP/1.1 400")


def test_tensors_in_the_json_leave_no_room_for_bytes_after_it(world, sides):
    entries = [
        {"name": name, "shape": [1, 3], "datatype": "INT32"} for name in ("INPUT0", "INPUT1")
    ]
    inputs = json.dumps([{**item, "data": [1, 2, 3]} for item in entries])
    spelt = change(SUM, members=(member("inputs", inputs), SUM.members[1]), tail=b"")
    (answer,) = world.compare(sides, [spelt.data()])
    assert answer.startswith(b"HTTP/1.1 200")
    (answer,) = world.compare(sides, [change(spelt, tail=SUM.tail).data()])
    assert answer.startswith(b"HTTP/1.1 400")


def test_models_do_not_push_each_other_out_with_equal_headers(world, sides):
    pair = [
        ask(model, [("INPUT0", row(0, 1))], binary("OUTPUT0")).data() for model in ("full", "moody")
    ]
    world.compare(sides, pair)
    before = world.planned
    world.compare(sides, pair)
    world.compare(sides, pair)
    assert world.planned == before + 4


def test_answers_of_equal_shapes_but_other_names_and_types_are_told_apart(world, sides):
    for mood in (0, 1, 2, 3, 4, 5) * 2:
        one = ask("moody", [("INPUT0", row(mood, 7))], None, ALL_BINARY)
        world.compare(sides, [one.data()])


def test_outputs_may_have_any_size_each_time(world, sides):
    for values in ([0, 1, 2], [1, 2, 3], [0, 0, 0], [1, 2, 3], [0, 0, 0]):
        for model in ("finds", "both"):
            one = ask(model, [("INPUT0", np.array(values, "i2"))], None, ALL_BINARY)
            world.compare(sides, [one.data()])
    for value in (1, 20, 300, 1):  # texts of as many letters
        one = ask("says", [("INPUT0", row(value, 0))], binary("TEXT"))
        world.compare(sides, [one.data()])


@pytest.mark.parametrize("rows", [1, 3])
def test_large_tensors_are_answered_alike_too(world, sides, rows):
    array = np.arange(rows * 40_000, dtype="f4").reshape(-1, 2)
    one = ask("free", [("INPUT0", array)], binary("OUTPUT0"))
    before = world.planned
    for _ in range(3):
        (answer,) = world.compare(sides, [one.data()])
        assert answer.endswith(array.tobytes())
    assert world.planned == before + 2


def test_a_web_page_gets_its_headers_each_time(world):
    sides = world.sides(cors_origins=("http://page",))
    before = world.planned
    for _ in range(2):
        data = change(SUM, fields=("Origin: http://page",)).data()
        (answer,) = world.compare(sides, [data])
        assert b"Access-Control-Allow-Origin: http://page\r\n" in answer
    assert world.planned == before
    for side in sides:
        side.close()


def test_forwarded_headers_leave_no_fast_path(world):
    sides = world.sides(header_forward_pattern="x-.*")
    assert sides[0].application.fast_path is None
    for side in sides:
        side.close()


# ---- what templates keep


def test_the_templates_of_a_replaced_model_expire(world, sides):
    world.compare(sides, [SUM.data()])
    before = world.planned
    try:
        world.replace("narrow")
        (answer,) = world.compare(sides, [SUM.data()])
        assert answer.startswith(b"HTTP/1.1 400")
        world.replace("floats")
        world.compare(sides, [SUM.data()])
    finally:
        world.replace("as it was")
    world.compare(sides, [SUM.data()])
    assert world.planned == before
    world.compare(sides, [SUM.data()])
    assert world.planned == before + 1


def test_an_unloaded_model_is_not_found(world, sides):
    world.compare(sides, [SUM.data()])
    try:
        world.run(world.off_loop(world.repository.unload, "sum"))
        (answer,) = world.compare(sides, [SUM.data()])
        assert answer.startswith(b"HTTP/1.1 404")
    finally:
        world.replace("as it was")


def test_templates_keep_no_model_alive(world, sides):
    world.compare(sides, [SUM.data()])
    model = weakref.ref(world.repository.find("sum"))
    try:
        world.replace("doubled")
        world.repository._lifecycles["sum"].wait_closed()
        gc.collect()
        assert model() is None
    finally:
        world.replace("as it was")


def test_templates_are_bounded_in_number_and_bytes(world):
    side, other = world.sides(max_input_bytes=1 << 20)
    templates = side.application.fast_path._templates
    assert (templates._most_entries, templates._most_bytes) == (
        template.MOST_ENTRIES,
        template.MOST_BYTES,
    )
    most_entries, most_bytes = 500, 1_000_000  # full after fewer requests
    templates._most_entries, templates._most_bytes = most_entries, most_bytes

    def learn(number, text):
        one = change(SUM, members=(*SUM.members, member("x", f'"{number}{text}"')))
        world.run(side.ask([one.data()]))

    for number in range(most_entries + 20):
        learn(number, "")
    assert len(templates) == most_entries
    for number in range(most_bytes // 8000 + 20):
        learn(number, "x" * 8000)
    assert len(templates) < most_entries
    assert most_bytes - 10_000 < templates.bytes <= most_bytes
    learn(0, "x" * template.LONGEST_KEY)
    assert most_bytes - 10_000 < templates.bytes <= most_bytes
    side.close()
    other.close()


def test_what_is_refused_teaches_nothing(world, sides):
    templates = sides[0].application.fast_path._templates
    for number in range(100):
        world.compare(sides, [change(SUM, members=(member("x", f"{number}"), "]")).data()])
        world.compare(sides, [change(SUM, tail=SUM.tail + b"x" * (number + 1)).data()])
        outputs = member("outputs", f'[{{"name":"{number}","parameters":{{"binary_data":true}}}}]')
        world.compare(sides, [change(SUM, members=(SUM.members[0], outputs)).data()])
    assert len(templates) == 0


def test_a_client_that_left_is_not_answered_and_its_request_withdrawn(world, sides):
    side = sides[0]

    async def leave():
        await side.ask([SUM.data()])
        client = Client(side.state)
        client.send(SUM.data())
        side.application.fast_path.submit()
        (request,) = world.engine._repository.find("sum")._batcher._queue
        client.connection.connection_lost(None)
        assert request.cancelled
        await side.ask([SUM.data()])
        assert client.transport.written == []

    world.run(leave())


# ---- requests like the one before on their connection


def by_fast_path(world, sides, datas):
    """Have both sides answer, and count what took the fast path."""
    before = world.planned
    answers = world.compare(sides, datas)
    return answers, world.planned - before


def numbered(*numbers, model=SUM):
    return [change(model, id=f'"{number}"').data() for number in numbers]


def test_like_requests_are_submitted_as_a_group(world, sides):
    world.compare(sides, numbered(10, 11, 12))
    cuts = world.repository.find("sum").recent_cuts
    answers, count = by_fast_path(world, sides, numbered(13, 14, 15))
    assert count == 3
    assert [answer.partition(b"{")[2][:9] for answer in answers] == [
        *(b'"id":"13"', b'"id":"14"', b'"id":"15"')
    ]
    assert cuts()[-2][1] == 3  # one batch, and those of the other side after it
    _, count = by_fast_path(world, sides, numbered(16, 1000, 17))
    assert count == 3  # an id of another length makes it another head, and another pattern


def test_ids_of_a_few_lengths_take_turns(world, sides):
    for _ in range(3):
        for number in (1, 10, 100):
            by_fast_path(world, sides, numbered(number))
    for number in (2, 20, 200) * 2:
        (answer,), count = by_fast_path(world, sides, numbered(number))
        assert count == 1
        assert b'"id":"%d"' % number in answer


def test_every_batch_answers_each_request_with_its_own(world, sides):
    def rows(*firsts):
        return [
            ask("sum", [("INPUT0", row(n, 2, 3)), ("INPUT1", row(4, 5, 6))], binary("OUTPUT0"))
            for n in firsts
        ]

    world.compare(sides, [one.data() for one in rows(0, 0, 0, 0)])
    answers, count = by_fast_path(world, sides, [one.data() for one in rows(1, 2, 3, 4)])
    assert count == 4
    assert [np.frombuffer(answer[-12:], "i4")[0] for answer in answers] == [5, 6, 7, 8]


@pytest.mark.parametrize("id", [None, '""', '"a b"', '"%d %b"', '"[]-~!#"'])
def test_any_plain_id_is_given_back(world, sides, id):
    data = change(SUM, id=id).data()
    world.compare(sides, [data])
    _, count = by_fast_path(world, sides, [data])
    assert count == 1


def test_an_id_that_is_not_plain_is_not_taken_for_one(world, sides):
    world.compare(sides, [change(SUM, id='"1234"').data()])
    for odd in ('"1\\"4"', '"\\n34"', '"1",\n7', '"é34"', '"1\x0134"'):
        _, count = by_fast_path(world, sides, [change(SUM, id=odd).data()])
        assert count == 0


def test_one_that_fails_fails_alone(world, sides):
    world.compare(sides, numbered(1, 2, 3))
    bad = change(SUM, tail=row(BROKEN, 2, 3).tobytes() + SUM.tail[12:])
    answers, count = by_fast_path(world, sides, [SUM.data(), bad.data(), SUM.data()])
    assert count == 3
    assert [answer[9:12] for answer in answers] == [b"200", b"500", b"200"]


def test_what_comes_in_pieces_or_ahead_matches_too(world, sides):
    world.compare(sides, [SUM.data()])
    before = world.planned
    expected = world.compare(sides, [SUM.data()])[0]
    assert world.planned == before + 1
    side, data = sides[0], SUM.data()

    async def say(*pieces, answers):
        (client,) = side.clients
        client.transport.written.clear()
        for piece in pieces:
            client.send_more(piece)
            await asyncio.sleep(0)
        while len(client.transport.written) < answers or client.connection.busy:
            await asyncio.wait_for(client.transport.wrote.wait(), WAIT_SECS)
            client.transport.wrote.clear()
        return client.answer[0]

    assert world.run(say(data[:50], data[50:], answers=1)) == expected
    assert world.run(say(data + data, answers=2)) == 2 * expected
    assert world.run(say(data[:-1], data[-1:] + data, answers=2)) == 2 * expected
    # The second is here before the first is answered.
    assert world.run(say(data, data[:9], data[9:], answers=2)) == 2 * expected
    assert world.planned == before + 8


def test_who_left_during_the_turn_is_not_served(world, sides):
    world.compare(sides, numbered(1, 2))
    side = sides[0]
    before, cancelled = world.planned, world.cancelled()

    async def leave():
        first, second = side.clients
        for client in side.clients:
            client.send(SUM.data())
        first.connection.connection_lost(None)
        await asyncio.wait_for(second.answered(), WAIT_SECS)
        assert first.transport.written == []
        side.clients = [second]

    world.run(leave())
    assert world.planned == before + 2
    assert world.cancelled() == cancelled + 1


def test_the_last_answer_before_the_end_says_so(world, sides):
    world.compare(sides, [SUM.data()])
    for side in sides:
        side.state.draining = True
    (answer,), count = by_fast_path(world, sides, [SUM.data()])
    assert count == 1
    assert b"Connection: close" in answer


def test_what_is_not_taken_as_a_group_is_validated_again(world, sides, monkeypatch):
    world.compare(sides, numbered(1, 2))
    monkeypatch.setattr(world.engine, "infer_group", lambda requests, model: requests)
    answers = world.compare(sides, numbered(3, 4))
    assert [answer[9:12] for answer in answers] == [b"200", b"200"]
    monkeypatch.undo()
    _, count = by_fast_path(world, sides, numbered(5, 6))
    assert count == 1  # the template has expired, and the first makes a new one
    _, count = by_fast_path(world, sides, numbered(5, 6))
    assert count == 2


def test_a_reshaped_input_is_validated_again_as_it_came(world, sides, monkeypatch):
    (one,) = [one for one in SOUND if one.model == "shaped"]
    world.compare(sides, [one.data()])
    monkeypatch.setattr(world.engine, "infer_group", lambda requests, model: requests)
    (answer,) = world.compare(sides, [one.data()])
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_failure_to_submit_is_the_response(world, sides, monkeypatch):
    def fail(requests, model):
        raise RuntimeError("a mistake of ours")

    world.compare(sides, numbered(1, 2))
    monkeypatch.setattr(world.engine, "infer_group", fail)
    answers = world.run(sides[0].ask(numbered(3, 4)))
    assert [answer[9:12] for answer, _ in answers] == [b"500", b"500"]


@pytest.mark.parametrize("model", ["full", "chain"])
def test_models_that_take_no_groups_take_one_by_one(world, sides, model):
    (one, *_) = [one for one in SOUND if one.model == model]
    world.compare(sides, [one.data()])
    for _ in range(3):
        _, count = by_fast_path(world, sides, [one.data()] * 2)
    assert count == 2


def test_a_full_queue_refuses_planned_requests_one_by_one(world, sides):
    (one, *_) = [one for one in SOUND if one.model == "full"]
    world.compare(sides, [one.data()] * 2)
    answers, count = by_fast_path(world, sides, [one.data()] * 2)
    assert count == 2
    answers = world.compare(sides, [one.data()] * 4)
    assert sorted(answer[9:12] for answer in answers) == [b"200", b"200", b"503", b"503"]


def test_a_full_queue_refuses_the_rest_of_a_group(world, sides):
    """The bytes are those of the slow path."""
    one = ask("brim", [("INPUT0", row(0, 1))], None, ALL_BINARY)
    for _ in range(3):
        world.compare(sides, [change(one, id='"1"').data()])
    answers, count = by_fast_path(world, sides, numbered(*range(5), model=one))
    assert count == 5
    assert [answer[9:12] for answer in answers] == [b"200"] * 2 + [b"503"] * 3
    assert b"\r\nRetry-After: 1\r\n" in answers[2]
    assert b'{"error":"[request id: 2] Exceeds maximum queue size"}' in answers[2]
    answers, _ = by_fast_path(world, sides, numbered(6, model=one))
    assert answers[0].startswith(b"HTTP/1.1 200")


def test_a_replaced_model_ends_its_fast_path(world, sides):
    world.compare(sides, [SUM.data()])
    assert by_fast_path(world, sides, [SUM.data()])[1] == 1
    try:
        world.replace("narrow")
        (answer,), count = by_fast_path(world, sides, [SUM.data()])
        assert answer.startswith(b"HTTP/1.1 400")
        assert count == 0
    finally:
        world.replace("as it was")
    by_fast_path(world, sides, [SUM.data()])
    assert by_fast_path(world, sides, [SUM.data()])[1] == 1


def test_traced_requests_do_not_take_it(world, sides, monkeypatch):
    world.compare(sides, [SUM.data()])
    world.compare(sides, [SUM.data()])

    monkeypatch.setattr(world.engine.tracer, "active", True)
    assert by_fast_path(world, sides, [SUM.data()])[1] == 0


@pytest.mark.parametrize(
    "options", [{"cors_origins": ("http://page",)}, {"restricted_apis": {"inference": ("k", "v")}}]
)
def test_where_heads_matter_there_is_no_fast_path(world, options):
    sides = world.sides(**options)
    assert sides[0].application.fast_path is None
    for side in sides:
        side.close()


def test_a_connection_is_not_looked_at_for_ever(world, sides, monkeypatch):
    looked = []
    fast_path = sides[0].application.fast_path
    find = fast_path.find
    monkeypatch.setattr(type(fast_path), "find", lambda _, *given: looked.append(0) or find(*given))
    (text, *_) = [one for one in SOUND if one.model == "reads"]
    for _ in range(60):
        world.compare(sides, [b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"])
        world.compare(sides, [text.data()])
    assert len(looked) == 8
    for _ in range(10):
        world.compare(sides, [text.data()])
    assert len(looked) == 9  # in case its requests have become alike


def test_connections_share_their_patterns(world, sides):
    for length in range(1, 6):
        data = change(SUM, id='"' + "7" * length + '"').data()
        world.compare(sides, [data] * 3)
        assert by_fast_path(world, sides, [data] * 3)[1] == 3
    fast_path = sides[0].application.fast_path
    assert len(fast_path.candidates(data)) == 5


def test_a_connection_may_have_any_number_of_patterns(world, sides, monkeypatch):
    requests = [one.data() for one in SOUND if one.model in ("sum", "free")]
    requests += [change(SUM, id=f'"{"7" * length}"').data() for length in range(1, 9)]
    for data in requests * 2:  # make templates, then patterns
        world.compare(sides, [data])
    fast_path = sides[0].application.fast_path
    monkeypatch.setattr(fast_path, "find", lambda *_: pytest.fail("there is no pattern"))
    for data in requests * 2:
        assert by_fast_path(world, sides, [data])[1] == 1


def test_calls_are_freed_at_once(world, sides):
    world.compare(sides, numbered(1, 2))
    gc.collect()
    gc.disable()
    try:
        _, count = by_fast_path(world, sides, numbered(3, 4))
        assert count == 2
        assert not [found for found in gc.get_objects() if type(found) is HttpFastPathCall]
    finally:
        gc.enable()


@pytest.mark.parametrize("rows", [100, 6000, 9000])  # 1, 47 and 70 KB
def test_requests_of_any_size_match(world, sides, rows):
    array = np.arange(2 * rows, dtype="f4").reshape(-1, 2)
    one = ask("free", [("INPUT0", array)], binary("OUTPUT0"))
    world.compare(sides, [one.data()])
    answers, count = by_fast_path(world, sides, [one.data()])
    assert answers[0].endswith(array.tobytes())
    assert count == 1

"""ModelInferRequest in: what protobuf writes is what we read, and nonsense gets a sentence."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument, LimitExceeded, NotFound, ShoalError, Unsupported
from shoal.wire import grpc_request
from shoal.wire.grpc_request import MOST_FIELDS, InferDecoder, check_inflated, parse, peek
from shoal.wire.proto import messages


def make_request(**fields):
    return messages.ModelInferRequest(**{"model_name": "m", **fields})


def with_input(datatype="FP32", shape=(1,), raw=b"\0\0\0\0", **fields):
    request = make_request(**fields)
    request.inputs.add(name="IN", datatype=datatype, shape=shape)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


decode_infer = InferDecoder().decode  # one for all tests: what it caches must do no harm


def decode(request):
    return decode_infer(request.SerializeToString())


# ---- tensors


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_raw_contents_of_every_datatype(datatype):
    raw = b"\x02\0\0\0ab\0\0\0\0" if datatype is dtypes.BYTES else bytes(2 * datatype.itemsize)
    decoded = decode(with_input(datatype.name, [2], raw))
    tensor = decoded.inputs["IN"]
    assert tensor.datatype is datatype
    assert tensor.shape == (2,)
    assert bytes(tensor.raw) == raw
    assert tensor.array.shape == (2,)


TYPED = [
    ("BOOL", "bool_contents", [True, False], b"\x01\x00"),
    ("INT8", "int_contents", [-1, 127, 300], np.array([-1, 127, 44], "<i1").tobytes()),
    ("INT16", "int_contents", [-1, 32767, 65537], np.array([-1, 32767, 1], "<i2").tobytes()),
    ("INT32", "int_contents", [-(2**31), 5], np.array([-(2**31), 5], "<i4").tobytes()),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], b"\0" * 7 + b"\x80" + b"\xff" * 7 + b"\x7f"),
    ("UINT8", "uint_contents", [255, 257], b"\xff\x01"),
    ("UINT16", "uint_contents", [65535, 65536], b"\xff\xff\x00\x00"),
    ("UINT32", "uint_contents", [2**32 - 1], b"\xff\xff\xff\xff"),
    ("UINT64", "uint64_contents", [2**64 - 1, 1], b"\xff" * 8 + b"\x01" + b"\0" * 7),
    ("FP32", "fp32_contents", [1.5, float("inf")], np.array([1.5, np.inf], "<f4").tobytes()),
    ("FP64", "fp64_contents", [0.1], np.array([0.1], "<f8").tobytes()),
    ("BYTES", "bytes_contents", [b"ab", b""], b"\x02\0\0\0ab\0\0\0\0"),
]


@pytest.mark.parametrize(("datatype", "field", "values", "raw"), TYPED, ids=lambda v: str(v)[:12])
def test_typed_contents_of_every_datatype(datatype, field, values, raw):
    request = with_input(datatype, [len(values)], raw=None)
    getattr(request.inputs[0].contents, field).extend(values)
    tensor = decode(request).inputs["IN"]
    assert bytes(tensor.raw) == raw
    assert tensor.array.shape == (len(values),)


def test_an_empty_tensor_may_come_typed_or_raw():
    request = with_input("INT32", [0], raw=None)
    request.inputs[0].contents.SetInParent()
    assert bytes(decode(request).inputs["IN"].raw) == b""
    assert bytes(decode(with_input("INT32", [0], raw=b"")).inputs["IN"].raw) == b""


def test_raw_contents_are_views_of_the_message():
    message = bytearray(with_input(raw=b"abcd").SerializeToString())
    tensor = decode_infer(memoryview(message)).inputs["IN"]
    message[-1] = ord("x")
    assert bytes(tensor.raw) == b"abcx"


def test_empty_contents_beside_raw_ones_are_ignored():
    request = with_input(raw=b"abcd")
    request.inputs[0].contents.SetInParent()
    for _ in range(2):
        assert bytes(decode(request).inputs["IN"].raw) == b"abcd"


# ---- everything around them

names = st.text(max_size=8)
model_parameters = st.dictionaries(
    names.filter(lambda key: key not in grpc_request._KNOWN_PARAMETERS and "triton_" not in key),
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=8),
        st.floats(allow_nan=False),
    ),
    max_size=3,
)
tensors = st.dictionaries(
    names,
    st.tuples(
        st.sampled_from(dtypes.ALL),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        st.binary(max_size=40),
    ),
    max_size=3,
)


def set_parameter(parameter, value):
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    setattr(parameter, kinds[type(value)], value)


@given(names, names, names, model_parameters, tensors, st.dictionaries(names, st.integers(0, 9)))
def test_what_protobuf_writes_is_what_we_read(
    model_name, version, request_id, parameters, inputs, outputs
):
    request = messages.ModelInferRequest(model_name=model_name, model_version=version)
    request.id = request_id
    for key, value in parameters.items():
        set_parameter(request.parameters[key], value)
    for name, (datatype, shape, raw) in inputs.items():
        request.inputs.add(name=name, datatype=datatype.name, shape=shape)
        request.raw_input_contents.append(raw)
    for name, classes in outputs.items():
        wanted = request.outputs.add(name=name)
        if classes:
            wanted.parameters["classification"].int64_param = classes
    for _ in range(2):  # the second time what is around the tensors is remembered
        decoded = decode(request)
        head = decoded.head
        assert (head.model_name, head.model_version, decoded.id) == (
            model_name,
            version,
            request_id,
        )
        assert head.parameters == parameters
        assert head.outputs == outputs
        assert head.output_names == tuple(outputs)
        assert head.classifies == any(outputs.values())
        assert {
            name: (tensor.datatype, list(tensor.shape), bytes(tensor.raw))
            for name, tensor in decoded.inputs.items()
        } == inputs


def test_requests_that_differ_in_their_id_and_data_share_a_head():
    first = decode(with_input(raw=b"abcd", id="1"))
    second = decode(with_input(raw=b"efgh", id="2"))
    assert first.head is second.head
    assert (first.id, second.id) == ("1", "2")
    assert [bytes(each.inputs["IN"].raw) for each in (first, second)] == [b"abcd", b"efgh"]


def test_the_memory_of_heads_is_bounded(monkeypatch):
    monkeypatch.setattr(grpc_request, "_MOST_HEADS", 3)
    decoder = InferDecoder()
    for number in range(5):
        decoder.decode(with_input(model_version=str(number)).SerializeToString())
    assert [head.model_version for head in decoder._heads.values()] == ["2", "3", "4"]
    decoder.decode(with_input(model_name="m" * 3_000).SerializeToString())
    assert len(decoder._heads) == 3


def test_nothing_is_cached_where_that_is_off():
    decoder = InferDecoder(caches=False)
    message = with_input(id="1").SerializeToString()
    assert decoder.decode(message).head is not decoder.decode(message).head


def test_fields_of_newer_versions_are_ignored():
    message = with_input(raw=b"abcd").SerializeToString()
    newer = b"\xa2\x06\x03new" + message + b"\xa8\x06\x05"
    assert bytes(decode_infer(newer).inputs["IN"].raw) == b"abcd"


def test_the_last_of_two_ids_counts():
    message = with_input(id="1").SerializeToString() + b"\x1a\x012"
    assert decode_infer(message).id == "2"


# ---- parameters


@pytest.mark.parametrize(
    ("key", "kind", "value", "attribute", "expected"),
    [
        ("sequence_id", "int64_param", 7, "sequence_id", 7),
        ("sequence_id", "int64_param", -1, "sequence_id", 2**64 - 1),
        ("sequence_id", "string_param", "a", "sequence_id", "a"),
        ("sequence_start", "bool_param", True, "sequence_start", True),
        ("sequence_end", "bool_param", True, "sequence_end", True),
        ("priority", "uint64_param", 2**63, "priority", 2**63),
        ("priority", "int64_param", 2, "priority", 2),
        ("timeout", "int64_param", 500, "timeout_us", 500),
        ("timeout", "int64_param", -1, "timeout_us", 0),
        ("triton_enable_empty_final_response", "bool_param", True, "empty_final_response", True),
    ],
)
def test_parameters_the_server_reads(key, kind, value, attribute, expected):
    request = make_request()
    setattr(request.parameters[key], kind, value)
    head = decode(request).head
    assert getattr(head, attribute) == expected
    assert head.parameters == {}


@pytest.mark.parametrize(
    ("key", "kind", "value", "text"),
    [
        ("sequence_id", "bool_param", True, "expected int64_param or string_param."),
        ("sequence_start", "int64_param", 1, "expected bool_param."),
        ("sequence_end", "string_param", "yes", "expected bool_param."),
        ("priority", "string_param", "1", "expected int64_param or uint64_param."),
        ("timeout", "uint64_param", 1, "expected int64_param."),
        ("triton_enable_empty_final_response", "int64_param", 1, "expected bool_param."),
        ("mine", "uint64_param", 1, "expected int64_param, bool_param, or string_param."),
    ],
)
def test_parameters_of_the_wrong_type(key, kind, value, text):
    request = make_request()
    setattr(request.parameters[key], kind, value)
    with pytest.raises(InvalidArgument) as caught:
        decode(request)
    assert caught.value.message == f"invalid value type for '{key}' parameter, {text}"


def test_a_parameter_without_a_value():
    request = make_request()
    request.parameters["mine"].SetInParent()
    with pytest.raises(InvalidArgument, match="invalid value type for 'mine' parameter"):
        decode(request)


def test_reserved_and_negative_parameters():
    request = make_request()
    request.parameters["triton_x"].bool_param = True
    with pytest.raises(InvalidArgument, match=r"^parameter keys starting with 'triton_' are reser"):
        decode(request)
    request = make_request()
    request.parameters["priority"].int64_param = -1
    with pytest.raises(InvalidArgument, match=r"^invalid value for 'priority', expected value >="):
        decode(request)


# ---- mistakes


def add_twice(request):
    request.inputs.add(name="IN", datatype="FP32")
    request.raw_input_contents.append(b"")


def typed(request):
    request.inputs[0].contents.int_contents.append(1)


def forget_data(request):
    del request.raw_input_contents[:]


def wrong_typed(request):
    forget_data(request)
    request.inputs[0].contents.uint_contents.append(1)


def typed_half(request):
    forget_data(request)
    request.inputs[0].datatype = "FP16"
    request.inputs[0].contents.fp32_contents.append(1)


def two_typed(request):
    forget_data(request)
    request.inputs[0].contents.fp32_contents.append(1)
    request.inputs[0].contents.bytes_contents.append(b"a")


def one_of_two_typed(request):
    forget_data(request)
    request.inputs[0].contents.fp32_contents.append(1)
    request.inputs.add(name="OTHER", datatype="FP32", shape=[1])


def bad_datatype(request):
    request.inputs[0].datatype = "FLOAT"


def duplicate_output(request):
    request.outputs.add(name="OUT")
    request.outputs.add(name="OUT")


def classes(kind, value):
    def change(request):
        setattr(request.outputs.add(name="OUT").parameters["classification"], kind, value)

    return change


WHERE = "for input tensor 'IN' for model 'm'"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (add_twice, "[request id: 9] input 'IN' already exists in request"),
        (duplicate_output, "[request id: 9] output 'OUT' already exists in request"),
        (typed, "contents field must not be specified when using raw_input_contents for 'IN' for"),
        (forget_data, "unable to find data for input tensor 'IN' for model 'm' in request."),
        (one_of_two_typed, "unable to find data for input tensor 'OTHER' for model 'm' in request"),
        (wrong_typed, f"unexpected explicit tensor data {WHERE} of type 'UINT32', expected datat"),
        (typed_half, f"unexpected explicit tensor data {WHERE} of type 'FP32', expected datatype"),
        (two_typed, f"unexpected explicit tensor data {WHERE}, binary data was already supplied."),
        (bad_datatype, "input 'IN': invalid datatype 'FLOAT', expected one of BOOL, UINT8"),
        (
            lambda request: request.raw_input_contents.append(b""),
            "raw_input_contents has 2 entries but the request has 1 inputs for model 'm'",
        ),
        (
            classes("int64_param", 0),
            "invalid value for 'classification' parameter, expected >= 0",
        ),
        (
            classes("string_param", "3"),
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
    ],
)
def test_mistakes_are_named(change, text):
    request = with_input(id="9")
    change(request)
    with pytest.raises(InvalidArgument) as caught:
        decode(request)
    assert caught.value.message.startswith(text)


def in_memory(tensor, region="r", offset=None, size=None):
    tensor.parameters["shared_memory_region"].string_param = region
    if offset is not None:
        tensor.parameters["shared_memory_offset"].int64_param = offset
    if size is not None:
        tensor.parameters["shared_memory_byte_size"].int64_param = size


class Memory:
    """Regions that remember who borrowed what."""

    def __init__(self):
        self.open = 0

    def lease(self, name, offset, byte_size):
        if name != "r":
            raise NotFound(name)
        self.open += 1
        raw = memoryview(bytearray(64))[offset:][:byte_size]
        return SimpleNamespace(
            tensor=lambda *described: Tensor(*described, raw=raw), release=self._release
        )

    def _release(self):
        self.open -= 1


def test_tensors_in_shared_memory():
    request = with_input()
    del request.raw_input_contents[:]
    in_memory(request.inputs[0], offset=4, size=8)
    in_memory(request.outputs.add(name="OUT"), size=16)
    memory = Memory()
    message = decode_infer(request.SerializeToString(), memory)
    assert message.inputs["IN"].nbytes == 8
    assert message.slices["OUT"].byte_size == 16
    assert memory.open == 2
    message.release()
    assert memory.open == 0


def test_a_failed_lease_gives_the_others_back():
    request = with_input()
    del request.raw_input_contents[:]
    in_memory(request.inputs[0], size=8)
    in_memory(request.outputs.add(name="OUT"), region="nobody", size=16)
    memory = Memory()
    with pytest.raises(NotFound):
        decode_infer(request.SerializeToString(), memory)
    assert memory.open == 0


def test_without_shared_memory_it_is_refused():
    request = with_input()
    in_memory(request.outputs.add(name="OUT"), size=16)
    with pytest.raises(Unsupported, match="does not exchange tensors by shared memory"):
        decode(request)


def test_shared_memory_parameters_that_do_not_go_together():
    request = with_input()
    in_memory(request.outputs.add(name="OUT"))
    with pytest.raises(InvalidArgument, match="'shared_memory_byte_size' must be specified"):
        decode(request)
    request = with_input()
    request.inputs[0].parameters["shared_memory_offset"].int64_param = 4
    with pytest.raises(InvalidArgument, match="can not be specified without 'shared_memory_reg"):
        decode(request)
    request = with_input()
    request.inputs[0].parameters["shared_memory_region"].int64_param = 4
    with pytest.raises(InvalidArgument, match=r"'shared_memory_region' parameter .* string_param"):
        decode(request)
    request = with_input()
    in_memory(output := request.outputs.add(name="OUT"), size=4)
    output.parameters["classification"].int64_param = 2
    with pytest.raises(InvalidArgument, match="can't set both"):
        decode(request)


@pytest.mark.parametrize(
    "message", [b"\x0a\x05", b"\x0a\x02\xff\xfe", b"\x1a\x01\xff", b"\x2a\x01"]
)
def test_bytes_that_are_no_request(message):
    with pytest.raises(InvalidArgument, match=r"^the request is not a valid protobuf message: "):
        decode_infer(message)
    assert peek(message) == ("", "", "")


def test_peek_tells_who_was_asked():
    request = with_input("FLOAT", id="9", model_version="2")
    assert peek(request.SerializeToString()) == ("m", "2", "9")


def test_parse_takes_views():
    message = messages.ModelReadyRequest(name="m").SerializeToString()
    assert parse(messages.ModelReadyRequest, memoryview(message)).name == "m"


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_our_errors(message):
    with contextlib.suppress(ShoalError):
        decode_infer(message)


@given(st.data())
def test_damaged_requests_raise_nothing_but_our_errors(data):
    request = with_input("INT8", [2], b"ab", id="x")
    request.parameters["p"].string_param = "value"
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 3
    if data.draw(st.booleans()):
        del request.raw_input_contents[:]
        request.inputs[0].contents.int_contents.extend([1, 2])
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ShoalError):
        decode_infer(bytes(message))


def test_what_a_request_has_besides_raw_contents_is_limited():
    request = messages.ModelInferRequest(model_name="m")
    request.inputs.add(name="a", datatype="FP32", shape=[100])
    request.inputs[0].contents.fp32_contents.extend([1.0] * 100)
    message = request.SerializeToString()
    assert InferDecoder(max_typed_bytes=len(message)).decode(message).inputs["a"].shape == (100,)
    with pytest.raises(LimitExceeded, match="--grpc-max-request-bytes"):
        InferDecoder(max_typed_bytes=len(message) - 1).decode(message)
    with pytest.raises(LimitExceeded, match="or the request uncompressed"):
        check_inflated(message, len(message) - 1)


def test_raw_contents_do_not_count_to_that():
    request = messages.ModelInferRequest(model_name="m")
    request.inputs.add(name="a", datatype="UINT8", shape=[10_000])
    request.raw_input_contents.append(bytes(10_000))
    message = request.SerializeToString()
    check_inflated(message, 100)
    assert InferDecoder(max_typed_bytes=100).decode(message).inputs["a"].shape == (10_000,)


def test_a_request_has_at_most_so_many_fields():
    message = b"\x2a\x00" * (MOST_FIELDS + 1)
    with pytest.raises(InvalidArgument, match=f"more than {MOST_FIELDS} fields"):
        InferDecoder().decode(message)
    assert peek(message) == ("", "", "")

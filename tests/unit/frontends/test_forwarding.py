import pytest

from shoal.errors import InvalidArgument
from shoal.frontends.forwarding import HeaderForwarding

HEADERS = [(b"host", b"x"), (b"my_header_1", b"one"), (b"my_header_2", "zwö".encode())]


def forwarded(pattern, headers=HEADERS):
    parameters = {"kept": 1, "my_header_1": "from the body"}
    HeaderForwarding(pattern).forward(headers, parameters)
    assert parameters.pop("kept") == 1
    return parameters


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("my_.*", {"my_header_1": "one", "my_header_2": "zwö"}),
        ("MY_HEADER.*", {"my_header_1": "one", "my_header_2": "zwö"}),  # names have no case
        ("header_2", {"my_header_1": "from the body", "my_header_2": "zwö"}),  # a part will do
        ("^header", {"my_header_1": "from the body"}),
        ("(?-i)MY_HEADER.*", {"my_header_1": "from the body"}),
        ("(?-i)my_header_1", {"my_header_1": "one"}),
    ],
)
def test_matching_headers_become_parameters(pattern, expected):
    assert forwarded(pattern) == expected


def test_values_in_latin_1():
    assert forwarded("x", [(b"x", b"\xe9")])["x"] == "é"


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_enable_empty_final_response",
        "triton_x",
    ],
)
def test_reserved_names_are_refused(name):
    with pytest.raises(InvalidArgument) as caught:
        forwarded(".*", [(name.encode(), b"1")])
    assert caught.value.message == (
        f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    )
    assert forwarded("other", [(name.encode(), b"1")])  # nobody asked for it


def test_a_bad_pattern_is_refused():
    with pytest.raises(InvalidArgument, match="is not a regular expression"):
        HeaderForwarding("(")

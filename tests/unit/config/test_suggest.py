"""Near matches."""

from __future__ import annotations

import pytest

from shoal.config.suggest import did_you_mean, near_match

TYPES = ["TYPE_INVALID", "TYPE_INT32", "TYPE_UINT32", "TYPE_FP32", "TYPE_STRING"]


@pytest.mark.parametrize(
    ("written", "match"),
    [
        ("INT32", "TYPE_INT32"),
        ("uint32", "TYPE_UINT32"),
        ("TYPE_FLOAT32", "TYPE_FP32"),
        ("type_fp32", "TYPE_FP32"),
        ("TYPE_STR", "TYPE_STRING"),
        ("elephant", None),
        ("", None),
    ],
)
def test_near_match(written, match):
    assert near_match(written, TYPES) == match


def test_what_to_say():
    assert did_you_mean("INT32", TYPES, "values") == "Did you mean 'TYPE_INT32'?"
    assert did_you_mean("x", ["a", "b"], "values") == "Known values are: a, b"
    many = [f"name{number}" for number in range(50)]
    assert did_you_mean("elephant", many, "fields").endswith("name29, …")


def test_a_very_long_name_is_not_compared():
    assert near_match("d" + "x" * 100, ["dx", "d" + "x" * 99]) is None

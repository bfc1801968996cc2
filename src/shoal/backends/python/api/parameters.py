"""Parameters of requests and responses: a flat JSON object of booleans, whole numbers and text."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.backends.python.api.errors import TritonModelException
from shoal.core.response import ParameterValue


def checked(parameters: Mapping[str, ParameterValue] | None) -> dict[str, ParameterValue]:
    """A copy of a model's parameters; TritonModelException names an invalid one."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    plain: dict[str, ParameterValue] = {}
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if isinstance(value, bool):
            plain[str(key)] = value
        elif isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise TritonModelException(
                    f"Expect parameters values to fit into 64 bits, found {key} = {value}"
                )
            plain[str(key)] = int(value)
        elif isinstance(value, str):
            plain[str(key)] = str(value)
        else:
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return plain

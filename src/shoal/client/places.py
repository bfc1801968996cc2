"""Outputs that the server laid into shared memory, read from there."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.client.region import Place
from shoal.client.result import Result
from shoal.core import dtypes


def fill_from_places(result: Result, places: Mapping[str, Place]) -> None:
    """Give a result the arrays of the outputs that were asked to go to `places`."""
    for name, place in places.items():
        output = result.outputs.get(name)
        if output is None or output.raw:
            continue
        size = output.parameters.get("shared_memory_byte_size")
        if output.datatype != "BYTES" or not isinstance(size, int):
            known = dtypes.from_name(output.datatype)
            size = math.prod(output.shape) * known.itemsize or place.byte_size
        output.array = place.read(output.datatype, output.shape, size)

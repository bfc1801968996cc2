"""Reads outputs that the server wrote to shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.client.region import Place
from shoal.client.result import Result
from shoal.core import dtypes


def fill_from_places(result: Result, places: Mapping[str, Place]) -> None:
    """Set the arrays of the outputs in `places`."""
    for name, place in places.items():
        output = result.outputs.get(name)
        if output is None or output.raw:
            continue
        size = output.parameters.get("shared_memory_byte_size")
        if output.datatype != "BYTES" or not isinstance(size, int):
            known = dtypes.from_name(output.datatype)
            size = math.prod(output.shape) * known.itemsize or place.byte_size
        output.array = place.read(output.datatype, output.shape, size)

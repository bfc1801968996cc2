"""`generate` of a model that streams: one response is the answer, others are not kept."""

import gc
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from shoal.core.dtypes import BYTES
from shoal.core.interface import FunctionInterface
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.frontends.http.functions.calls import _OneResponse
from shoal.frontends.http.generate import _OneAnswer


class Exchange:
    """Keeps the status of a response."""

    def __init__(self):
        self.request = SimpleNamespace(method="POST", path="/v2/models/m/generate")
        self.status = 0

    def respond(self, status, _headers, _parts):
        self.status = status


@dataclass(eq=False)
class Watched(Response):
    """A response that can be referred to weakly."""


@pytest.mark.parametrize(
    "make",
    [_OneAnswer, lambda exchange: _OneResponse(exchange, FunctionInterface((), ()))],
)
def test_responses_of_a_long_stream_are_not_kept(make):
    exchange = Exchange()
    call = make(exchange)
    made = []
    for _ in range(3):
        one = Watched("m", 1, outputs=[Tensor("text", BYTES, (1,), raw=b"x")], final=False)
        made.append(weakref.ref(one))
        call.deliver(one)
    del one
    gc.collect()
    assert [ref() is not None for ref in made] == [True, False, False]
    assert exchange.status == 0
    call.deliver(Response("m", 1))
    assert exchange.status in (400, 500)

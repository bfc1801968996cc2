"""Groups of several front ends that run as one batch: the same answers and counts as one by one."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest

from shoal.config.options import Options
from shoal.core.dtypes import INT32
from shoal.engine.linked.service import EngineService
from shoal.link.link import Link
from shoal.serving import Serving
from shoal.testing import WAIT_SECS
from tests.support import onnx_models
from tests.support.repositories import add_onnx, execution

INPUTS = (("INPUT0", INT32.number, (1, 16)), ("INPUT1", INT32.number, (1, 16)))
TEMPLATE = ("sum", -1, INPUTS, (64, 64), (), {}, 0, 0)


class FrontendEnd:
    """The other end of a link of the engine: sends groups, keeps the results."""

    def __init__(self, service):
        ours, theirs = socket.socketpair()
        service.connect(Link(ours))
        self.link = Link(theirs)
        self.rows = {}
        self.answers = {}
        self.arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.link.fileno(), self.read)

    def send(self, first, rows):
        """One group; each row is the input of one request, twice."""
        self.rows.update(zip(range(first, first + len(rows)), rows, strict=True))
        column = b"".join([row.tobytes() for row in rows])
        self.link.send("group", 1, first, len(rows), None, 1, column + column)

    def read(self):
        for kind, body in self.link.receive():
            if kind == "results":
                self.take(*body)
        self.arrived.set()

    def take(self, _layout, numbers, places):
        if isinstance(numbers, tuple):
            numbers = range(numbers[0], numbers[0] + numbers[1])
        sums, differences = self.link.unpack_buffers(places)
        sums = np.frombuffer(sums, np.int32).reshape(len(numbers), 16)
        assert not np.frombuffer(differences, np.int32).any()
        self.answers.update(zip(numbers, sums, strict=True))

    def close(self):
        asyncio.get_running_loop().remove_reader(self.link.fileno())
        self.link.close()

    def check(self):
        assert self.answers.keys() == self.rows.keys()
        for number, row in self.rows.items():
            assert (self.answers[number] == 2 * row).all()


@pytest.mark.parametrize("mode", ["loop", "threads"])
@pytest.mark.parametrize("sizes", [(1,), (3, 1), (2, 5, 8), (9, 4), (4, 4, 4, 4, 4)])
def test_each_front_end_gets_its_own_answers(tmp_path, mode, sizes):
    config = "max_batch_size: 8\ndynamic_batching {}\n" + execution(mode)
    add_onnx(tmp_path, "sum", onnx_models.add_sub("INT32"), config)

    async def run():
        serving = Serving(Options(model_repository=(str(tmp_path),)))
        serving.loop.bind(asyncio.get_running_loop())
        service = EngineService(serving.engine, serving.loop)
        ends = [FrontendEnd(service) for _ in sizes]
        await serving.load()
        number = iter(range(1_000_000))
        total = 0
        for end in ends:
            end.link.send("template", 1, TEMPLATE)
        for turn in range(4):  # the first ones run as batches of requests
            for end, size in zip(ends, sizes, strict=True):
                rows = [np.full(16, next(number), np.int32) for _ in range(size)]
                end.send(1 + turn * 100, rows)
                total += size
            for end in ends:
                while len(end.answers) < len(end.rows):
                    end.arrived.clear()
                    await asyncio.wait_for(end.arrived.wait(), WAIT_SECS)
        for end in ends:
            end.check()
            end.close()
        (counted,) = serving.engine.statistics("sum")
        deadline = asyncio.get_running_loop().time() + WAIT_SECS
        service.close()
        await serving.unload(deadline)
        await serving.close(clean=True)
        return counted, total

    counted, total = asyncio.run(run())
    assert counted["inference_count"] == total
    assert counted["inference_stats"]["success"]["count"] == total
    assert counted["inference_stats"]["queue"]["count"] == total
    batches = {row["batch_size"]: row["compute_infer"]["count"] for row in counted["batch_stats"]}
    assert sum(rows * count for rows, count in batches.items()) == total
    assert max(batches) <= 8

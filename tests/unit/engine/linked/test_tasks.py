"""Calls of tasks are made in front ends; a model is unloaded when the last one has ended."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.frontends.waiting import once_loaded
from shoal.tasks import registry
from shoal.tasks.base import Task
from shoal.tasks.request import TaskRequest
from tests.support.repositories import add_fake, parameter


class Asking(Task):
    """Asks its model twice, the second time when `go` is set."""

    name = "asking"
    operation = "ask"
    waiting: asyncio.Event
    go: asyncio.Event
    ended: list[str | int]

    def __init__(self, context):
        super().__init__(context)
        self.word = context.settings.text("word")
        file = context.folder / "more" / "words.txt"
        self.words = file.read_text() if file.exists() else ""

    async def perform(self, request):
        for event in (self.waiting, None):
            outputs = await self.context.infer({"INPUT0": np.ones((1, 1), np.int32)})
            if event is not None:
                event.set()
                await self.go.wait()
        self.ended.append("call")
        return {"version": self.context.model_version, "output": outputs["OUTPUT0"].tolist()}

    def close(self):
        self.ended.append(self.context.model_version)


@pytest.fixture
def asking(monkeypatch):
    Asking.ended = []
    monkeypatch.setattr(registry, "BUILT_IN", {"asking": ("ask", f"{__name__}:Asking")})
    monkeypatch.setattr(registry, "_load", {"asking": Asking}.get)
    registry.operations.cache_clear()
    yield
    registry.operations.cache_clear()


def test_a_call_ends_with_the_version_that_it_began_with(world, asking):
    task = parameter("task", "asking")
    add_fake(world.models, "model", task)
    frontend = world.frontends[0]
    world.blocking(frontend.load, "model", None, {})

    async def call():
        Asking.waiting, Asking.go = asyncio.Event(), asyncio.Event()
        begun = await once_loaded(lambda: frontend.task("ask", "model"))
        performing = asyncio.ensure_future(begun.perform(TaskRequest((), {})))
        await Asking.waiting.wait()
        add_fake(world.models, "model", task, versions=(1, 2))
        await asyncio.to_thread(frontend.load, "model", None, {})
        assert (await once_loaded(lambda: frontend.find("model"))).version == 2
        Asking.go.set()
        answer = await performing
        begun.leave()
        return answer

    assert world.run(call()) == {"version": 1, "output": [[1]]}
    # The old version ends in both processes, after the call.
    world.run(world.until(lambda: Asking.ended == ["call", 1, 1]))


def test_a_front_end_has_the_files_with_which_the_model_was_loaded(world, asking):
    """One that begins later, too, whatever is in the folder by then."""
    folder = add_fake(world.models, "model", parameter("task", "asking"))
    (folder / "more").mkdir()
    (folder / "task.json").write_text('{"word": "old"}')
    (folder / "more" / "words.txt").write_text("old words")
    early, late = world.frontends
    world.blocking(early.load, "model", None, {})
    (folder / "task.json").write_text('{"wrong": 1}')
    (folder / "more" / "words.txt").unlink()
    with pytest.raises(InvalidArgument, match="wrong: no such setting"):
        world.blocking(early.load, "model", None, {})
    for frontend in (early, late):
        model = world.run(once_loaded(lambda frontend=frontend: frontend.find("model")))
        assert (model.task.task.word, model.task.task.words) == ("old", "old words")
        assert model.task.task.context.folder == folder

"""Names that all front ends know: the supervisor's side, and that of front ends, in one process."""

from __future__ import annotations

import asyncio
import os

import pytest

from shoal.errors import AlreadyExists, InvalidArgument
from shoal.frontends.clouds.sagemaker_models import SageMakerModels
from shoal.frontends.shared_names import NO_FILE
from shoal.processes.names import Entry, LinkedNames, NameRegistry


class Taker:
    """Keeps names; those that begin with "bad" are refused."""

    def __init__(self):
        self.known = {}
        self.called = asyncio.Event()

    def is_slow(self, value):
        return value == "slow"

    def add(self, name, value, file):
        if name.startswith("bad"):
            raise InvalidArgument(f"'{name}' is bad")
        self.known[name] = (value, file)
        self.called.set()

    def remove(self, name):
        self.known.pop(name, None)


class FrontEnd:
    """A front end, and its end of the control link; `deaf` ones do not answer."""

    def __init__(self, registry, entries=(), *, taker=None):
        self.taker = taker or Taker()
        self.names = LinkedNames(entries)
        self.names.attach("kind", self.taker)
        self.deaf = False
        loop = asyncio.get_running_loop()

        def to_supervisor(file, message, *body):
            if message == "register":
                number, kind, name, value, _ = body
                registry.register(self, number, Entry(kind, name, value, file))
            elif message == "unregister":
                registry.unregister(self, *body)
            elif not self.deaf:
                registry.known(self, *body)

        self.names.send = lambda *message: loop.call_soon_threadsafe(
            to_supervisor, NO_FILE, *message
        )
        self.names.send_file = lambda file, *message: loop.call_soon_threadsafe(
            to_supervisor, file, *message
        )

    def send(self, message, *body):
        self.send_file(NO_FILE, message, *body)

    def send_file(self, file, message, *body):
        if message == "registered":
            change, kind, name, value, _ = body
            self.names.registered(change, Entry(kind, name, value, file))
        else:
            getattr(self.names, message)(*body)

    async def register(self, name, value="", file=NO_FILE):
        return await asyncio.to_thread(self.names.register, "kind", name, value, file)


def run(scenario):
    async def main():
        frontends = []
        registry = NameRegistry(lambda: frontends)
        frontends += [FrontEnd(registry) for _ in range(3)]
        await scenario(registry, frontends)

    asyncio.run(main())


def test_all_front_ends_know_a_name_when_it_is_registered():
    async def scenario(registry, frontends):
        assert await frontends[0].register("a", "slow")
        assert all("a" in one.taker.known for one in frontends)
        assert not await frontends[1].register("a")  # it is taken
        await asyncio.to_thread(frontends[2].names.unregister, "kind", ["a", "unknown"])
        assert not any(one.taker.known for one in frontends)
        assert await frontends[1].register("a")

    run(scenario)


def test_of_many_at_the_same_time_one_gets_the_name():
    async def scenario(registry, frontends):
        got = await asyncio.gather(
            *(one.register("a", number) for number, one in enumerate(frontends))
        )
        assert sorted(got) == [False, False, True]
        assert len({one.taker.known["a"] for one in frontends}) == 1

    run(scenario)


def test_a_name_that_one_cannot_use_is_used_by_none():
    async def scenario(registry, frontends):
        with pytest.raises(InvalidArgument, match="'bad' is bad"):
            await frontends[0].register("bad")
        assert registry.entries() == []
        assert not any(one.taker.known for one in frontends)

    run(scenario)


def test_one_that_starts_later_gets_the_same_file():
    async def scenario(registry, frontends):
        file, other = os.pipe()
        os.close(other)
        identity = os.fstat(file).st_ino
        assert await frontends[0].register("a", "value", file)
        later = FrontEnd(registry, registry.entries())
        files = [one.taker.known["a"][1] for one in (*frontends, later)]
        assert [os.fstat(each).st_ino for each in files] == [identity] * 4
        for each in set(files):
            os.close(each)

    run(scenario)


def test_one_that_has_ended_is_not_waited_for():
    async def scenario(registry, frontends):
        frontends[1].deaf = True
        registering = asyncio.ensure_future(frontends[0].register("a"))
        await frontends[1].taker.called.wait()
        registry.left(frontends[1])
        assert await registering

    run(scenario)


def test_models_that_a_platform_loads_are_known_to_every_front_end(tmp_path):
    """What one front end has loaded for SageMaker, another one unloads."""

    class Engine:
        def __getattr__(self, _method):
            return lambda *_, **__: False

    async def scenario(registry, frontends):
        models = [SageMakerModels(Engine(), one.names) for one in frontends]
        for one in models:
            one._root = tmp_path
        archive = tmp_path / "hash" / "model"
        archive.mkdir(parents=True)
        (archive / "config.pbtxt").write_text("")
        await asyncio.to_thread(models[0].load, "a", str(archive), "target")
        assert [one.find("a").target for one in models] == ["target"] * 3
        with pytest.raises(AlreadyExists):
            await asyncio.to_thread(models[1].load, "a", str(archive), "other")
        await asyncio.to_thread(models[1].unload, "a")
        assert [one.get("a") for one in models] == [None] * 3
        await asyncio.to_thread(models[2].load, "a", str(archive), "target")

    run(scenario)

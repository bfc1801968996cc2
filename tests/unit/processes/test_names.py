"""Names that all front ends know: the supervisor's side, and that of front ends, in one process."""

from __future__ import annotations

import asyncio
import os

import pytest

from shoal.core.dtypes import UINT8
from shoal.errors import AlreadyExists, InvalidArgument, NotFound
from shoal.frontends.clouds.sagemaker_models import SageMakerModels
from shoal.frontends.shared_memory import SharedMemory
from shoal.frontends.shared_names import NO_FILE
from shoal.processes.names import Entry, LinkedNames, NameRegistry
from shoal.testing import WAIT_SECS


class Taker:
    """Keeps names; those that begin with "bad" are refused."""

    def __init__(self):
        self.known = {}
        self.in_use = set()
        self.called = asyncio.Event()
        self.removed = asyncio.Event()

    def is_slow(self, value):
        return value == "slow"

    def add(self, name, value, file):
        if name.startswith("bad"):
            raise InvalidArgument(f"'{name}' is bad")
        self.known[name] = (value, file)
        self.called.set()

    def leave(self, name, unused):
        self.unused = unused
        return name in self.in_use

    def remove(self, name):
        self.known.pop(name, None)
        self.removed.set()


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
            elif message == "unused":
                registry.unused(*body)
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


@pytest.mark.parametrize("ended", [False, True])
def test_a_name_in_use_is_known_to_all_until_it_is_unused(ended):
    async def scenario(registry, frontends):
        user, *others = frontends
        assert await user.register("a")
        user.taker.in_use.add("a")
        for _ in range(2):  # the second one changes nothing
            await asyncio.to_thread(others[0].names.unregister, "kind", ["a"])
            assert all("a" in one.taker.known for one in frontends)
        assert not await others[1].register("a")
        others[1].taker.in_use.add("a")  # another request, elsewhere
        user.taker.in_use.clear()
        user.taker.unused()
        assert not await others[1].register("a")
        others[1].taker.in_use.clear()
        if ended:
            frontends.remove(others[1])
            registry.left(others[1])
        else:
            others[1].taker.unused()
        await asyncio.wait_for(user.taker.removed.wait(), WAIT_SECS)
        assert await others[0].register("a")
        others[0].taker.unused()  # of the earlier one
        assert not await user.register("a")

    run(scenario)


class Gpu:
    """A GPU as one process has it; `memory` is the same for all of them."""

    memory = bytearray(range(64))

    def __init__(self):
        self.open_blocks = 0
        self.closed = asyncio.Event()

    def open(self, handle, device_id, byte_size, name):
        if byte_size > len(self.memory):
            raise InvalidArgument(f"region '{name}' is too large")
        self.open_blocks += 1
        return self

    def read(self, offset, byte_size):
        return memoryview(bytes(self.memory[offset : offset + byte_size]))

    def write(self, offset, data):
        self.memory[offset : offset + len(data)] = data

    def close(self):
        self.open_blocks -= 1
        self.closed.set()


def test_regions_of_a_gpu_are_opened_by_every_front_end():
    async def scenario(registry, frontends):
        gpus = [Gpu() for _ in frontends]
        memories = [
            SharedMemory(names=one.names, find_cuda=lambda gpu=gpu: gpu)
            for one, gpu in zip(frontends, gpus, strict=True)
        ]
        first, second, third = memories

        async def register(memory, byte_size=64):
            await asyncio.to_thread(memory.register_cuda, "g", bytes(64), 0, byte_size)

        with pytest.raises(InvalidArgument, match="too large"):
            await register(first, 65)
        await register(first)
        for memory in memories:
            with pytest.raises(AlreadyExists, match="'g' already in manager"):
                await register(memory)
            assert memory.cuda_status("g") == [{"name": "g", "device_id": 0, "byte_size": 64}]
        lease, other = third.lease("g", 16, 4), second.lease("g", 16, 4)
        lease.write(b"crab")
        assert bytes(other.tensor("x", UINT8, (4,)).raw) == b"crab"
        other.release()
        gpus.append(Gpu())
        frontends.append(FrontEnd(registry, registry.entries()))  # one that starts later
        memories.append(SharedMemory(names=frontends[-1].names, find_cuda=lambda: gpus[-1]))
        await asyncio.to_thread(second.unregister_cuda, "g")
        for memory in memories:
            assert await asyncio.to_thread(memory.cuda_status, "g")
        assert [gpu.open_blocks for gpu in gpus] == [1] * 4
        lease.release()
        with pytest.raises(NotFound):  # at once, in each of them
            await asyncio.to_thread(second.cuda_status, "g")
        await asyncio.wait_for(gpus[-1].closed.wait(), WAIT_SECS)
        assert [gpu.open_blocks for gpu in gpus] == [0] * 4
        await register(third)

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

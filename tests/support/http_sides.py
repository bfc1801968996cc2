"""Two HTTP applications that serve one engine, one with the fast path and one without.

They receive the same bytes on connections without sockets and must write the same bytes, except for
the Date. All models run on the loop, so that a test sees one thing happen after the other.
"""

from __future__ import annotations

import asyncio
import re

import numpy as np

from shoal.backends.base import RequestExecutor
from shoal.backends.registry import BackendRegistry
from shoal.core import dtypes
from shoal.core.inbox import LoopInbox
from shoal.core.tensor import Tensor
from shoal.engine.local import LocalEngine
from shoal.errors import InvalidArgument
from shoal.frontends.http.application import Application
from shoal.frontends.http.clocks import ConnectionPhase
from shoal.frontends.http.head import parse_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.listener_state import ListenerState
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.http.reader import NOTHING
from shoal.frontends.http.routes import resolve
from shoal.instance.inline import LoopHandle
from shoal.repository.preparation import PreparationSettings
from shoal.repository.repository import ModelRepository, RepositorySettings
from shoal.statistics.model import FailureReason
from tests.support.fakes import WAIT_SECS, FakeBackend, FakeLoadedModel
from tests.support.repositories import add_model, parameter

DATE = re.compile(rb"Date: [^\r]*\r\n")
BROKEN = -666  # a model that sees this fails
MOST_HEADER_BYTES = 4096  # --http-max-input-size, small enough to be met

# ---- the models


def compute(inputs, outputs):
    """By the output's name, so that one function serves every model below."""
    arrays = list(inputs.values())
    first = arrays[0]
    if BROKEN in first:
        raise ValueError("broken")
    results = {
        "OUTPUT0": lambda: sum([one for one in arrays[1:] if one.dtype == first.dtype], first),
        "LAST": lambda: arrays[-1],
        "ENDLESS": lambda: np.where(first == 0, np.float32("-inf"), first),
        "OUTPUT1": lambda: first - arrays[-1],
        "FOUND": lambda: first[first != 0],
        "TEXT": lambda: np.array([b"%d" % item for item in first.flat], object).reshape(
            first.shape
        ),
    }
    return [results[name]() for name in outputs]


class Moody(RequestExecutor):
    """The first element of a request decides what comes back for it."""

    def __init__(self, owner):
        self.owner = owner

    def execute(self, batch):
        for pending in batch:
            tensor = pending.request.inputs["INPUT0"]
            row = tensor.array
            mood = int(row.flat[0])
            if mood == 1:
                pending.send([Tensor("OUTPUT1", dtypes.INT32, row.shape, array=row)])
            elif mood == 2:
                pending.send([Tensor("OUTPUT0", dtypes.FP32, row.shape, raw=bytes(tensor.raw))])
            elif mood == 3:
                pending.send(error=InvalidArgument("not today"))
            elif mood == 4:
                output = Tensor("OUTPUT0", dtypes.INT32, row.shape, array=row)
                pending.send([output], parameters={"mood": 'a "quoted" one'})
            elif mood == 5:
                pending.send([])
            else:
                pending.send([Tensor("OUTPUT0", dtypes.INT32, row.shape, array=row)])

    def close(self):
        self.owner.open_executors -= 1


class MoodyModel(FakeLoadedModel):
    may_run_on_loop = True

    def executor(self, placement):
        del placement
        self.owner.open_executors += 1
        return Moody(self.owner)


class Models(FakeBackend):
    """Everything runs on the loop, so that a test sees one thing happen after the other."""

    def load(self, context):
        loaded = super().load(context)
        if context.config.name == "moody":
            return MoodyModel(self)
        loaded.may_run_on_loop = True
        return loaded


def tensors(kind, entries, more=""):
    return "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {more} }}\n'
        for name, datatype, dims in entries
    )


def config(rows, inputs, outputs, more=""):
    head = f'backend: "fake"\nmax_batch_size: {rows}\ninstance_group {{ kind: KIND_CPU }}\n'
    return head + tensors("input", inputs) + tensors("output", outputs) + more


BATCHED = "dynamic_batching { }\n"
TWO = (("INPUT0", "INT32", "3"), ("INPUT1", "INT32", "3"))
CONFIGS = {
    "sum": config(4, TWO, (("OUTPUT0", "INT32", "3"), ("OUTPUT1", "INT32", "3")), BATCHED),
    "free": config(0, [("INPUT0", "FP32", "-1, 2")], [("OUTPUT0", "FP32", "-1, 2")]),
    "finds": config(0, [("INPUT0", "INT16", "-1")], [("FOUND", "INT16", "-1")]),
    "both": config(
        0, [("INPUT0", "INT16", "-1")], [("OUTPUT0", "INT16", "-1"), ("FOUND", "INT16", "-1")]
    ),
    "says": config(4, [("INPUT0", "INT32", "2")], [("TEXT", "STRING", "2")], BATCHED),
    "reads": config(4, [("INPUT0", "STRING", "2")], [("OUTPUT0", "STRING", "2")]),
    "moody": config(
        4, [("INPUT0", "INT32", "2")], [("OUTPUT0", "INT32", "2"), ("OUTPUT1", "INT32", "2")]
    ),
    "full": config(
        4,
        [("INPUT0", "INT32", "2")],
        [("OUTPUT0", "INT32", "2")],
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } priority_levels: 2 "
        "default_priority_level: 2 }\n",
    ),
    "brim": config(
        4,
        [("INPUT0", "INT32", "2")],
        [("OUTPUT0", "INT32", "2")],
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n",
    ),
    "shaped": 'backend: "fake"\nmax_batch_size: 4\ninstance_group { kind: KIND_CPU }\n'
    + tensors("input", [("INPUT0", "INT64", "2, 2")], "reshape { shape: [ 4 ] }")
    + tensors("output", [("OUTPUT0", "INT64", "2, 2")], "reshape { shape: [ 4 ] }"),
}
for datatype in ("BOOL", "UINT8", "UINT64", "INT8", "INT64", "FP32", "FP64"):
    CONFIGS[datatype.lower()] = config(
        4, [("INPUT0", datatype, "3")], [("OUTPUT0", datatype, "3")], BATCHED
    )
CONFIGS["half"] = config(4, [("INPUT0", "FP32", "3")], [("OUTPUT0", "FP16", "3")], BATCHED)
CONFIGS["endless"] = config(4, [("INPUT0", "FP32", "3")], [("ENDLESS", "FP32", "3")], BATCHED)
CONFIGS["mixed"] = config(
    0,
    [("INPUT0", "FP32", "-1"), ("INPUT1", "BOOL", "2"), ("INPUT2", "INT64", "1")],
    [("OUTPUT0", "FP32", "-1"), ("LAST", "INT64", "1")],
)
CONFIGS["steps"] = config(
    4,
    [("INPUT0", "INT32", "2")],
    [("OUTPUT0", "INT32", "2")],
    "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n",
)
CONFIGS["chain"] = (
    'platform: "ensemble"\nmax_batch_size: 4\n'
    + tensors("input", [("IN", "INT64", "2, 2")])
    + tensors("output", [("OUT", "INT64", "2, 2")])
    + """ensemble_scheduling { step { model_name: "shaped" model_version: -1
           input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" } } }
    """
)
# What `sum` may be replaced by: other shapes, other datatypes, no batches.
REPLACEMENTS = {
    "as it was": CONFIGS["sum"],
    "floats": CONFIGS["sum"].replace("INT32", "FP32"),
    "narrow": CONFIGS["sum"].replace("dims: [ 3 ]", "dims: [ 2 ]"),
    "unbatched": config(0, TWO, (("OUTPUT0", "INT32", "3"),)),
    "doubled": CONFIGS["sum"] + parameter("note", "2"),
}
LABELS = b"cat\ndog\nfish\n"
CONFIGS["sum"] = CONFIGS["sum"].replace(
    'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 3 ]  }',
    'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 3 ] label_filename: "labels" }',
)

# ---- the two applications


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.wrote = asyncio.Event()
        self.ended = ""

    def get_extra_info(self, _name, default=None):
        return default

    def write(self, data):
        self.written.append(bytes(data))
        self.wrote.set()

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return bool(self.ended)

    def can_write_eof(self):
        return False

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "aborted"


class Client:
    """One connection, for one request at a time."""

    def __init__(self, state):
        self.state = state
        self.transport = Transport()
        self.connection = HttpConnection(state)
        self.connection.connection_made(self.transport)

    def send(self, data):
        """Deliver the bytes as a socket would: into the buffers the connection offers."""
        self.transport.written.clear()
        self.send_more(data)

    def send_more(self, data):
        view = memoryview(data)
        while view:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.connection.buffer_updated(count)
            view = view[count:]

    @property
    def usable(self):
        """Whether it may send another request: none of its bytes waits for more."""
        reader = self.connection._reader
        if self.connection.phase is not ConnectionPhase.OPEN:
            return False
        return not (self.transport.ended or reader.waiting_bytes or reader.arriving is not NOTHING)

    async def answered(self):
        """Wait until the whole answer has been written."""
        while self.connection.busy or not self.transport.written:
            await self.transport.wrote.wait()
            self.transport.wrote.clear()

    @property
    def answer(self):
        return DATE.sub(b"", b"".join(self.transport.written)), self.transport.ended


class Side:
    """One of the two applications with its listener's state."""

    def __init__(self, world, *, plans, limits=None, **options):
        options = {"max_input_bytes": MOST_HEADER_BYTES, **options}
        self.application = Application(
            world.engine, world.inbox, HttpOptions(plans=plans, **options)
        )
        self.state = ListenerState(
            self.application.handle, limits or HttpLimits(), self.application.fast_path
        )
        if not plans:
            assert self.state.fast_path is None
            self.state.heads.parse = parse_head
        endpoint = resolve("/v2/models/m/infer").route.endpoints["POST"]
        self.route = self.application._handlers[endpoint].__self__
        self.clients = []

    async def ask(self, datas):
        """Send each request on a connection of its own, all in one turn; their answers. The next
        ones go over the same connections, as far as those are open."""
        self.clients = [client for client in self.clients if client.usable]
        self.clients += [Client(self.state) for _ in datas[len(self.clients) :]]
        clients = self.clients[: len(datas)]
        for client, data in zip(clients, datas, strict=True):
            client.send(data)

        for client in clients:
            await asyncio.wait_for(client.answered(), WAIT_SECS)
        return [client.answer for client in clients]

    def close(self):
        for client in self.clients:
            client.connection.connection_lost(None)
        self.application.close()


class World:
    """An engine on an event loop of the test's, with models in a folder, by default all above."""

    def __init__(self, folder, configs=CONFIGS):
        self.loop = asyncio.new_event_loop()
        handle = LoopHandle()
        handle.bind(self.loop)
        self.inbox = LoopInbox(self.loop, handle.after_reading)
        self.backend = Models(compute)
        for name, text in configs.items():
            versions = (1, 2) if name == "sum" else (1,)
            policy = "version_policy { all { } }\n" if name == "sum" else ""
            add_model(folder, name, text + policy, {"labels": LABELS}, versions=versions)
        self.folder = folder
        self.repository = ModelRepository(
            RepositorySettings(
                paths=[folder],
                control_mode="explicit",
                load_models=["*"],
                preparation=PreparationSettings(
                    loop=handle,
                    execution="loop",
                    backends=BackendRegistry({"fake": lambda: self.backend}),
                ),
            )
        )
        self.engine = LocalEngine(self.repository)
        self.planned = 0
        infer_group = self.engine.infer_group

        def count_all(requests, model):
            left = infer_group(requests, model)
            self.planned += len(requests) - len(left)
            return left

        self.engine.infer_group = count_all
        assert self.run(self.off_loop(self.repository.start)) == {}
        self.engine.started()
        self.changed = False

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def cancelled(self):
        """How many requests the models counted as cancelled."""
        readings = [model.statistics.read() for model in self.repository.models()]
        return sum(reading.failures[FailureReason.CANCELED] for reading in readings)

    async def off_loop(self, work, *arguments):
        return await self.loop.run_in_executor(None, work, *arguments)

    def sides(self, **options):
        return Side(self, plans=True, **options), Side(self, plans=False, **options)

    def compare(self, sides, datas):
        """Both sides' answers, which must be equal."""
        short, long = (self.run(side.ask(datas)) for side in sides)
        assert short == long
        for answer, _ in short:
            assert b"internal error" not in answer
        return [answer for answer, _ in short]

    def replace(self, name):
        """Put another model in the place of `sum`."""
        path = self.folder / "sum" / "config.pbtxt"
        path.write_text(REPLACEMENTS[name] + "version_policy { all { } }\n")
        self.run(self.off_loop(self.repository.load, "sum", None, {}))
        self.changed = name != "as it was"

    def close(self):
        self.run(self.off_loop(self.repository.stop))
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

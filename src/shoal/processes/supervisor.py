"""Starts the processes of a server, connects them, and restarts what ends.

bind the ports ─▶ engine, front ends ─▶ links between them ─▶ loaded ─▶ until a signal arrives
stop: front ends finish what they have received ─▶ the engine unloads ─▶ exit
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import pickle
import socket
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from shoal import settings
from shoal.config.options import Options
from shoal.errors import Internal, ShoalError
from shoal.frontends.shared_names import NO_FILE
from shoal.link import failure
from shoal.link.channel import ChannelClosed
from shoal.link.counters import SharedCounters
from shoal.link.process import ChildProcess
from shoal.logs import Log
from shoal.processes import journal
from shoal.processes.listening import ListeningPorts
from shoal.processes.names import Entry, NameRegistry
from shoal.serving import ModelsFailed

logger = logging.getLogger(__name__)

_ENGINE, _FRONTEND = "shoal.processes.engine", "shoal.processes.frontend"
_FIRST_REST_SECS, _LONGEST_REST_SECS = 0.1, 10.0
_LONG_LIFE_SECS = 30.0  # a process that lived this long is restarted at once
_INIT = 1  # the process that gets those whose parent has ended, in a container
_REAP_SECS = 1.0
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0
_LAST_SECS = 2.0  # after the time to stop, for the last message of a process


class _Process:
    """A child, its control link on the supervisor's loop, and whether it has ended."""

    def __init__(
        self,
        module: str,
        name: str,
        files: list[int],
        handlers: dict[str, Callable[..., None]],
        ended: Callable[[_Process, str], None],
    ) -> None:
        """Raises Internal if it cannot be started. `ended` is called once, on the loop."""
        self.name = name
        self.started_at = time.monotonic()
        self._child = ChildProcess(module, name, files=files)
        self._answered = asyncio.Event()  # the last ping is answered
        self._handlers: dict[str, Callable[..., None]] = {
            "hello": self._child.check_version,
            "failed": self._take_problem,
            "pong": self._answered.set,
            **handlers,
        }
        self.problem: ShoalError | None = None  # for which it has ended
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._loop.add_reader(self._child.link.fileno(), self._read)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    def _read(self) -> None:
        try:
            received = self._child.link.receive()
        except ChannelClosed:
            self._loop.remove_reader(self._child.link.fileno())
            self._loop.create_task(self._see_off())
            return
        for kind, body in received:
            try:
                self._handlers[kind](*body)
            except ShoalError as error:  # it is of another version
                self.problem = error

    def _take_problem(self, packed: Any) -> None:
        self.problem = failure.unpack(packed)

    async def _see_off(self) -> None:
        ending = await asyncio.to_thread(self._child.ending)
        await asyncio.to_thread(self._child.end)
        self._child.link.close()
        self.gone.set()
        self._answered.set()
        self._ended(self, ending if self.problem is None else self.problem.message)

    def send(self, kind: str, *body: Any) -> None:
        """Send it a message; one that has ended does not need it."""
        with contextlib.suppress(ChannelClosed):
            self._child.link.send(kind, *body)

    def send_file(self, file: int, kind: str, *body: Any) -> None:
        """Send it a message with an open file, which is closed here."""
        with contextlib.suppress(ChannelClosed):
            self._child.link.send_files(kind, *body, files=[file])

    def take_file(self) -> int:
        """A descriptor that came with the message that is being handled."""
        return self._child.link.take_file()

    def pass_socket(self, end: socket.socket, *whose: Any) -> None:
        """Give it one end of a link; `whose` is who has the other one."""
        self.send_file(end.detach(), "link", *whose)

    async def responds(self) -> None:
        """Wait until its event loop has answered, or until it has ended."""
        if not self.gone.is_set():
            self._answered.clear()
            self.send("ping")
            await self._answered.wait()

    async def end(self, secs: float) -> bool:
        """Wait for its end, and enforce it after that time: then the result is false."""
        try:
            await asyncio.wait_for(self.gone.wait(), secs)
        except asyncio.TimeoutError:
            logger.warning("the process of %s does not stop; it is killed", self.name)
            self._child.kill()
            await self.gone.wait()
            return False
        return True


class Supervisor:
    """The processes of one server. Its methods belong to the thread of one event loop."""

    def __init__(self, options: Options, frontends: int, *, log: Log | None = None) -> None:
        """Starts nothing yet. `frontends` is the number of front ends; `log` gets the settings that
        clients change."""
        self.options = options
        self._log = log
        self._count = frontends
        self.ports = ListeningPorts()
        self._engine: _Process | None = None
        self._serving_engine: _Process | None = None  # the same, once front ends may use it
        self._frontends: dict[int, _Process] = {}
        self._counters_file = SharedCounters.make(frontends)
        self._names = NameRegistry(lambda: list(self._frontends.values()))
        self._rests: dict[str, float] = {}
        self._calls: journal.Calls = {}
        loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[list[dict[str, str]]] = loop.create_future()
        self._loaded.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._was_loaded = False
        self._stopping = False
        self._clean = True
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- start

    async def start(self) -> None:
        """Open the ports and start all processes; returns when the models have been loaded or
        tried.

        Raises a ShoalError for a port that cannot be opened, and as `Server.load` for models.
        Call `stop` in any case.
        """
        if os.getpid() == _INIT:
            self._run(self._reap_orphans())
        self.options = await self.ports.bind(self.options)
        self._start_engine()
        listening = [self._start_frontend(index, at_start=True) for index in range(self._count)]
        await asyncio.gather(*listening)
        index = await self._loaded
        for number, frontend in enumerate(self._frontends.values()):
            frontend.send("loaded", index, number == 0)

    def _start_engine(self) -> None:
        engine = self._engine = _Process(
            _ENGINE,
            "the engine",
            [],
            {"loaded": self._take_loaded, "controlled": self._record, "stopped": self._take_end},
            self._engine_ended,
        )
        engine.send("start", pickle.dumps(self.options), len(self._calls))
        for call in self._calls.values():  # one message each: they have files of models
            engine.send("repeat", list(call))
        if not self._was_loaded:
            self._connect_all(engine)

    def _connect_all(self, engine: _Process) -> None:
        self._serving_engine = engine
        for frontend in self._frontends.values():
            self._connect(frontend)

    def _record(self, method: str, *arguments: Any) -> None:
        journal.record(self._calls, method, *arguments)
        if method == "update_log_settings" and self._log is not None:
            self._log.update(**arguments[0])

    def _take_loaded(self, packed: Any, reasons: list[str], index: list[dict[str, str]]) -> None:
        if self._was_loaded and self._engine is not None:
            # It stands in for one that has ended: until now, requests were refused for a moment.
            if packed is not None:
                message = failure.unpack(packed).message
                logger.error("not everything is as before: %s", "; ".join([message, *reasons]))
            self._connect_all(self._engine)
        if self._loaded.done():
            return
        try:
            if packed is not None:
                raise ModelsFailed(reasons) if reasons else failure.unpack(packed)
            if self.options.allow_vertex_ai:
                model = settings.vertex_ai_model(self.options, index)
                self.options = dataclasses.replace(self.options, vertex_ai_default_model=model)
        except ShoalError as error:
            self._loaded.set_exception(error)
            return
        self._was_loaded = True
        self._loaded.set_result(index)

    def _start_frontend(self, index: int, *, at_start: bool = False) -> asyncio.Future[None]:
        """Start one; the result says whether it listens. One that ends is replaced, unless that is
        `at_start`, before any has listened in its place: then the server does not start."""
        listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def listens() -> None:
            if not listening.done():
                listening.set_result(None)

        def ended(process: _Process, ending: str) -> None:
            self._names.left(process)
            replace = not at_start or listening.done()
            if not listening.done():
                listening.set_exception(
                    process.problem or Internal(f"front end {index} could not be started: {ending}")
                )
            self._frontend_ended(index, process, ending, replace=replace)

        def register(number: int, kind: str, name: str, value: Any, has_file: bool) -> None:
            file = frontend.take_file() if has_file else NO_FILE
            self._names.register(frontend, number, Entry(kind, name, value, file))

        def unregister(number: int, kind: str, names: list[str]) -> None:
            self._names.unregister(frontend, number, kind, names)

        def known(change: int, answered: Any) -> None:
            self._names.known(frontend, change, answered)

        frontend = self._frontends[index] = _Process(
            _FRONTEND,
            f"front end {index}",
            [*self.ports.files(), *self._names.files(), self._counters_file],
            {
                "listening": listens,
                "register": register,
                "unregister": unregister,
                "known": known,
                "unused": self._names.unused,
                "unlinked": lambda: self._connect_again(frontend),
                "stopped": self._take_end,
            },
            ended,
        )
        more = (
            self.ports.inherited(),
            [tuple(entry) for entry in self._names.entries()],
            (self._counters_file, self._count, index),
        )
        frontend.send("start", pickle.dumps(self.options), more)
        self._connect(frontend)
        return listening

    def _connect(self, frontend: _Process) -> None:
        """Give a front end and the engine the two ends of a new link."""
        engine = self._serving_engine
        if engine is None:
            return
        ours, theirs = socket.socketpair()
        engine.pass_socket(ours, frontend.name.replace("front end ", "frontend-"), frontend.pid)
        frontend.pass_socket(theirs)

    def _connect_again(self, frontend: _Process) -> None:
        """Replace a link that has ended although both processes may be well."""
        engine = self._serving_engine

        def connect() -> None:
            if engine is self._serving_engine and not frontend.gone.is_set():
                self._connect(frontend)

        if not self._stopping and engine is not None:  # its end is seen in a moment, if it has one
            asyncio.get_running_loop().call_later(_FIRST_REST_SECS, connect)

    # ---- restarts

    def _engine_ended(self, process: _Process, ending: str) -> None:
        self._engine = self._serving_engine = None
        if self._stopping:
            return
        if not self._loaded.done():
            self._loaded.set_exception(
                process.problem or Internal(f"the engine process ended: {ending}")
            )
            return
        self._restart(process, ending, self._start_engine)

    def _frontend_ended(self, index: int, process: _Process, ending: str, *, replace: bool) -> None:
        self._frontends.pop(index, None)
        SharedCounters(self._counters_file, self._count, index).clear()
        if not self._stopping and replace:

            def start() -> None:
                listening = self._start_frontend(index)
                listening.add_done_callback(lambda future: future.exception())

            self._restart(process, ending, start)

    def _restart(self, process: _Process, ending: str, start: Callable[[], None]) -> None:
        """Start another process in place of one that has ended, with increasing pauses if it keeps
        ending."""
        name = process.name
        rest = self._rests.get(name, 0.0)
        if time.monotonic() - process.started_at > _LONG_LIFE_SECS:
            rest = 0.0
        self._rests[name] = min(max(_FIRST_REST_SECS, rest * 2), _LONGEST_REST_SECS)
        logger.error(
            "the process of %s has ended: %s; it is restarted%s",
            name,
            ending,
            f" in {rest:g} s" if rest else "",
        )

        async def again() -> None:
            await asyncio.sleep(rest)
            while not self._stopping:
                try:
                    start()
                except ShoalError as error:
                    logger.error("%s", error.message)  # noqa: TRY400 - a sentence is enough
                    await asyncio.sleep(self._rests[name])
                else:
                    return

        self._run(again())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reap_orphans(self) -> None:
        """Wait for processes of models and of their programs whose own parent has ended."""
        while True:
            await asyncio.sleep(_REAP_SECS)
            own = {process.pid for process in (*self._frontends.values(), self._engine) if process}
            _reap_others(own)

    # ---- while it runs

    left_behind = False  # no thread of this process runs a model

    @property
    def http_port(self) -> int:
        """The actual port, once it listens."""
        return self.options.http_port

    @property
    def metrics_port(self) -> int:
        """The actual port, once it listens."""
        return self.options.metrics_port

    @property
    def engine_pid(self) -> int:
        """The number of the engine process; 0 while there is none."""
        return 0 if self._engine is None else self._engine.pid

    async def responds(self) -> None:
        """Wait until the event loops of all processes have answered. Those that are being replaced
        are not waited for."""
        running = [each for each in (self._engine, *self._frontends.values()) if each is not None]
        await asyncio.gather(*(process.responds() for process in running))

    def reload(self) -> None:
        """SIGHUP: every process reads its files again."""
        if self._log is not None:
            try:
                self._log.reopen()
            except OSError as error:
                logger.error("the log file cannot be opened: %s", error)  # noqa: TRY400
        for process in (*self._frontends.values(), self._engine):
            if process is not None:
                process.send("reload")

    # ---- stop

    def _take_end(self, clean: bool) -> None:
        self._clean = self._clean and clean

    async def stop(self) -> bool:
        """Shut down in order, however far `start` got. False if that took longer than the exit
        timeout. A second call does nothing."""
        if self._stopping:
            return self._clean
        self._stopping = True
        options = self.options
        if self._engine is not None:
            self._engine.send("begin_exit")
        drain_secs = options.drain_secs if self._was_loaded else 0.0
        secs = float(options.exit_timeout_secs)
        deadline = time.monotonic() + drain_secs + secs
        frontends = list(self._frontends.values())
        for frontend in frontends:
            frontend.send("stop", secs, drain_secs)
        last_secs = drain_secs + secs + _LAST_SECS
        in_time = await asyncio.gather(*(frontend.end(last_secs) for frontend in frontends))
        self._clean = self._clean and all(in_time)
        if self._engine is not None:
            left_secs = max(0.0, deadline - time.monotonic())
            engine = self._engine
            engine.send("stop", left_secs)
            self._clean = await engine.end(left_secs + _LAST_SECS) and self._clean
        self.ports.close()
        self._names.close()
        os.close(self._counters_file)
        for task in self._tasks:
            task.cancel()
        return self._clean


def _reap_others(own: Collection[int]) -> None:
    """Wait for children that have ended, except our own, for which threads wait."""
    with contextlib.suppress(ChildProcessError):  # there are no children
        while (ended := os.waitid(os.P_ALL, 0, _LOOK)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)

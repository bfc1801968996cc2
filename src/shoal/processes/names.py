"""Names that all front ends know: kept by the supervisor, used by every front end.

    front end --register--> supervisor --registered--> every front end --known--> supervisor
              <-----------settled-----------------------------------------------------'

The supervisor makes one change at a time, and keeps the open files, so that a front end that starts
later gets the same ones. It does not wait for one that does not answer. A name that requests use
while it is unregistered stays until they have ended:

    front end --unregister--> supervisor --leaving--> every front end --known, in use or not--> ...
    front end, after its last request --unused--> supervisor, which asks all of them again
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple, Protocol

from shoal.errors import Internal, ShoalError, Unavailable
from shoal.frontends.shared_names import NO_FILE, NameTaker
from shoal.link import failure

logger = logging.getLogger(__name__)

_KNOWN_SECS = 1.0  # for all front ends to use a name that they are given an open file for
_OPENED_SECS = 10.0  # ... that they have to open themselves: the first use of a GPU takes long
_ANSWER_SECS = 60.0  # for the supervisor, which may have other changes to make first
_TAKEN = "taken"


class Entry(NamedTuple):
    """A name, as front ends get it when they start."""

    kind: str
    name: str
    value: Any
    file: int  # an open file, or NO_FILE


class FrontEnd(Protocol):
    """A front end, as the supervisor has it."""

    def send(self, kind: str, *body: Any) -> None:
        """Send it a message."""

    def send_file(self, file: int, kind: str, *body: Any) -> None:
        """Send it a message with an open file, which is closed here."""


class NameRegistry:
    """The names, in the supervisor. For its loop's thread."""

    def __init__(self, frontends: Callable[[], Iterable[FrontEnd]]) -> None:
        """`frontends` are those that run at the moment."""
        self._frontends = frontends
        self._entries: dict[tuple[str, str], Entry] = {}
        self._leaving: set[tuple[str, str]] = set()  # those to be removed when they are unused
        self._changing = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[FrontEnd, asyncio.Future[Any]] = {}
        self._change = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def entries(self) -> list[Entry]:
        """All of them, for a front end that starts."""
        return list(self._entries.values())

    def files(self) -> list[int]:
        """The open files among them."""
        return [entry.file for entry in self._entries.values() if entry.file != NO_FILE]

    def register(self, asking: FrontEnd, number: int, entry: Entry) -> None:
        """A front end asks for a name."""
        self._start(self._register(asking, number, entry))

    async def _register(self, asking: FrontEnd, number: int, entry: Entry) -> None:
        async with self._changing:
            key = (entry.kind, entry.name)
            if key in self._entries:
                _close(entry)
                asking.send("settled", number, _TAKEN)
                return
            self._entries[key] = entry
            secs = _OPENED_SECS if entry.file == NO_FILE else _KNOWN_SECS
            problem = await self._tell(lambda one, change: _send_entry(one, change, entry), secs)
            if problem is not None:
                await self._remove(key)
            asking.send("settled", number, problem)

    def unregister(self, asking: FrontEnd, number: int, kind: str, names: list[str]) -> None:
        """A front end asks to remove names."""
        self._start(self._unregister(asking, number, kind, names))

    async def _unregister(self, asking: FrontEnd, number: int, kind: str, names: list[str]) -> None:
        async with self._changing:
            for name in names:
                if (kind, name) in self._entries:
                    self._leaving.add((kind, name))
                    await self._remove_unused((kind, name))
            asking.send("settled", number, None)

    def unused(self, kind: str, name: str) -> None:
        """A front end no longer uses a name that was unregistered."""
        self._start(self._remove_later((kind, name)))

    async def _remove_later(self, key: tuple[str, str]) -> None:
        async with self._changing:
            if key in self._leaving:
                await self._remove_unused(key)

    async def _remove_unused(self, key: tuple[str, str]) -> None:
        """Remove a name unless a front end uses it."""
        if not await self._tell(lambda one, change: one.send("leaving", change, *key), _KNOWN_SECS):
            await self._remove(key)

    async def _remove(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key)
        self._leaving.discard(key)
        await self._tell(lambda one, change: one.send("unregistered", change, *key), _KNOWN_SECS)
        _close(entry)

    async def _tell(self, send: Callable[[FrontEnd, int], None], secs: float) -> Any:
        """Tell all front ends, and wait until they know, at most `secs`; returns the first error,
        or that one uses the name."""
        change = self._change = next(self._numbers)
        loop = asyncio.get_running_loop()
        self._waiting = {one: loop.create_future() for one in self._frontends()}
        waiting = list(self._waiting.values())
        for one in list(self._waiting):
            send(one, change)
        if waiting:
            await asyncio.wait(waiting, timeout=secs)
        self._waiting = {}
        answers = [future.result() for future in waiting if future.done()]
        return next((answer for answer in answers if answer is not None), None)

    def known(self, frontend: FrontEnd, change: int, answered: Any) -> None:
        """A front end has made a change, or could not."""
        answer = self._waiting.get(frontend)
        if answer is not None and change == self._change and not answer.done():
            answer.set_result(answered)

    def left(self, frontend: FrontEnd) -> None:
        """A front end has ended: do not wait for it."""
        answer = self._waiting.get(frontend)
        if answer is not None and not answer.done():
            answer.set_result(None)
        for key in self._leaving:
            self.unused(*key)

    def close(self) -> None:
        """All front ends have ended."""
        for task in self._tasks:
            task.cancel()
        for entry in self._entries.values():
            _close(entry)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _send_entry(one: FrontEnd, change: int, entry: Entry) -> None:
    if entry.file == NO_FILE:
        one.send("registered", change, *entry[:3], False)
    else:
        one.send_file(os.dup(entry.file), "registered", change, *entry[:3], True)


def _close(entry: Entry) -> None:
    if entry.file != NO_FILE:
        os.close(entry.file)


class LinkedNames:
    """`SharedNames` of one front end."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """`entries` are those that there were when this process started."""
        self._early = list(entries)
        self._takers: dict[str, NameTaker] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards _asked
        self._asked: dict[int, Future[Any]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-names")
        # To the supervisor: `send_file` and `send` of the control link, once there is one.
        self.send: Callable[..., None] = _send_nothing
        self.send_file: Callable[..., None] = _send_nothing

    def attach(self, kind: str, taker: NameTaker) -> None:
        """See `SharedNames`."""
        self._takers[kind] = taker
        for entry in self._early:
            if entry.kind == kind:
                try:
                    taker.add(entry.name, entry.value, entry.file)
                except ShoalError as error:
                    logger.error(  # noqa: TRY400 - a sentence, not a traceback
                        "front end: the %s '%s' cannot be used: %s", kind, entry.name, error.message
                    )
        self._early = [entry for entry in self._early if entry.kind != kind]

    def register(self, kind: str, name: str, value: Any, file: int = NO_FILE) -> bool:
        """See `SharedNames`."""
        if file == NO_FILE:
            answer = self._ask(self.send, "register", kind, name, value, False)
        else:
            answer = self._ask(
                lambda *body: self.send_file(file, *body), "register", kind, name, value, True
            )
        return bool(answer != _TAKEN)

    def unregister(self, kind: str, names: list[str]) -> None:
        """See `SharedNames`."""
        self._ask(self.send, "unregister", kind, names)

    def _ask(self, send: Callable[..., None], message: str, *body: Any) -> Any:
        """Send a message with a number, and wait for the answer. Raises its error."""
        answer: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            self._asked[number] = answer
        send(message, number, *body)
        try:
            outcome = answer.result(_ANSWER_SECS)
        except FutureTimeoutError:
            raise Unavailable("the server's processes do not answer; try again later") from None
        if outcome is not None and outcome != _TAKEN:
            raise failure.unpack(outcome)
        return outcome

    # ---- messages of the supervisor, on the loop

    def settled(self, number: int, outcome: Any) -> None:
        """What this process has asked for is done, or not."""
        with self._lock:
            answer = self._asked.pop(number)
        answer.set_result(outcome)

    def registered(self, change: int, entry: Entry) -> None:
        """Use a name from now on."""
        taker = self._takers.get(entry.kind)
        if taker is None:  # another port has it
            _close(entry)
            self.send("known", change, None)
        elif taker.is_slow(entry.value):
            self._thread.submit(self._add, taker, change, entry)
        else:
            self._add(taker, change, entry)

    def _add(self, taker: NameTaker, change: int, entry: Entry) -> None:
        problem: Any = None
        try:
            taker.add(entry.name, entry.value, entry.file)
        except ShoalError as error:
            problem = failure.pack(error)
        except Exception as error:
            logger.exception("a name could not be used")
            problem = failure.pack(Internal(f"{type(error).__name__}: {error}"))
        self.send("known", change, problem)

    def leaving(self, change: int, kind: str, name: str) -> None:
        """A name is to be removed: say whether it is in use, and later that it no longer is."""
        taker = self._takers.get(kind)

        def unused() -> None:
            self.send("unused", kind, name)

        self.send("known", change, (taker is not None and taker.leave(name, unused)) or None)

    def unregistered(self, change: int, kind: str, name: str) -> None:
        """Use a name no longer."""
        with contextlib.suppress(KeyError):
            self._takers[kind].remove(name)
        self.send("known", change, None)


def _send_nothing(*_: Any) -> None:
    raise Unavailable("the server is starting; try again in a moment")

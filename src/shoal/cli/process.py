"""The process of a server: its event loop, signals and exit code.

SIGINT, SIGTERM --> Server.stop --> 0, or 1 when that took too long or starting failed
SIGHUP --> Server.reloads: files are read again
systemd gets to know each of these steps: service_manager.py
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from shoal import settings
from shoal.cli.service_manager import ServiceManager
from shoal.config.options import Options
from shoal.errors import ShoalError
from shoal.inprocess.loop import new_event_loop
from shoal.logs import Log
from shoal.repository import memory
from shoal.server import ModelsFailed, Server

if TYPE_CHECKING:
    from shoal.processes.supervisor import Supervisor

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
OnReady = Callable[["Server | Supervisor"], None]


def run(options: Options, *, on_ready: OnReady | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code, after a line on stderr if it is 1.

    `on_ready` is called once, after start-up. If threads cannot be stopped (a model that never
    returns, a load in progress) the process exits here.
    Raises InvalidArgument when the log cannot be opened.
    """
    if sys.stderr is not None:  # a crash in native code prints the frames of all threads
        faulthandler.enable()
    log = settings.open_log(options)
    log.install()
    try:
        for line in options.warnings():
            logger.warning("%s", line)
        with memory.excluding():
            code, left_behind = _run_on_new_loop(_live(options, on_ready, log))
    finally:
        log.close()
    if left_behind:
        sys.stdout.flush()
        os._exit(code)
    return code


async def _live(options: Options, on_ready: OnReady | None, log: Log) -> tuple[int, bool]:
    """Run the server. Returns the exit code and whether threads are still running."""
    frontends = settings.frontend_processes(options)
    manager = ServiceManager()
    server: Server | Supervisor
    if frontends == 1:
        server = Server(options, log=log)
        manager.starting()
    else:
        from shoal.processes.supervisor import Supervisor

        server = Supervisor(options, frontends, log=log)
        manager.starting(server.responds)
    with _signals(server.reload) as stop_requested:
        starting = asyncio.ensure_future(server.start())
        stopping = asyncio.ensure_future(stop_requested.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        code = 0
        if starting.done():
            try:
                starting.result()
            except ShoalError as error:
                print_error(error)
                code = 1
            except Exception:  # a bug: log its traceback
                logger.exception("the server failed to start")
                code = 1
            else:
                if on_ready is not None:
                    on_ready(server)
                manager.ready()
                await stopping
        starting.cancel()
        stopping.cancel()
        manager.stopping(options.drain_secs, options.exit_timeout_secs)
        clean = await server.stop()
    return (code if clean else 1), server.left_behind


def print_error(error: ShoalError) -> None:
    """Print the error on stderr; each failed model has its own line."""
    if isinstance(error, ModelsFailed):
        print(f"error: creating server: {error.code.value} - {error.message}", file=sys.stderr)
        for reason in error.reasons:
            print(f"error: {reason}", file=sys.stderr)
    else:
        print(f"error: {error.message}", file=sys.stderr)


@contextlib.contextmanager
def _signals(reload: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set; further ones are ignored. SIGHUP calls `reload`."""
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def obey(number: int) -> None:
        name = signal.Signals(number).name
        if name == "SIGHUP":
            logger.info("SIGHUP: reloading")
            reload()
        elif stop_requested.is_set():
            logger.info("%s: already stopping", name)
        else:
            logger.info("%s: stopping", name)
            stop_requested.set()

    def interrupted(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(obey, number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":  # Ctrl-Break, which service managers can send
        numbers.append(signal.SIGBREAK)
    else:
        numbers.append(signal.SIGHUP)
    # Unlike loop.add_signal_handler, this works on every platform; Python wakes the loop.
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_on_new_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on a new event loop."""
    loop = new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)

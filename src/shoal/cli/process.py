"""The process around a server: its event loop, its signals, its exit code.

SIGINT, SIGTERM --> Server.stop --> 0, or 1 when that took too long or starting failed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from shoal.config.options import Options
from shoal.errors import InvalidArgument, ShoalError
from shoal.inprocess.loop import new_event_loop
from shoal.logs import Log, LogSettings
from shoal.server import ModelsFailed, Server

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
OnReady = Callable[[Server], None]


def run(options: Options, *, on_ready: OnReady | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code, after a line on stderr if it is 1.

    `on_ready` is called once, when start-up is over. Where threads cannot be stopped (a model
    that never returns, a load that has not ended) the process ends here and nothing is returned.
    Raises InvalidArgument when the log cannot be opened.
    """
    log = _open_log(options)
    log.install()
    try:
        for line in options.warnings():
            logger.warning("%s", line)
        code, left_behind = _run_on_new_loop(_live(options, on_ready, log))
    finally:
        log.close()
    if left_behind:
        sys.stdout.flush()
        os._exit(code)
    return code


def _open_log(options: Options) -> Log:
    settings = LogSettings(
        log_file=options.log_file,
        log_info=options.log_info,
        log_warning=options.log_warning,
        log_error=options.log_error,
        log_verbose_level=options.log_verbose,
        log_format=options.log_format,
    )
    try:
        return Log(settings)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the log to --log-file={options.log_file}: {error.strerror or error}"
        ) from None


async def _live(options: Options, on_ready: OnReady | None, log: Log) -> tuple[int, bool]:
    """The server's life. Returns the exit code and whether threads were left behind."""
    server = Server(options, log=log)
    with _signals() as told_to_stop:
        starting = asyncio.ensure_future(server.start())
        stopping = asyncio.ensure_future(told_to_stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        code = 0
        if starting.done():
            try:
                starting.result()
            except ShoalError as error:
                complain(error)
                code = 1
            except Exception:  # a fault of ours: its traceback belongs into the log
                logger.exception("the server failed to start")
                code = 1
            else:
                if on_ready is not None:
                    on_ready(server)
                await stopping
        starting.cancel()
        stopping.cancel()
        clean = await server.stop()
    return (code if clean else 1), server.left_behind


def complain(error: ShoalError) -> None:
    """Say on stderr why the server gives up; a broken model has a line of its own."""
    if isinstance(error, ModelsFailed):
        print(f"error: creating server: {error.code.value} - {error.message}", file=sys.stderr)
        for reason in error.reasons:
            print(f"error: {reason}", file=sys.stderr)
    else:
        print(f"error: {error.message}", file=sys.stderr)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set; further signals change nothing."""
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()

    def told(number: int) -> None:
        name = signal.Signals(number).name
        if told_to_stop.is_set():
            logger.info("%s: already stopping", name)
        else:
            logger.info("%s: stopping", name)
            told_to_stop.set()

    def interrupted(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(told, number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":  # Ctrl-Break, which is what a service manager can send there
        numbers.append(signal.SIGBREAK)
    # Not loop.add_signal_handler: this works on every platform. Python wakes the loop for it.
    before = {number: signal.signal(number, interrupted) for number in numbers}
    try:
        yield told_to_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_on_new_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end on a loop of its own."""
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
